//! The table of all counters.

/// How a counter's value moves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A running total: only grows while the daemon lives.
    Counter,
    /// A running total kept in nanoseconds and shown in seconds.
    Seconds,
    /// A level that goes up and down.
    Gauge,
}

/// Counters that share a metric's name and differ in one label.
#[derive(Debug)]
pub struct Family {
    /// The metric's name, in base units.
    pub name: &'static str,
    /// What the metric says, for its HELP line.
    pub help: &'static str,
    /// How its values move.
    pub kind: Kind,
    /// The label that tells the members apart; `None` if there is only one.
    pub label: Option<&'static str>,
    /// The members.
    pub members: &'static [Counter],
}

impl Family {
    /// How many of a value's units make one unit of the metric (a [`Kind::Seconds`] value is kept in nanoseconds).
    pub const fn unit(&self) -> f64 {
        match self.kind {
            Kind::Seconds => 1e9,
            Kind::Counter | Kind::Gauge => 1.0,
        }
    }
}

/// Makes [`Counter`] and [`FAMILIES`] from one table. A family without a label has the one member `_`.
macro_rules! catalogue {
    ($(
        $kind:ident $name:literal $(by $label:literal)? : $help:literal { $($member:ident = $value:literal),+ $(,)? }
    )+) => {
        /// One published number. The table beside says what it means.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[repr(usize)]
        pub enum Counter {
            $($(
                #[doc = concat!("`", $name, "` (", $value, "): ", $help)]
                $member,
            )+)+
        }

        impl Counter {
            /// All of them, in the table's order.
            pub const ALL: &'static [Self] = &[$($(Self::$member,)+)+];
            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The value of its family's label; empty if the family has none.
            pub const fn label_value(self) -> &'static str {
                match self { $($(Self::$member => $value,)+)+ }
            }
        }

        /// Every counter, grouped by the metric that shows it.
        pub static FAMILIES: &[Family] = &[$(
            Family {
                name: $name,
                help: $help,
                kind: Kind::$kind,
                label: catalogue!(@label $($label)?),
                members: &[$(Counter::$member,)+],
            },
        )+];
    };
    (@label $label:literal) => { Some($label) };
    (@label) => { None };
}

catalogue! {
    // The port.
    Counter "holdfast_received_packets_total": "RoCE packets taken from the port, good or not." { ReceivedPackets = "" }
    Counter "holdfast_received_bytes_total": "Bytes of RoCE packets taken from the port, from BTH to ICRC." { ReceivedBytes = "" }
    Counter "holdfast_transmitted_packets_total": "RoCE packets handed to the port." { TransmittedPackets = "" }
    Counter "holdfast_transmitted_bytes_total": "Bytes of RoCE packets handed to the port, from BTH to ICRC." { TransmittedBytes = "" }
    Counter "holdfast_transmit_errors_total" by "reason": "Bursts that the kernel did not take, by reason; their packets are sent again later." {
        TransmitBusy = "busy",
        TransmitUnreachable = "unreachable",
        TransmitTooLarge = "too_large",
        TransmitRefused = "refused",
        TransmitOther = "other",
    }
    Counter "holdfast_kernel_dropped_packets_total": "Packets that the kernel dropped because the port's receive buffer was full." { KernelDroppedPackets = "" }
    Counter "holdfast_ecn_marked_packets_total": "Packets received with Congestion Experienced set." { EcnMarkedPackets = "" }
    Counter "holdfast_icrc_recovered_packets_total": "Good packets whose IP ID the port did not see and the ICRC gave away." { IcrcRecoveredPackets = "" }
    Gauge "holdfast_link_up": "Whether the interface has carrier (1) or not (0)." { LinkUp = "" }
    Counter "holdfast_link_downed_total": "Times that the interface lost its carrier." { LinkDowned = "" }

    // Every received packet that went no further, under its reason.
    Counter "holdfast_dropped_packets_total" by "reason": "Received packets that were dropped, by reason." {
        DropMalformed = "malformed",
        DropFragment = "fragment",
        DropIcrc = "icrc",
        DropNotOurs = "not_ours",
        DropOpcode = "opcode",
        DropUnknownQp = "unknown_qp",
        DropWrongService = "wrong_service",
        DropWrongSource = "wrong_source",
        DropQpState = "qp_state",
        DropPkey = "pkey",
        DropQkey = "qkey",
        DropStale = "stale",
        DropOutOfSequence = "out_of_sequence",
        DropNoReceive = "no_receive",
        DropLength = "length",
        DropAccess = "access",
        DropMad = "mad",
        DropCnp = "cnp",
    }

    // The transport.
    Counter "holdfast_requests_received_total" by "operation": "Requests that a peer began and a responder accepted." {
        RequestSend = "send",
        RequestWrite = "write",
        RequestRead = "read",
        RequestAtomic = "atomic",
    }
    Counter "holdfast_acknowledgements_sent_total" by "kind": "Acknowledgements sent by responders." {
        AckSent = "ack",
        RnrNakSent = "rnr_nak",
        NakSequenceSent = "nak_sequence",
        NakInvalidRequestSent = "nak_invalid_request",
        NakRemoteAccessSent = "nak_remote_access",
        NakRemoteOperationalSent = "nak_remote_operational",
    }
    Counter "holdfast_acknowledgements_received_total" by "kind": "Acknowledgements taken by requesters." {
        AckReceived = "ack",
        RnrNakReceived = "rnr_nak",
        NakSequenceReceived = "nak_sequence",
        NakInvalidRequestReceived = "nak_invalid_request",
        NakRemoteAccessReceived = "nak_remote_access",
        NakRemoteOperationalReceived = "nak_remote_operational",
    }
    Counter "holdfast_retransmitted_packets_total": "Packets sent more than once." { RetransmittedPackets = "" }
    Counter "holdfast_ack_timeouts_total": "Expiries of a requester's ACK timer." { AckTimeouts = "" }
    Counter "holdfast_implied_naks_total": "ACKs that passed an unanswered READ or atomic, and so reported its loss." { ImpliedNaks = "" }
    Counter "holdfast_duplicate_requests_total": "Request packets that had been executed before." { DuplicateRequests = "" }
    Counter "holdfast_send_completions_total" by "status": "Completions of send queues, signalled or in error, by status." {
        SendSuccess = "success",
        SendLocalLength = "local_length_error",
        SendLocalQpOperation = "local_qp_operation_error",
        SendLocalProtection = "local_protection_error",
        SendFlushed = "flushed",
        SendBadResponse = "bad_response",
        SendRemoteInvalidRequest = "remote_invalid_request",
        SendRemoteAccess = "remote_access_error",
        SendRemoteOperation = "remote_operation_error",
        SendRetryExceeded = "retry_exceeded",
        SendRnrRetryExceeded = "rnr_retry_exceeded",
        SendOther = "other",
    }
    Counter "holdfast_receive_completions_total" by "status": "Completions of receive queues, by status." {
        ReceiveSuccess = "success",
        ReceiveLocalLength = "local_length_error",
        ReceiveLocalProtection = "local_protection_error",
        ReceiveFlushed = "flushed",
        ReceiveAccess = "local_access_error",
        ReceiveOther = "other",
    }
    Counter "holdfast_async_events_total" by "event": "Asynchronous events raised that report an error." {
        EventQpFatal = "qp_fatal",
        EventQpRequest = "qp_request_error",
        EventQpAccess = "qp_access_error",
        EventCq = "cq_error",
        EventSrq = "srq_error",
    }
    Counter "holdfast_local_bytes_total": "Bytes copied straight between two QPs of this daemon, without packets." { LocalBytes = "" }

    // What exists now.
    Gauge "holdfast_queue_pairs" by "state": "Queue pairs that exist, by state." {
        QpsReset = "reset",
        QpsInit = "init",
        QpsRtr = "rtr",
        QpsRts = "rts",
        QpsSqd = "sqd",
        QpsSqe = "sqe",
        QpsError = "error",
    }
    Gauge "holdfast_memory_regions": "Memory regions that are registered." { MemoryRegions = "" }
    Gauge "holdfast_registered_bytes": "Bytes in registered memory regions." { RegisteredBytes = "" }
    Gauge "holdfast_clients": "Client processes attached." { Clients = "" }

    // The clients.
    Counter "holdfast_clients_attached_total": "Clients that attached." { ClientsAttached = "" }
    Counter "holdfast_clients_gone_total" by "reason": "Clients that left: by themselves, by dying, or expelled for breaking the protocol." {
        ClientsDetached = "detached",
        ClientsDied = "died",
        ClientsExpelled = "expelled",
    }
    Counter "holdfast_refused_requests_total" by "reason": "Requests of clients that were refused." {
        RefusedInvalid = "invalid",
        RefusedLimit = "limit",
        RefusedPermission = "permission",
    }
    Counter "holdfast_doorbells_total": "Wake-ups of a sleeping worker by a client's doorbell." { Doorbells = "" }

    // The worker thread.
    Counter "holdfast_worker_turns_total" by "kind": "Turns of the worker's loop that found work, or none." {
        TurnsBusy = "busy",
        TurnsIdle = "idle",
    }
    Seconds "holdfast_worker_asleep_seconds_total": "Time that the worker slept in the kernel, waiting for work." { AsleepNs = "" }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_counter_is_in_exactly_one_family_in_order() {
        let members: Vec<Counter> = FAMILIES.iter().flat_map(|f| f.members.iter().copied()).collect();
        assert_eq!(members, Counter::ALL);
        for (i, counter) in Counter::ALL.iter().enumerate() {
            assert_eq!(*counter as usize, i);
        }
    }

    #[test]
    fn names_follow_the_conventions_of_prometheus() {
        let mut names = HashSet::new();
        for family in FAMILIES {
            let name = family.name;
            assert!(names.insert(name), "{name} appears twice");
            assert!(name.starts_with("holdfast_"), "{name}");
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
            assert_eq!(name.ends_with("_total"), family.kind != Kind::Gauge, "{name}");
            assert_eq!(name.ends_with("_seconds_total"), family.kind == Kind::Seconds, "{name}");
            assert!(family.help.ends_with('.'), "{name}: {}", family.help);
        }
    }

    #[test]
    fn members_of_a_family_differ_in_their_label() {
        for family in FAMILIES {
            let values: HashSet<_> = family.members.iter().map(|c| c.label_value()).collect();
            assert_eq!(values.len(), family.members.len(), "{}", family.name);
            match family.label {
                None => assert_eq!(family.members.len(), 1, "{}", family.name),
                Some(_) => assert!(!values.contains(""), "{}", family.name),
            }
        }
    }
}
