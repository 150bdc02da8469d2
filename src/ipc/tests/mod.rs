//! The client against a daemon in a thread: two devices, real packets between them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod connection;
mod datagrams;
mod events;
mod limits;
mod queues;

use super::client::*;
use super::loopback::Loopback;
use super::server::Permissions;
use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine; a test that waits so long has failed.
const LONG: Duration = Duration::from_secs(30);
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

/// One program's half of a connection.
struct Side {
    context: Context,
    pd: Pd,
    cq: CompletionQueue,
    qp: QueuePair,
    buffer: MemoryRegion,
}

impl Side {
    fn new(socket: &std::path::Path, kind: QpType, capabilities: QpCapabilities) -> Self {
        let context = Context::connect(socket).unwrap();
        let pd = context.allocate_pd().unwrap();
        let cq = context.create_cq(256, None).unwrap();
        let qp = pd.queue_pair(kind, &cq, &cq).capabilities(capabilities).create().unwrap();
        let buffer = pd.allocate(1 << 16, ALL).unwrap();
        Self { context, pd, cq, qp, buffer }
    }

    fn recv(&self, wr_id: u64, range: core::ops::Range<u64>) {
        self.qp.post_recv(&RecvRequest { wr_id, sges: &[self.buffer.sge(range)] }).unwrap();
    }

    /// A signalled request whose data is `range` of the buffer.
    fn send(&self, wr_id: u64, op: SendOp, range: core::ops::Range<u64>) {
        let data = Data::Sges(&[self.buffer.sge(range)]);
        self.qp.post_send(&SendRequest { wr_id, op, flags: SendFlags::SIGNALED, data, datagram: None }).unwrap();
    }

    fn next(&self) -> Completion {
        next(&self.cq)
    }

    fn bytes(&self, range: core::ops::Range<u64>) -> Vec<u8> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        assert!(self.buffer.read(range.start, &mut bytes));
        bytes
    }
}

/// The next completion, for which it waits.
fn next(cq: &CompletionQueue) -> Completion {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(completion) = cq.poll_one().unwrap() {
            return completion;
        }
        assert!(Instant::now() < deadline, "no completion came");
    }
}

/// Two programs on two devices, connected.
struct Pair {
    a: Side,
    b: Side,
    _daemon: Loopback,
}

impl Pair {
    fn new(kind: QpType) -> Self {
        Self::with(kind, QpCapabilities::default(), &ConnectionOptions::default())
    }

    fn with(kind: QpType, capabilities: QpCapabilities, options: &ConnectionOptions) -> Self {
        let daemon = Loopback::with_devices(2, &Permissions::default()).unwrap();
        let [a, b] = [0, 1].map(|device: usize| Side::new(&daemon.sockets()[device], kind, capabilities));
        let (psn_a, psn_b) = (Psn::new(0xff_fff0), Psn::new(7));
        let (to_a, to_b) = (a.qp.endpoint(psn_a).unwrap(), b.qp.endpoint(psn_b).unwrap());
        a.qp.connect(&to_b, psn_a, options).unwrap();
        b.qp.connect(&to_a, psn_b, options).unwrap();
        Self { a, b, _daemon: daemon }
    }
}
