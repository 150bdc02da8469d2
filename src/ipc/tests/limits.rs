//! What a client may not, and what it is told then.

use super::*;
use crate::ipc::protocol::{LimitKind, ObjectKind};

fn with(permissions: &Permissions) -> (Loopback, Context) {
    let daemon = Loopback::with_devices(1, permissions).unwrap();
    let context = Context::connect(daemon.socket()).unwrap();
    (daemon, context)
}

#[track_caller]
fn refused<T: core::fmt::Debug>(result: Result<T, Error>) -> Refusal {
    match result {
        Err(Error::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_has_only_so_much_of_everything() {
    let permissions = Permissions {
        max_pds: 1,
        max_regions: 2,
        max_registered_bytes: 10_000,
        max_windows: 1,
        max_channels: 1,
        max_completion_queues: 2,
        max_shared_receive_queues: 1,
        max_queue_pairs: 1,
        max_queue_depth: 100,
        max_completion_queue_depth: 1000,
        max_queue_memory_bytes: 1 << 20,
        ..Permissions::default()
    };
    let (_daemon, context) = with(&permissions);
    let limit = |kind, limit, wanted| Refusal::Limit { kind, limit, wanted };
    let objects = |kind, most: u64| limit(LimitKind::Objects(kind), most, most + 1);
    assert_eq!((context.device().max_qp, context.device().max_qp_wr), (1, 100));

    let pd = context.allocate_pd().unwrap();
    assert_eq!(refused(context.allocate_pd()), objects(ObjectKind::Pd, 1));
    let region = pd.allocate(9000, ALL).unwrap();
    assert_eq!(refused(pd.allocate(1001, ALL)), limit(LimitKind::RegisteredBytes, 10_000, 10_001));
    let _region = pd.allocate(1000, ALL).unwrap();
    assert_eq!(refused(pd.allocate(1, ALL)), objects(ObjectKind::Region, 2));
    drop(region);
    let _region = pd.allocate(9000, ALL).unwrap();
    let _window = pd.allocate_window().unwrap();
    assert_eq!(refused(pd.allocate_window()), objects(ObjectKind::Window, 1));
    let channel = context.create_channel().unwrap();
    assert_eq!(refused(context.create_channel()), objects(ObjectKind::Channel, 1));

    assert_eq!(refused(context.create_cq(1001, None)), limit(LimitKind::QueueDepth, 1000, 1001));
    let cq = context.create_cq(1000, Some(&channel)).unwrap();
    assert_eq!(cq.depth(), 1024);
    assert_eq!(refused(cq.resize(1001)), limit(LimitKind::QueueDepth, 1000, 1001));
    let _cq = context.create_cq(1, None).unwrap();
    assert_eq!(refused(context.create_cq(1, None)), objects(ObjectKind::CompletionQueue, 2));
    let _srq = pd.create_srq(100, 1).unwrap();
    assert_eq!(refused(pd.create_srq(1, 1)), objects(ObjectKind::SharedReceiveQueue, 1));

    let wish = |capabilities| pd.queue_pair(QpType::Rc, &cq, &cq).capabilities(capabilities).create();
    let fits = QpCapabilities { max_send_wr: 100, max_recv_wr: 100, ..QpCapabilities::default() };
    for (capabilities, refusal) in [
        (QpCapabilities { max_send_wr: 101, ..fits }, limit(LimitKind::QueueDepth, 100, 101)),
        (QpCapabilities { max_recv_sge: 33, ..fits }, limit(LimitKind::Sges, 32, 33)),
        (QpCapabilities { max_inline_data: 1025, ..fits }, limit(LimitKind::InlineBytes, 1024, 1025)),
    ] {
        assert_eq!(refused(wish(capabilities)), refusal);
    }
    let _qp = wish(fits).unwrap();
    assert_eq!(refused(wish(fits)), objects(ObjectKind::QueuePair, 1));
}

#[test]
fn queue_memory_is_given_back() {
    let permissions = Permissions { max_queue_memory_bytes: 100_000, ..Permissions::default() };
    let (_daemon, context) = with(&permissions);
    let pd = context.allocate_pd().unwrap();
    for _ in 0..10 {
        let cq = context.create_cq(64, None).unwrap();
        let qp = pd.queue_pair(QpType::Rc, &cq, &cq).create().unwrap();
        let srq = pd.create_srq(64, 1).unwrap();
        cq.resize(256).unwrap();
        let too_much = refused(context.create_cq(2048, None));
        assert!(matches!(too_much, Refusal::Limit { kind: LimitKind::QueueMemoryBytes, .. }), "{too_much}");
        drop((qp, srq));
    }
}

#[test]
fn mappings_are_limited_and_given_back() {
    let (_daemon, context) = with(&Permissions { max_mappings: 3, ..Permissions::default() });
    let pd = context.allocate_pd().unwrap();
    for _ in 0..3 {
        let cq = context.create_cq(16, None).unwrap();
        let _qp = pd.queue_pair(QpType::Rc, &cq, &cq).create().unwrap();
        let region = pd.allocate(4096, ALL).unwrap();
        let limit = Refusal::Limit { kind: LimitKind::Mappings, limit: 3, wanted: 4 };
        assert_eq!(refused(pd.allocate(4096, ALL)), limit);
        assert_eq!(refused(context.create_cq(16, None)), limit);
        // It shares the mapping of the queue pair.
        let _srq = pd.create_srq(16, 1).unwrap();
        drop(region);
        let _cq = context.create_cq(16, None).unwrap();
    }
}

#[test]
fn what_only_some_may_is_refused_to_others() {
    let (_daemon, context) = with(&Permissions { process_memory: None, ..Permissions::default() });
    let pd = context.allocate_pd().unwrap();
    let cq = context.create_cq(16, None).unwrap();
    let mut own = [0u8; 8];
    let start = core::ptr::NonNull::from(&mut own).cast();
    #[allow(unsafe_code)]
    // SAFETY: refused, so nobody touches it.
    let refusal = refused(unsafe { pd.register(start, 8, ALL) });
    assert!(matches!(refusal, Refusal::NotPermitted { .. }), "{refusal}");
    let refusal = refused(pd.queue_pair(QpType::Gsi, &cq, &cq).create());
    assert!(matches!(refusal, Refusal::NotPermitted { .. }), "{refusal}");
    let qp = pd.queue_pair(QpType::Ud, &cq, &cq).create().unwrap();
    let refusal = refused(qp.activate(0x8001_0000, Psn::new(0)));
    assert!(matches!(refusal, Refusal::NotPermitted { .. }), "{refusal}");
    assert_eq!(refusal.errno(), libc::EPERM);
}

#[test]
fn objects_in_use_stay() {
    let (_daemon, context) = with(&Permissions::default());
    let pd = context.allocate_pd().unwrap();
    let region = pd.allocate(100, ALL).unwrap();
    // The handle of the API keeps the domain alive, so ask behind its back.
    let refusal = refused(context.inner_call(crate::ipc::protocol::Call::DeallocatePd { pd: 0 }));
    assert_eq!(refusal.errno(), libc::EBUSY);
    drop(region);
    let refusal = refused(context.inner_call(crate::ipc::protocol::Call::DeallocatePd { pd: 7 }));
    assert_eq!(refusal, Refusal::Unknown { kind: ObjectKind::Pd, handle: 7 });
}

#[test]
fn wrong_transitions_name_what_is_missing() {
    let (_daemon, context) = with(&Permissions::default());
    let pd = context.allocate_pd().unwrap();
    let cq = context.create_cq(16, None).unwrap();
    let qp = pd.queue_pair(QpType::Rc, &cq, &cq).create().unwrap();
    let refusal = refused(qp.modify(&QpAttributes::to(QpState::Rts), AttrMask::STATE));
    assert_eq!(refusal.errno(), libc::EINVAL);
    assert!(refusal.to_string().contains("Reset"), "{refusal}");
    let refusal = refused(qp.modify(&QpAttributes::to(QpState::Init), AttrMask::STATE));
    assert!(refusal.to_string().contains("PORT"), "{refusal}");
    let foreign = AddressVector { source: "198.18.9.9".parse().unwrap(), ..AddressVector::UNSET };
    let attributes = QpAttributes { av: foreign, ..QpAttributes::to(QpState::Init) };
    let refusal = refused(qp.modify(&attributes, AttrMask::STATE | AttrMask::AV));
    assert!(refusal.to_string().contains("GID"), "{refusal}");
}

#[test]
fn nobody_there_and_no_holdfast_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("attach.sock");
    let Err(error) = Context::connect(&path) else { panic!("connected to nobody") };
    assert!(matches!(error, Error::NotRunning { .. }), "{error}");
    assert!(error.to_string().contains("start it"), "{error}");
    let _stream = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let Err(error) = Context::connect(&path) else { panic!("connected to a stream socket") };
    assert!(matches!(error, Error::NotHoldfast { .. }), "{error}");
}

#[test]
fn device_port_and_tables_can_be_asked_for() {
    let (_daemon, context) = with(&Permissions::default());
    assert_eq!(context.device().name, "loopback0");
    let port = context.query_port().unwrap();
    assert_eq!((port.state, port.gid_count, port.pkey_count), (PortState::Active, 2, 1));
    assert_eq!(context.query_gid(0).unwrap().to_string(), "::ffff:198.18.0.1");
    assert_eq!(context.query_gid(1).unwrap().address(), context.addresses()[1]);
    assert_eq!(context.query_pkey(0).unwrap(), 0xffff);
    assert_eq!(refused(context.query_gid(2)).errno(), libc::EINVAL);
    assert_eq!(refused(context.query_pkey(1)).errno(), libc::EINVAL);
}
