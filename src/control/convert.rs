//! From the values of [`view`] to the messages on the wire, and back.
//!
//! Each message lists its fields once ([`mirror`]); the two directions follow from the types.

use super::{proto, view};
use std::net::IpAddr;
use std::path::PathBuf;
use thiserror::Error;

/// A message that this version does not understand; the daemon and the command are of different versions.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("the daemon's answer has an unknown {what}: {value}")]
pub struct UnknownValue {
    /// The kind of value.
    pub what: &'static str,
    /// What was found.
    pub value: String,
}

/// A value with a form `P` on the wire.
pub(super) trait Wire<P>: Sized {
    fn to_wire(self) -> P;
    fn from_wire(p: P) -> Result<Self, UnknownValue>;
}

/// The same on both sides.
macro_rules! plain {
    ($($t:ty),+) => { $(
        impl Wire<$t> for $t {
            fn to_wire(self) -> $t { self }
            fn from_wire(p: $t) -> Result<Self, UnknownValue> { Ok(p) }
        }
    )+ };
}
plain!(bool, u32, u64, f64, String);

/// Narrower than protobuf's smallest integer.
macro_rules! narrow {
    ($($t:ty),+) => { $(
        impl Wire<u32> for $t {
            fn to_wire(self) -> u32 { u32::from(self) }
            fn from_wire(p: u32) -> Result<Self, UnknownValue> {
                p.try_into().map_err(|_| UnknownValue { what: stringify!($t), value: p.to_string() })
            }
        }
    )+ };
}
narrow!(u8, u16);

impl Wire<String> for IpAddr {
    fn to_wire(self) -> String {
        self.to_string()
    }
    fn from_wire(p: String) -> Result<Self, UnknownValue> {
        p.parse().map_err(|_| UnknownValue { what: "address", value: p })
    }
}

impl Wire<String> for PathBuf {
    fn to_wire(self) -> String {
        self.to_string_lossy().into_owned()
    }
    fn from_wire(p: String) -> Result<Self, UnknownValue> {
        Ok(p.into())
    }
}

impl<P, V: Wire<P>> Wire<Vec<P>> for Vec<V> {
    fn to_wire(self) -> Vec<P> {
        self.into_iter().map(Wire::to_wire).collect()
    }
    fn from_wire(p: Vec<P>) -> Result<Self, UnknownValue> {
        p.into_iter().map(Wire::from_wire).collect()
    }
}

impl<P, V: Wire<P>> Wire<Option<P>> for Option<V> {
    fn to_wire(self) -> Option<P> {
        self.map(Wire::to_wire)
    }
    fn from_wire(p: Option<P>) -> Result<Self, UnknownValue> {
        p.map(Wire::from_wire).transpose()
    }
}

/// A message whose fields have the names of the view's. As a field of another message it is always there.
macro_rules! mirror {
    ($(struct $name:ident = $message:ident { $($field:ident),+ $(,)? })+) => { $(
        impl Wire<proto::$message> for view::$name {
            fn to_wire(self) -> proto::$message {
                proto::$message { $($field: self.$field.to_wire()),+ }
            }
            fn from_wire(p: proto::$message) -> Result<Self, UnknownValue> {
                Ok(Self { $($field: Wire::from_wire(p.$field)?),+ })
            }
        }
        impl Wire<Option<proto::$message>> for view::$name {
            fn to_wire(self) -> Option<proto::$message> { Some(self.to_wire()) }
            fn from_wire(p: Option<proto::$message>) -> Result<Self, UnknownValue> {
                let missing = UnknownValue { what: stringify!($message), value: "nothing".into() };
                Wire::from_wire(p.ok_or(missing)?)
            }
        }
    )+ };
    ($(enum $name:ident { $($variant:ident),+ $(,)? })+) => { $(
        impl Wire<i32> for view::$name {
            fn to_wire(self) -> i32 {
                let p = match self { $(Self::$variant => proto::$name::$variant),+ };
                p.into()
            }
            fn from_wire(p: i32) -> Result<Self, UnknownValue> {
                match proto::$name::try_from(p) {
                    $(Ok(proto::$name::$variant) => Ok(Self::$variant),)+
                    Ok(proto::$name::Unspecified) | Err(_) => {
                        Err(UnknownValue { what: stringify!($name), value: p.to_string() })
                    }
                }
            }
        }
    )+ };
}

mirror! {
    enum QpKind { Rc, Uc, Ud, Gsi }
    enum QpState { Reset, Init, Rtr, Rts, Sqd, Sqe, Error }
    enum Wait { Dark, Congestion, Rnr, Loss, Ack, Credit, Window, Reads, Fence, Stopped, Application }
    enum Backing { Shared, Process }
    enum PathState { Lit, Draining, Suspect, Dark, Thawing, Lost }
    enum DarkCause { Announced, Carrier, Silence }
}

mirror! {
    struct Status = GetStatusResponse { device, uptime_ns, workers, clients, counters, completion_latency }
    struct Device = Device {
        name, version, pid, config, interface, link_up, link_mtu_bytes, active_mtu_bytes, gids, backend, driver, notes,
        segmentation_offload,
    }
    struct Gid = Gid { index, address }
    struct Worker = Worker { index, cpu, queue_pairs, memory_regions, registered_bytes, problem }
    struct Client = Client {
        pid, uid, command, worker, queue_pairs, memory_regions, registered_bytes, attached_ns,
    }
    struct CounterValue = CounterValue { name, label, label_value, value }
    struct Percentiles = Percentiles { count, p50_ns, p99_ns, p999_ns }
    struct QueuePair = QueuePair {
        qpn, kind, state, worker, client_pid, protection_domain, send_cq, receive_cq, shared_receive_queue, peer,
        path_mtu_bytes, ack_timeout_ns, retry_count, retries_left, rnr_retry, rnr_retries_left, min_rnr_timer_ns,
        max_rd_atomic, max_dest_rd_atomic, send_psn, unacknowledged_psn, expected_psn, msn, send_queue, receive_queue,
        waits_for, waited_ns, wait_ends_in_ns, failure, congestion, counters,
    }
    struct Congestion = Congestion {
        rate_bps, target_bps, alpha_millionths, is_limited, marked_packets, cnps_sent, cnps_received,
    }
    struct Depth = Depth { posted, capacity }
    struct Peer = Peer { address, qpn, source_port, traffic_class, hop_limit }
    struct QpCounters = QpCounters {
        sent_packets, sent_bytes, received_packets, received_bytes, retransmitted_packets, ack_timeouts, acks_sent, sequence_naks_received, rnr_naks_received, implied_naks, read_requests, write_requests, atomic_requests, duplicate_requests, out_of_sequence_packets, out_of_buffer, dropped_packets, send_errors, send_flushed, receive_errors, receive_flushed,
    }
    struct Circuit = Circuit { label, rate_bps, rtt_ns, mtu_bytes, hold_max_ns }
    struct Path = Path {
        peer, worker, state, cause, for_ns, queue_pairs, hold_max_ns, circuit, moves, darks, dark_ns, last_dark_ns, lost,
        is_holdfast,
    }
    struct PathNews = PathNews { peer, worker, state, cause, dark_ns, lost_queue_pairs, at_unix_ns }
    struct MemoryRegion = MemoryRegion {
        slot, worker, client_pid, protection_domain, iova, length_bytes, access, backing,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_survives_the_wire() {
        let qp = view::QueuePair {
            qpn: 17,
            kind: view::QpKind::Uc,
            state: view::QpState::Sqd,
            shared_receive_queue: Some(0),
            peer: Some(view::Peer {
                address: "2001:db8::1".parse().unwrap(),
                qpn: 0x00ff_ffff,
                source_port: 0xc000,
                traffic_class: 26 << 2,
                hop_limit: 64,
            }),
            waits_for: Some(view::Wait::Credit),
            congestion: Some(view::Congestion { rate_bps: u64::MAX, is_limited: true, ..Default::default() }),
            counters: view::QpCounters { sent_bytes: u64::MAX, ..Default::default() },
            ..Default::default()
        };
        let wire: proto::QueuePair = qp.clone().to_wire();
        assert_eq!(view::QueuePair::from_wire(wire).unwrap(), qp);
    }

    #[test]
    fn what_this_version_does_not_know_is_named() {
        let qp = proto::QueuePair { kind: 99, state: 1, ..Default::default() };
        let unknown = view::QueuePair::from_wire(qp).unwrap_err();
        assert_eq!(unknown, UnknownValue { what: "QpKind", value: "99".into() });
        let unknown = view::Status::from_wire(proto::GetStatusResponse::default()).unwrap_err();
        assert_eq!(unknown.what, "Device");
        let peer = proto::Peer { address: "here".into(), ..Default::default() };
        assert_eq!(view::Peer::from_wire(peer).unwrap_err().what, "address");
        let port = proto::Peer { address: "::1".into(), source_port: 65536, ..Default::default() };
        assert_eq!(view::Peer::from_wire(port).unwrap_err().what, "u16");
    }
}
