//! What a worker answers the control plane: values copied out of its engine.

use super::clients::Clients;
use crate::control::view;
use crate::control::worker::PAGE_ENTRIES;
use crate::engine::{CongestionStatus, Engine, PathNotice, PathStatus};
use crate::ipc::server::{Server, SessionId};
use crate::memory::Backing;
use crate::time::{Duration, Instant};
use crate::transport::{Qp, QpCounters, QpState, QpType, Refusal, Wait};
use crate::wire::{Qpn, RnrTimer};

/// The worker itself.
pub(super) fn worker(index: u32, cpu: Option<u32>, engine: &Engine) -> view::Worker {
    let memory = engine.memory().total_usage();
    view::Worker {
        index,
        cpu,
        queue_pairs: engine.qp_count() as u32,
        memory_regions: memory.regions,
        registered_bytes: memory.registered_bytes,
        problem: None,
    }
}

/// The worker's clients.
pub(super) fn clients(worker: u32, now: Instant, engine: &Engine, clients: &Clients) -> Vec<view::Client> {
    let view = |session: &crate::ipc::server::Session| {
        let memory = engine.memory().usage(session.id().owner());
        let pid = session.peer().process().pid();
        view::Client {
            pid: pid.cast_unsigned(),
            uid: session.peer().uid(),
            command: command(pid),
            worker,
            queue_pairs: session.queue_pairs() as u32,
            memory_regions: memory.regions,
            registered_bytes: memory.registered_bytes,
            attached_ns: nanoseconds(clients.attached_for(session.id(), now)),
        }
    };
    clients.server().sessions().map(view).collect()
}

/// What a process is called (`/proc/PID/comm`); empty if it is gone.
fn command(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).map(|s| s.trim_end().to_owned()).unwrap_or_default()
}

/// A page of queue pairs.
pub(super) fn queue_pairs(
    worker: u32,
    now: Instant,
    engine: &mut Engine,
    server: &Server,
    from: u32,
) -> view::Page<view::QueuePair> {
    let numbers: Vec<Qpn> = engine.qps_from(Qpn::new(from)).map(Qp::qpn).take(PAGE_ENTRIES + 1).collect();
    let next = numbers.get(PAGE_ENTRIES).map(|qpn| qpn.get());
    let entries = numbers
        .iter()
        .take(PAGE_ENTRIES)
        .filter_map(|qpn| queue_pair(worker, now, engine, server, qpn.get()))
        .collect();
    view::Page { entries, next }
}

/// One queue pair.
pub(super) fn queue_pair(
    worker: u32,
    now: Instant,
    engine: &mut Engine,
    server: &Server,
    qpn: u32,
) -> Option<view::QueuePair> {
    let qpn = Qpn::new(qpn);
    let waiting = engine.waits_for(now, qpn);
    let owner = engine.owner(qpn)?;
    let client_pid = pid_of(server, owner);
    let congestion = engine.congestion_of(now, qpn).map(congestion);
    let qp = engine.qp(qpn)?;
    let (init, attrs, progress) = (qp.init(), qp.attributes(), qp.progress());
    Some(view::QueuePair {
        qpn: qpn.get(),
        kind: kind(init.kind),
        state: state(attrs.state),
        worker,
        client_pid,
        protection_domain: init.pd.number() as u32,
        send_cq: init.send_cq.0,
        receive_cq: init.recv_cq.0,
        shared_receive_queue: init.srq.map(|srq| srq.0),
        peer: peer(qp),
        path_mtu_bytes: attrs.path_mtu.bytes(),
        ack_timeout_ns: if attrs.timeout == 0 { 0 } else { 4096u64 << attrs.timeout.min(31) },
        retry_count: attrs.retry_count.into(),
        retries_left: progress.retries_left.into(),
        rnr_retry: attrs.rnr_retry.into(),
        rnr_retries_left: progress.rnr_retries_left.into(),
        min_rnr_timer_ns: RnrTimer::new(attrs.min_rnr_timer).duration().as_nanos() as u64,
        max_rd_atomic: attrs.max_rd_atomic.into(),
        max_dest_rd_atomic: attrs.max_dest_rd_atomic.into(),
        send_psn: progress.next_psn.get(),
        unacknowledged_psn: progress.oldest_unacknowledged_psn.get(),
        expected_psn: progress.expected_psn.get(),
        msn: progress.msn,
        send_queue: view::Depth { posted: qp.outstanding_sends(), capacity: init.caps.max_send_wr },
        receive_queue: view::Depth {
            posted: qp.waiting_receives(),
            capacity: if init.srq.is_some() { 0 } else { init.caps.max_recv_wr },
        },
        waits_for: waiting.map(|w| wait(w.reason)),
        waited_ns: waiting.and_then(|w| w.waited).map(nanoseconds),
        wait_ends_in_ns: waiting.and_then(|w| w.ends_in).map(nanoseconds),
        failure: qp.failure().map(|failure| failure.to_string()),
        congestion,
        counters: counters(qp.counters()),
    })
}

fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// A page of paths.
pub(super) fn paths(worker: u32, now: Instant, engine: &Engine, from: u32) -> view::Page<view::Path> {
    let mut paths = engine.paths(now).filter(|(number, _)| *number >= from);
    let entries = paths.by_ref().take(PAGE_ENTRIES).map(|(_, status)| path(worker, &status)).collect();
    view::Page { entries, next: paths.next().map(|(number, _)| number) }
}

fn path(worker: u32, status: &PathStatus) -> view::Path {
    let record = &status.record;
    view::Path {
        peer: status.peer,
        worker,
        state: status.state.into(),
        cause: status.cause.map(Into::into),
        for_ns: nanoseconds(status.for_),
        queue_pairs: status.queue_pairs,
        hold_max_ns: nanoseconds(status.hold_max),
        circuit: status.circuit.map(Into::into),
        moves: status.moves,
        darks: record.darks,
        dark_ns: record.dark_ns,
        last_dark_ns: record.last_dark_ns,
        lost: record.lost,
        is_holdfast: status.is_kin,
    }
}

/// What happened to a path, as those who watch are told.
pub(super) fn path_news(worker: u32, notice: &PathNotice) -> view::PathNews {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    let news = |peer, state| view::PathNews {
        peer,
        worker,
        state,
        cause: None,
        dark_ns: 0,
        lost_queue_pairs: 0,
        at_unix_ns: nanoseconds(since_1970.unwrap_or_default()),
    };
    match *notice {
        PathNotice::Dark { peer, cause } => {
            view::PathNews { cause: Some(cause.into()), ..news(peer, view::PathState::Dark) }
        }
        PathNotice::Light { peer, dark } => {
            view::PathNews { dark_ns: nanoseconds(dark), ..news(peer, view::PathState::Lit) }
        }
        PathNotice::Lost { peer, queue_pairs } => {
            view::PathNews { lost_queue_pairs: queue_pairs, ..news(peer, view::PathState::Lost) }
        }
    }
}

/// A page of memory regions.
pub(super) fn memory_regions(
    worker: u32,
    engine: &Engine,
    server: &Server,
    from: u32,
) -> view::Page<view::MemoryRegion> {
    let memory = engine.memory();
    let mut regions = memory.regions_from(from);
    let entries: Vec<_> = regions
        .by_ref()
        .take(PAGE_ENTRIES)
        .map(|(slot, region)| view::MemoryRegion {
            slot,
            worker,
            client_pid: memory.owner(region.pd()).map_or(0, |owner| pid_of(server, owner)),
            protection_domain: region.pd().number() as u32,
            iova: region.iova(),
            length_bytes: region.length(),
            access: region.access().bits(),
            backing: match region.backing() {
                Backing::Shared(..) => view::Backing::Shared,
                Backing::Process(_) => view::Backing::Process,
            },
        })
        .collect();
    view::Page { next: regions.next().map(|(slot, _)| slot), entries }
}

fn pid_of(server: &Server, owner: u64) -> u32 {
    let session = server.sessions().find(|s| SessionId::owner(s.id()) == owner);
    session.map_or(0, |s| s.peer().process().pid().cast_unsigned())
}

fn peer(qp: &Qp) -> Option<view::Peer> {
    let attrs = qp.attributes();
    let connected = !qp.init().kind.is_datagram() && attrs.state.receives();
    connected.then_some(view::Peer {
        address: attrs.av.destination,
        qpn: attrs.dest_qpn.get(),
        source_port: attrs.av.source_port,
        traffic_class: attrs.av.traffic_class,
        hop_limit: attrs.av.hop_limit,
    })
}

const fn kind(kind: QpType) -> view::QpKind {
    match kind {
        QpType::Rc => view::QpKind::Rc,
        QpType::Uc => view::QpKind::Uc,
        QpType::Ud => view::QpKind::Ud,
        QpType::Gsi => view::QpKind::Gsi,
    }
}

const fn state(state: QpState) -> view::QpState {
    match state {
        QpState::Reset => view::QpState::Reset,
        QpState::Init => view::QpState::Init,
        QpState::Rtr => view::QpState::Rtr,
        QpState::Rts => view::QpState::Rts,
        QpState::Sqd => view::QpState::Sqd,
        QpState::Sqe => view::QpState::Sqe,
        QpState::Err => view::QpState::Error,
    }
}

const fn wait(wait: Wait) -> view::Wait {
    match wait {
        Wait::Rnr => view::Wait::Rnr,
        Wait::Loss => view::Wait::Loss,
        Wait::Ack => view::Wait::Ack,
        Wait::Credit => view::Wait::Credit,
        Wait::Window => view::Wait::Window,
        Wait::Reads => view::Wait::Reads,
        Wait::Fence => view::Wait::Fence,
        Wait::Stopped => view::Wait::Stopped,
        Wait::Application => view::Wait::Application,
        Wait::Dark => view::Wait::Dark,
        Wait::Congestion => view::Wait::Congestion,
    }
}

fn congestion(c: CongestionStatus) -> view::Congestion {
    view::Congestion {
        rate_bps: c.rate.as_bps(),
        target_bps: c.target.as_bps(),
        alpha_millionths: (c.alpha * 1e6) as u32,
        is_limited: c.is_limited,
        marked_packets: c.marked_packets,
        cnps_sent: c.cnps_sent,
        cnps_received: c.cnps_received,
    }
}

fn counters(c: &QpCounters) -> view::QpCounters {
    view::QpCounters {
        sent_packets: c.sent_packets,
        sent_bytes: c.sent_bytes,
        received_packets: c.received_packets,
        received_bytes: c.received_bytes,
        retransmitted_packets: c.retransmitted_packets,
        ack_timeouts: c.local_ack_timeout_err,
        acks_sent: c.acks_sent,
        sequence_naks_received: c.packet_seq_err,
        rnr_naks_received: c.rnr_nak_retry_err,
        implied_naks: c.implied_nak_seq_err,
        read_requests: c.rx_read_requests,
        write_requests: c.rx_write_requests,
        atomic_requests: c.rx_atomic_requests,
        duplicate_requests: c.duplicate_request,
        out_of_sequence_packets: c.out_of_sequence,
        out_of_buffer: c.out_of_buffer,
        dropped_packets: Refusal::ALL.iter().map(|r| u64::from(c.refused(*r))).sum(),
        send_errors: c.req_cqe_error,
        send_flushed: c.req_cqe_flush_error,
        receive_errors: c.resp_cqe_error,
        receive_flushed: c.resp_cqe_flush_error,
    }
}
