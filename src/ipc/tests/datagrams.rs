//! UD and address handles.

use super::*;

const QKEY: u32 = 0x1111;

fn sides(daemon: &Loopback) -> [Side; 2] {
    [0, 1].map(|device: usize| {
        let side = Side::new(&daemon.sockets()[device], QpType::Ud, QpCapabilities::default());
        side.qp.activate(QKEY, Psn::new(device as u32)).unwrap();
        side
    })
}

#[test]
fn datagrams_bring_the_address_they_came_from() {
    let daemon = Loopback::with_devices(2, &Permissions::default()).unwrap();
    let [a, b] = sides(&daemon);
    for address in b.context.addresses() {
        b.recv(1, 0..1000);
        assert!(a.buffer.write(0, b"datagram"));
        a.qp.post_send(&SendRequest {
            wr_id: 2,
            op: SendOp::SendImm(5),
            flags: SendFlags::SIGNALED,
            data: Data::Sges(&[a.buffer.sge(0..8)]),
            datagram: Some(AddressHandle::to(*address).queue_pair(b.qp.qpn(), QKEY)),
        })
        .unwrap();
        assert_eq!(a.next().status, WcStatus::Success);
        let got = b.next();
        assert_eq!((got.byte_len, got.imm, got.src_qp), (48, Some(5), a.qp.qpn()));
        assert_eq!(got.flags, WcFlags::GRH | WcFlags::WITH_IMM);
        assert_eq!(b.bytes(40..48), b"datagram");
        let header = b.bytes(0..40);
        let source = a.context.addresses().iter().find(|own| own.is_ipv4() == address.is_ipv4()).unwrap();
        match source {
            std::net::IpAddr::V4(source) => assert_eq!(header[32..36], source.octets()),
            std::net::IpAddr::V6(source) => assert_eq!(header[8..24], source.octets()),
        }
    }
}

#[test]
fn what_leads_nowhere_is_refused_at_once_or_fails_the_queue_pair() {
    let daemon = Loopback::with_devices(2, &Permissions::default()).unwrap();
    let [a, b] = sides(&daemon);
    let to = AddressHandle::to(b.context.addresses()[0]);
    let request = SendRequest {
        wr_id: 1,
        op: SendOp::Send,
        flags: SendFlags::SIGNALED,
        data: Data::Sges(&[]),
        datagram: Some(to.queue_pair(b.qp.qpn(), QKEY)),
    };
    assert_eq!(a.qp.post_send(&SendRequest { datagram: None, ..request }), Err(PostError::Address));
    let foreign = AddressHandle::new(AddressVector { source: b.context.addresses()[0], ..*to.vector() });
    let datagram = Some(foreign.queue_pair(b.qp.qpn(), QKEY));
    assert_eq!(a.qp.post_send(&SendRequest { datagram, ..request }), Err(PostError::Address));
    // Only the daemon knows that this leads nowhere.
    let nowhere = AddressHandle::to(std::net::Ipv4Addr::UNSPECIFIED.into());
    let datagram = Some(nowhere.queue_pair(b.qp.qpn(), QKEY));
    a.qp.post_send(&SendRequest { datagram, ..request }).unwrap();
    let failed = a.next();
    assert_eq!((failed.wr_id, failed.status), (1, WcStatus::LocalQpOperation));
    assert_eq!(a.qp.query().unwrap().state, QpState::Err);
}
