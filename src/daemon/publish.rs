//! A worker's counters, published for the metrics.

use super::clients::Visits;
use crate::counters::{Counter, Distribution, Publisher};
use crate::engine::{DropReason, Engine};
use crate::io::{Port, PortCounters};
use crate::ipc::server::Server;
use crate::time::Duration;
use crate::transport::{Burst, QpCounters, Refusal};

/// What a worker keeps between two publications.
#[derive(Debug)]
pub(super) struct Publication {
    publisher: Publisher,
    turns_busy: u64,
    turns_idle: u64,
    asleep_ns: u64,
}

impl Publication {
    /// Publishes through `publisher`.
    pub(super) fn new(publisher: Publisher) -> Self {
        Self { publisher, turns_busy: 0, turns_idle: 0, asleep_ns: 0 }
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
        self.publisher.record(Distribution::ReceiveBurst, packets as u64);
    }

    /// A burst goes to the port.
    pub(super) fn handle_burst(&mut self, burst: &Burst) {
        self.publisher.record(Distribution::TransmitBurst, burst.packet_count() as u64);
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
        let received = port.counters();
        publish_port(p, &received);
        publish_drops(p, engine, &received);
        publish_transport(p, engine.totals());
        publish_engine(p, engine);
        publish_clients(p, server, visits);
    }
}

fn publish_port(p: &mut Publisher, c: &PortCounters) {
    p.set(Counter::ReceivedPackets, c.received_packets);
    p.set(Counter::ReceivedBytes, c.received_bytes);
    p.set(Counter::TransmittedPackets, c.transmitted_packets);
    p.set(Counter::TransmittedBytes, c.transmitted_bytes);
    p.set(Counter::TransmitBackpressure, c.backpressure);
    p.set(Counter::TransmitTooLarge, c.refused_too_large);
    p.set(Counter::TransmitUnreachable, c.refused_unreachable);
    p.set(Counter::TransmitForbidden, c.refused_forbidden);
    p.set(Counter::TransmitOther, c.refused_other);
    p.set(Counter::KernelDropped, c.kernel_dropped);
}

fn publish_drops(p: &mut Publisher, engine: &Engine, port: &PortCounters) {
    p.set(Counter::DropTruncated, port.dropped_truncated);
    p.set(Counter::DropFragment, port.dropped_fragment);
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
    p.set(Counter::LocalMessages, c.local_messages);
    p.set(Counter::LocalBytes, c.local_bytes);
    p.set(Counter::QueuePairs, engine.qp_count() as u64);
    let memory = engine.memory().total_usage();
    p.set(Counter::MemoryRegions, memory.regions.into());
    p.set(Counter::RegisteredBytes, memory.registered_bytes);
}

fn publish_clients(p: &mut Publisher, server: &Server, visits: Visits) {
    p.set(Counter::Clients, server.sessions().count() as u64);
    p.set(Counter::ClientsAttached, visits.attached);
    p.set(Counter::ClientsLeft, visits.detached + visits.died);
    p.set(Counter::ClientsExpelled, visits.expelled);
}
