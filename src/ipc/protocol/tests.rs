#![allow(clippy::unwrap_used)]

use super::*;

fn requests() -> Vec<Call> {
    let attributes = QpAttributesRecord { state: 2, dest_qpn: 0xff_ffff, ..QpAttributesRecord::default() };
    vec![
        Call::QueryDevice,
        Call::RegisterMemory {
            pd: 1,
            source: MemorySource::Process { address: u64::MAX },
            iova: 1 << 47,
            length: 1,
            access: 15,
        },
        Call::CreateCompletionQueue { entries: 16, channel: Some(0) },
        Call::CreateQueuePair {
            pd: 0,
            kind: 2,
            send_cq: 1,
            recv_cq: 2,
            srq: None,
            capabilities: QpCapabilitiesRecord::default(),
            signal_all: true,
        },
        Call::ModifyQueuePair { qp: 7, mask: 1, attributes },
    ]
}

#[test]
fn messages_survive_the_wire() {
    for call in requests() {
        let request = Request { id: u32::MAX, call };
        let bytes = encode(&request).unwrap();
        assert!(bytes.len() < MAX_MESSAGE_BYTES);
        assert_eq!(decode::<Request>(&bytes).unwrap(), request);
        // Neither shorter nor longer than it should be.
        assert!(decode::<Request>(&bytes[..bytes.len() - 1]).is_err());
        assert!(decode::<Request>(&[&bytes[..], &[0]].concat()).is_err());
    }
    let refusal = Refusal::Busy { kind: ObjectKind::Pd, handle: 3, users: 2 };
    let response = Response { id: 1, result: Err(refusal) };
    assert_eq!(decode::<Response>(&encode(&response).unwrap()).unwrap(), response);
}

#[test]
fn a_refusal_says_what_to_do() {
    let refusal = Refusal::Limit { kind: LimitKind::Objects(ObjectKind::QueuePair), limit: 10, wanted: 11 };
    assert_eq!(refusal.errno(), libc::ENOMEM);
    insta::assert_snapshot!(refusal, @"a client may have 10 queue pairs, not 11: ask for less, or raise the limits in holdfastd's [clients] settings");
    let refusal = Refusal::Busy { kind: ObjectKind::CompletionQueue, handle: 3, users: 2 };
    assert_eq!(refusal.errno(), libc::EBUSY);
    insta::assert_snapshot!(refusal, @"completion queue 3 is in use by 2 other objects: destroy those first");
}

#[test]
fn versions_are_agreed_on_or_the_older_side_is_named() {
    let hello = |lowest, highest| Hello { lowest, highest };
    assert_eq!(hello(1, 1).agree(1, 1), Ok(1));
    assert_eq!(hello(1, 5).agree(2, 3), Ok(3));
    assert_eq!(hello(2, 3).agree(1, 9), Ok(3));
    insta::assert_snapshot!(hello(1, 2).agree(3, 4).unwrap_err(), @"the client is too old: the client speaks versions 1 to 2 of the attach protocol, the daemon 3 to 4; upgrade the client program");
    insta::assert_snapshot!(hello(5, 6).agree(3, 4).unwrap_err(), @"the daemon is too old: the client speaks versions 5 to 6 of the attach protocol, the daemon 3 to 4; upgrade holdfastd");
}

#[test]
fn the_hello_is_the_same_for_all_versions() {
    let hello = Hello { lowest: 1, highest: 0x0203 };
    let bytes = hello.encode();
    assert_eq!(&bytes[..4], b"HFST");
    assert_eq!(Hello::decode(&bytes), Ok(hello));
    assert_eq!(Hello::decode(&[&bytes[..], b"what a later version adds"].concat()), Ok(hello));
    for wrong in [&bytes[..7], b"HTTP/1.1", &Hello { lowest: 2, highest: 1 }.encode()] {
        assert_eq!(Hello::decode(wrong), Err(NotHello));
    }
    let welcome = Welcome {
        device: DeviceAttributes { name: "holdfast0".into(), ..DeviceAttributes::default() },
        port: PortAttributes::default(),
        daemon_pid: 7,
    };
    for answer in [
        HelloAnswer::Welcome { version: 1, welcome: Box::new(welcome) },
        HelloAnswer::Refused { version: 4, reason: "too old".into() },
    ] {
        assert_eq!(HelloAnswer::decode(&answer.encode().unwrap()), Ok(answer));
    }
    assert_eq!(HelloAnswer::decode(b"HFST"), Err(NotHello));
    assert_eq!(HelloAnswer::decode(b"HTTP/1.1 400 Bad Request"), Err(NotHello));
}
