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

/// Who counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scope {
    /// Each worker for itself: the metric has a label `worker`.
    Worker,
    /// The daemon as a whole.
    Daemon,
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
    /// Who counts them.
    pub scope: Scope,
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

/// Makes [`Counter`] and [`FAMILIES`] from one table. A family is each worker's if it does not say `of Daemon`.
macro_rules! catalogue {
    ($(
        $kind:ident $(of $scope:ident)? $name:literal $(by $label:literal)? : $help:literal { $($member:ident = $value:literal),+ $(,)? }
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

            /// The name of its family: the metric that shows it.
            pub const fn metric(self) -> &'static str {
                match self { $($(Self::$member => $name,)+)+ }
            }

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
                scope: catalogue!(@scope $($scope)?),
                label: catalogue!(@label $($label)?),
                members: &[$(Counter::$member,)+],
            },
        )+];
    };
    (@label $label:literal) => { Some($label) };
    (@label) => { None };
    (@scope $scope:ident) => { Scope::$scope };
    (@scope) => { Scope::Worker };
}

catalogue! {
    // The port.
    Counter "holdfast_received_packets_total": "RoCE packets taken from the port, good or not." { ReceivedPackets = "" }
    Counter "holdfast_received_bytes_total": "Bytes of RoCE packets taken from the port, from BTH to ICRC." { ReceivedBytes = "" }
    Counter "holdfast_transmitted_packets_total": "RoCE packets that the port took." { TransmittedPackets = "" }
    Counter "holdfast_transmitted_bytes_total": "Bytes of RoCE packets that the port took, from BTH to ICRC." { TransmittedBytes = "" }
    Counter "holdfast_port_calls_total" by "direction": "Receives from the kernel and sends to it, each of one packet or one super-packet." {
        PortReceives = "receive",
        PortSends = "transmit",
    }
    Counter "holdfast_transmit_backpressure_total": "Times that a send found the kernel's buffers full; the burst waits." { TransmitBackpressure = "" }
    Counter "holdfast_transmit_refused_bursts_total" by "reason": "Bursts that the kernel refused, by reason; to the transport they are lost." {
        TransmitTooLarge = "too_large",
        TransmitUnreachable = "unreachable",
        TransmitForbidden = "forbidden",
        TransmitOther = "other",
    }
    Counter "holdfast_kernel_dropped_packets_total": "Packets or super-packets that the kernel dropped because nobody took them in time." { KernelDropped = "" }
    Counter "holdfast_ecn_marked_packets_total": "Packets received with Congestion Experienced set." { EcnMarkedPackets = "" }
    Counter "holdfast_icrc_recovered_packets_total": "Good packets whose IP ID the port did not see and the ICRC gave away." { IcrcRecoveredPackets = "" }

    // Every received packet that went no further, under its reason.
    Counter "holdfast_dropped_packets_total" by "reason": "Received packets that were dropped, by reason." {
        DropTruncated = "truncated",
        DropMalformed = "malformed",
        DropFragment = "fragment",
        DropNotOurs = "not_ours",
        DropIcrc = "icrc",
        DropUnknownQp = "unknown_qp",
        DropWrongService = "wrong_service",
        DropWrongSource = "wrong_source",
        DropQpState = "qp_state",
        DropPkey = "pkey",
        DropQkey = "qkey",
        DropCnp = "cnp",
        DropHeartbeat = "heartbeat",
        DropGhost = "ghost",
        DropBadResponse = "bad_response",
        DropOutOfSequence = "out_of_sequence",
        DropStaleDuplicate = "stale_duplicate",
        DropMessageGap = "message_gap",
        DropInvalidUnreliable = "invalid_unreliable",
        DropNoReceive = "no_receive",
        DropReceiveTooShort = "receive_too_short",
        DropAccess = "access",
    }

    // The transport.
    Counter "holdfast_requests_executed_total" by "operation": "Requests of peers that were executed." {
        RequestRead = "read",
        RequestWrite = "write",
        RequestAtomic = "atomic",
    }
    Counter "holdfast_acknowledgements_sent_total": "Acknowledgements sent, READ responses not counted." { AcksSent = "" }
    Counter "holdfast_naks_sent_total" by "kind": "Requests of peers refused with a NAK that ends their queue pair." {
        NakRemoteAccessSent = "remote_access",
        NakInvalidRequestSent = "invalid_request",
    }
    Counter "holdfast_naks_received_total" by "kind": "NAKs received from peers." {
        NakSequenceReceived = "sequence",
        NakRnrReceived = "rnr",
        NakRemoteAccessReceived = "remote_access",
        NakInvalidRequestReceived = "invalid_request",
    }
    Counter "holdfast_retransmitted_packets_total": "Request packets sent again." { RetransmittedPackets = "" }
    Counter "holdfast_ack_timeouts_total": "Expiries of a requester's ACK timer." { AckTimeouts = "" }
    Counter "holdfast_implied_naks_total": "Answers that passed an unanswered READ or atomic, and so reported its loss." { ImpliedNaks = "" }
    Counter "holdfast_duplicate_requests_total": "Request packets received again." { DuplicateRequests = "" }
    Counter "holdfast_out_of_sequence_packets_total": "Request packets received beyond a gap." { OutOfSequencePackets = "" }
    Counter "holdfast_out_of_buffer_total": "Requests that found no receive posted: RNR NAKs sent, and datagrams dropped for it." { OutOfBuffer = "" }
    Counter "holdfast_receive_too_short_total": "Messages longer than the receive that was posted for them." { ReceiveTooShort = "" }
    Counter "holdfast_retries_exceeded_total" by "kind": "Requests given up because a retry budget was spent." {
        RetryExceeded = "ack",
        RnrRetryExceeded = "rnr",
    }
    Counter "holdfast_completion_errors_total" by "kind": "Completions in error, flushed ones apart." {
        SendErrors = "send",
        SendFlushed = "send_flushed",
        ReceiveErrors = "receive",
        ReceiveFlushed = "receive_flushed",
    }
    Counter "holdfast_cnps_sent_total": "Congestion notifications sent to peers whose packets came marked." { CnpsSent = "" }
    Counter "holdfast_cnps_received_total": "Congestion notifications for a queue pair, from its peer." { CnpsReceived = "" }
    Counter "holdfast_looped_packets_total": "Packets between two queue pairs of one worker, which no port saw." { LoopedPackets = "" }
    Counter "holdfast_local_messages_total": "Messages that two queue pairs of this daemon exchanged by one copy, without packets." { LocalMessages = "" }
    Counter "holdfast_local_bytes_total": "Bytes that two queue pairs of this daemon exchanged by one copy, without packets." { LocalBytes = "" }

    // The dark.
    Counter "holdfast_path_darks_total": "Times that a path to a peer went dark: announced, without a carrier, or silent." { PathDarks = "" }
    Seconds "holdfast_path_dark_seconds_total": "Time for which paths that have light again were dark." { PathDarkNs = "" }
    Counter "holdfast_path_probes_total": "Packets sent to find out whether a silent or dark path has light." { PathProbes = "" }
    Counter "holdfast_path_lost_queue_pairs_total": "Queue pairs that failed because their path was dark for longer than hold_max." { PathLostQueuePairs = "" }
    Gauge "holdfast_paths_dark": "Paths that are dark." { PathsDark = "" }

    // What exists now.
    Gauge "holdfast_queue_pairs": "Queue pairs that exist." { QueuePairs = "" }
    Gauge "holdfast_memory_regions": "Memory regions that are registered." { MemoryRegions = "" }
    Gauge "holdfast_registered_bytes": "Bytes in registered memory regions." { RegisteredBytes = "" }
    Gauge "holdfast_clients": "Programs attached." { Clients = "" }

    // The programs.
    Counter "holdfast_clients_attached_total": "Programs that attached." { ClientsAttached = "" }
    Counter "holdfast_clients_gone_total" by "reason": "Programs that left: by themselves or by dying, or expelled for breaking the protocol." {
        ClientsLeft = "left",
        ClientsExpelled = "expelled",
    }

    Counter of Daemon "holdfast_attach_refused_total" by "reason": "Programs that connected and were turned away, or had to wait for a descriptor, by reason." {
        AttachNotPermitted = "not_permitted",
        AttachTooMany = "too_many_clients",
        AttachWorkerBusy = "worker_busy",
        AttachNoDescriptors = "no_descriptors",
        AttachFailed = "failed",
        AttachVersion = "version",
    }
    Counter "holdfast_client_requests_total": "Requests of programs over their sockets: to make, change and remove objects." { ClientRequests = "" }
    Counter "holdfast_client_requests_refused_total" by "reason": "Requests of programs that were refused, by reason." {
        RefusedUnknown = "unknown_object",
        RefusedBusy = "busy",
        RefusedLimit = "limit",
        RefusedNotPermitted = "not_permitted",
        RefusedInvalid = "invalid",
        RefusedSystem = "system",
    }
    Counter "holdfast_doorbells_total" by "kind": "Doorbells: rings of queues found in shared memory, and wake-ups of a worker that slept." {
        DoorbellRings = "ring",
        DoorbellWakes = "wake",
    }
    Counter "holdfast_work_requests_total" by "queue": "Work requests of programs that were posted." {
        PostedSends = "send",
        PostedReceives = "receive",
    }
    Counter "holdfast_work_requests_refused_total" by "reason": "Work requests of programs that were not posted, by reason." {
        BadWorkMalformed = "malformed",
        BadWorkState = "qp_state",
        BadWorkQueueFull = "queue_full",
        BadWorkInvalid = "invalid",
    }
    Counter "holdfast_completions_total": "Completions handed to programs." { Completions = "" }
    Counter "holdfast_completions_lost_total": "Completions for which a program's completion queue had no room: its queue pairs failed." { CompletionsLost = "" }
    Counter "holdfast_completion_events_total": "Events written to completion channels." { CompletionEvents = "" }
    Counter "holdfast_async_events_total" by "kind": "Asynchronous events (ibv_event_type), by kind." {
        EventCqErr = "cq_err",
        EventQpFatal = "qp_fatal",
        EventQpReqErr = "qp_req_err",
        EventQpAccessErr = "qp_access_err",
        EventCommEst = "comm_est",
        EventSqDrained = "sq_drained",
        EventQpLastWqeReached = "qp_last_wqe_reached",
        EventSrqLimitReached = "srq_limit_reached",
        EventPortActive = "port_active",
        EventPortErr = "port_err",
    }
    Counter "holdfast_events_lost_total": "Events that a program did not read in time: its pipe was full." { EventsLost = "" }

    // The daemon as a whole.
    Counter of Daemon "holdfast_control_refused_total": "Connections to the control socket by users who may not ask." { ControlRefused = "" }
    Counter of Daemon "holdfast_settings_reloads_total" by "result": "Reloads of the settings: applied, or refused for what stands in the file." {
        ReloadApplied = "applied",
        ReloadRefused = "refused",
    }

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
            assert!(family.members.iter().all(|c| c.metric() == family.name), "{}", family.name);
            let values: HashSet<_> = family.members.iter().map(|c| c.label_value()).collect();
            assert_eq!(values.len(), family.members.len(), "{}", family.name);
            match family.label {
                None => assert_eq!(family.members.len(), 1, "{}", family.name),
                Some(_) => assert!(!values.contains(""), "{}", family.name),
            }
        }
    }
}
