//! A worker's counters, published for the metrics.

use super::clients::Visits;
use crate::counters::{Counter, Distribution, Publisher, Tally};
use crate::engine::{DropReason, Engine};
use crate::io::{Port, PortCounters};
use crate::ipc::server::{BadWorkCounters, EventCounters, RefusalCounters, Server, SessionCounters};
use crate::time::Duration;
use crate::transport::{Burst, QpCounters, Refusal};

/// What a worker keeps between two publications.
#[derive(Debug)]
pub(super) struct Publication {
    publisher: Publisher,
    turns_busy: u64,
    turns_idle: u64,
    asleep_ns: u64,
    received: Tally,
    transmitted: Tally,
}

impl Publication {
    /// Publishes through `publisher`.
    pub(super) fn new(publisher: Publisher) -> Self {
        Self {
            publisher,
            turns_busy: 0,
            turns_idle: 0,
            asleep_ns: 0,
            received: Tally::new(Distribution::ReceiveBurst),
            transmitted: Tally::new(Distribution::TransmitBurst),
        }
    }

    /// A turn of the loop is over.
    pub(super) fn handle_turn(&mut self, worked: bool) {
        if worked {
            self.turns_busy += 1;
        } else {
            self.turns_idle += 1;
        }
    }

    /// One receive brought this many packets.
    pub(super) fn handle_receive(&mut self, packets: usize) {
        self.received.record(packets as u64);
    }

    /// A burst goes to the port.
    pub(super) fn handle_burst(&mut self, burst: &Burst) {
        self.transmitted.record(burst.packet_count() as u64);
    }

    /// The worker slept.
    pub(super) fn handle_sleep(&mut self, slept: Duration) {
        self.asleep_ns += u64::try_from(slept.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Publishes everything as it stands.
    pub(super) fn publish(&mut self, engine: &mut Engine, port: &mut dyn Port, server: &Server, visits: Visits) {
        let p = &mut self.publisher;
        p.set(Counter::TurnsBusy, self.turns_busy);
        p.set(Counter::TurnsIdle, self.turns_idle);
        p.set(Counter::AsleepNs, self.asleep_ns);
        [&self.received, &self.transmitted, server.latency()].into_iter().for_each(|tally| p.set_histogram(tally));
        let received = port.counters();
        publish_port(p, &received);
        publish_drops(p, engine, &received);
        publish_transport(p, engine.totals());
        publish_engine(p, engine);
        publish_visits(p, visits);
        publish_sessions(p, server);
        publish_events(p, server.events());
    }
}

// Structs of counters are taken apart whole: one that gets a new field does not compile until it is published.

fn publish_port(p: &mut Publisher, c: &PortCounters) {
    let PortCounters {
        received_packets,
        received_bytes,
        receives,
        transmitted_packets,
        transmitted_bytes,
        sends,
        backpressure,
        refused_too_large,
        refused_unreachable,
        refused_forbidden,
        refused_other,
        dropped_truncated,
        dropped_fragment,
        // With those of the engine.
        dropped_malformed: _,
        dropped_not_ours: _,
        kernel_dropped,
    } = *c;
    p.set(Counter::ReceivedPackets, received_packets);
    p.set(Counter::ReceivedBytes, received_bytes);
    p.set(Counter::PortReceives, receives);
    p.set(Counter::TransmittedPackets, transmitted_packets);
    p.set(Counter::TransmittedBytes, transmitted_bytes);
    p.set(Counter::PortSends, sends);
    p.set(Counter::TransmitBackpressure, backpressure);
    p.set(Counter::TransmitTooLarge, refused_too_large);
    p.set(Counter::TransmitUnreachable, refused_unreachable);
    p.set(Counter::TransmitForbidden, refused_forbidden);
    p.set(Counter::TransmitOther, refused_other);
    p.set(Counter::DropTruncated, dropped_truncated);
    p.set(Counter::DropFragment, dropped_fragment);
    p.set(Counter::KernelDropped, kernel_dropped);
}

fn publish_drops(p: &mut Publisher, engine: &Engine, port: &PortCounters) {
    let counters = engine.counters();
    for reason in DropReason::all() {
        let from_port = match reason {
            DropReason::Malformed => port.dropped_malformed,
            DropReason::NotOurs => port.dropped_not_ours,
            _ => 0,
        };
        p.set(drop_counter(reason), counters.dropped(reason) + from_port);
    }
}

/// The published counter of a reason.
const fn drop_counter(reason: DropReason) -> Counter {
    match reason {
        DropReason::Malformed => Counter::DropMalformed,
        DropReason::Icrc => Counter::DropIcrc,
        DropReason::NotOurs => Counter::DropNotOurs,
        DropReason::UnknownQp => Counter::DropUnknownQp,
        DropReason::Cnp => Counter::DropCnp,
        DropReason::Heartbeat => Counter::DropHeartbeat,
        DropReason::Refused(refusal) => match refusal {
            Refusal::State => Counter::DropQpState,
            Refusal::Source => Counter::DropWrongSource,
            Refusal::Pkey => Counter::DropPkey,
            Refusal::Qkey => Counter::DropQkey,
            Refusal::Service => Counter::DropWrongService,
            Refusal::Ghost => Counter::DropGhost,
            Refusal::BadResponse => Counter::DropBadResponse,
            Refusal::OutOfSequence => Counter::DropOutOfSequence,
            Refusal::StaleDuplicate => Counter::DropStaleDuplicate,
            Refusal::MessageGap => Counter::DropMessageGap,
            Refusal::InvalidUnreliable => Counter::DropInvalidUnreliable,
            Refusal::NoReceive => Counter::DropNoReceive,
            Refusal::ReceiveTooShort => Counter::DropReceiveTooShort,
            Refusal::Access => Counter::DropAccess,
        },
    }
}

fn publish_transport(p: &mut Publisher, c: &QpCounters) {
    p.set(Counter::RequestRead, c.rx_read_requests);
    p.set(Counter::RequestWrite, c.rx_write_requests);
    p.set(Counter::RequestAtomic, c.rx_atomic_requests);
    p.set(Counter::AcksSent, c.acks_sent);
    p.set(Counter::NakRemoteAccessSent, c.resp_remote_access_errors);
    p.set(Counter::NakInvalidRequestSent, c.resp_invalid_requests);
    p.set(Counter::NakSequenceReceived, c.packet_seq_err);
    p.set(Counter::NakRnrReceived, c.rnr_nak_retry_err);
    p.set(Counter::NakRemoteAccessReceived, c.req_remote_access_errors);
    p.set(Counter::NakInvalidRequestReceived, c.req_remote_invalid_request);
    p.set(Counter::RetransmittedPackets, c.retransmitted_packets);
    p.set(Counter::AckTimeouts, c.local_ack_timeout_err);
    p.set(Counter::ImpliedNaks, c.implied_nak_seq_err);
    p.set(Counter::DuplicateRequests, c.duplicate_request);
    p.set(Counter::OutOfSequencePackets, c.out_of_sequence);
    p.set(Counter::OutOfBuffer, c.out_of_buffer);
    p.set(Counter::ReceiveTooShort, c.resp_local_length_error);
    p.set(Counter::RetryExceeded, c.retry_exceeded_err);
    p.set(Counter::RnrRetryExceeded, c.retry_rnr_exceeded_err);
    p.set(Counter::SendErrors, c.req_cqe_error);
    p.set(Counter::SendFlushed, c.req_cqe_flush_error);
    p.set(Counter::ReceiveErrors, c.resp_cqe_error);
    p.set(Counter::ReceiveFlushed, c.resp_cqe_flush_error);
}

fn publish_engine(p: &mut Publisher, engine: &Engine) {
    let c = engine.counters();
    p.set(Counter::EcnMarkedPackets, c.ecn_marked_packets);
    p.set(Counter::IcrcRecoveredPackets, c.icrc_recovered_packets);
    p.set(Counter::CnpsReceived, c.cnps_received);
    p.set(Counter::CnpsSent, c.cnps_sent);
    p.set(Counter::LoopedPackets, c.looped_packets);
    p.set(Counter::LocalMessages, c.local_messages);
    p.set(Counter::LocalBytes, c.local_bytes);
    p.set(Counter::PathDarks, c.path_darks);
    p.set(Counter::PathDarkNs, c.path_dark_ns);
    p.set(Counter::PathProbes, c.path_probes);
    p.set(Counter::PathLostQueuePairs, c.path_lost_queue_pairs);
    p.set(Counter::PathsDark, engine.dark_paths() as u64);
    p.set(Counter::QueuePairs, engine.qp_count() as u64);
    let memory = engine.memory().total_usage();
    p.set(Counter::MemoryRegions, memory.regions.into());
    p.set(Counter::RegisteredBytes, memory.registered_bytes);
}

fn publish_visits(p: &mut Publisher, visits: Visits) {
    let Visits { attached, detached, died, expelled, failed, wakes } = visits;
    p.set(Counter::ClientsAttached, attached);
    p.set(Counter::ClientsLeft, detached + died);
    p.set(Counter::ClientsExpelled, expelled);
    p.set(Counter::AttachFailed, failed);
    p.set(Counter::DoorbellWakes, wakes);
}

fn publish_sessions(p: &mut Publisher, server: &Server) {
    let SessionCounters {
        requests,
        refused,
        hellos_refused,
        rings,
        sends,
        receives,
        bad_work_requests,
        completions,
        completions_lost,
        channel_events,
        events_lost,
    } = server.totals();
    p.set(Counter::Clients, server.sessions().count() as u64);
    p.set(Counter::ClientRequests, requests);
    p.set(Counter::AttachVersion, hellos_refused);
    p.set(Counter::DoorbellRings, rings);
    p.set(Counter::PostedSends, sends);
    p.set(Counter::PostedReceives, receives);
    p.set(Counter::Completions, completions);
    p.set(Counter::CompletionsLost, completions_lost);
    p.set(Counter::CompletionEvents, channel_events);
    p.set(Counter::EventsLost, events_lost);
    let RefusalCounters { unknown, busy, limit, not_permitted, invalid, system } = refused;
    p.set(Counter::RefusedUnknown, unknown);
    p.set(Counter::RefusedBusy, busy);
    p.set(Counter::RefusedLimit, limit);
    p.set(Counter::RefusedNotPermitted, not_permitted);
    p.set(Counter::RefusedInvalid, invalid);
    p.set(Counter::RefusedSystem, system);
    let BadWorkCounters { malformed, state, queue_full, invalid } = bad_work_requests;
    p.set(Counter::BadWorkMalformed, malformed);
    p.set(Counter::BadWorkState, state);
    p.set(Counter::BadWorkQueueFull, queue_full);
    p.set(Counter::BadWorkInvalid, invalid);
}

fn publish_events(p: &mut Publisher, c: &EventCounters) {
    let EventCounters {
        cq_err,
        qp_fatal,
        qp_req_err,
        qp_access_err,
        comm_est,
        sq_drained,
        qp_last_wqe_reached,
        srq_limit_reached,
        port_active,
        port_err,
    } = *c;
    p.set(Counter::EventCqErr, cq_err);
    p.set(Counter::EventQpFatal, qp_fatal);
    p.set(Counter::EventQpReqErr, qp_req_err);
    p.set(Counter::EventQpAccessErr, qp_access_err);
    p.set(Counter::EventCommEst, comm_est);
    p.set(Counter::EventSqDrained, sq_drained);
    p.set(Counter::EventQpLastWqeReached, qp_last_wqe_reached);
    p.set(Counter::EventSrqLimitReached, srq_limit_reached);
    p.set(Counter::EventPortActive, port_active);
    p.set(Counter::EventPortErr, port_err);
}
