//! What clients did, and what they were told.

use super::decode::BadRequest;
use crate::ipc::protocol::Refusal;
use crate::transport::{Event, PostError};

/// Makes a struct of running totals that can be added up.
macro_rules! totals {
    ($(#[$doc:meta])* struct $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)+
        }

        impl core::ops::AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)+
            }
        }
    };
}

totals! {
    /// What a client did since it attached; or all clients of a server since that was made.
    struct SessionCounters {
        /// Requests over the socket.
        requests: u64,
        /// Of those, refused.
        refused: RefusalCounters,
        /// Hellos refused: client and daemon speak no version that both know.
        hellos_refused: u64,
        /// Rings taken from doorbells: a queue has something new.
        rings: u64,
        /// Send requests posted.
        sends: u64,
        /// Receive requests posted.
        receives: u64,
        /// Work requests that were not posted.
        bad_work_requests: BadWorkCounters,
        /// Completions handed out.
        completions: u64,
        /// Completions for which there was no room.
        completions_lost: u64,
        /// Events written to completion channels.
        channel_events: u64,
        /// Events that found their pipe full.
        events_lost: u64,
    }
}

totals! {
    /// Requests refused, by reason.
    struct RefusalCounters {
        /// The client has no such object.
        unknown: u64,
        /// Other objects depend on it.
        busy: u64,
        /// It would have had more than it may.
        limit: u64,
        /// It may not do this.
        not_permitted: u64,
        /// The request made no sense.
        invalid: u64,
        /// The system had no descriptor, mapping or memory left.
        system: u64,
    }
}

impl RefusalCounters {
    pub(super) fn note(&mut self, refusal: &Refusal) {
        *match refusal {
            Refusal::Unknown { .. } => &mut self.unknown,
            Refusal::Busy { .. } => &mut self.busy,
            Refusal::Limit { .. } => &mut self.limit,
            Refusal::NotPermitted { .. } => &mut self.not_permitted,
            Refusal::Invalid { .. } => &mut self.invalid,
            Refusal::System { .. } => &mut self.system,
        } += 1;
    }

    /// All of them.
    pub const fn total(&self) -> u64 {
        self.unknown + self.busy + self.limit + self.not_permitted + self.invalid + self.system
    }
}

totals! {
    /// Work requests that were not posted, by reason.
    struct BadWorkCounters {
        /// What stood in the ring was no work request.
        malformed: u64,
        /// The queue pair is in a state that takes no posts. Nobody is told: an honest client asks first.
        state: u64,
        /// Its queue was full.
        queue_full: u64,
        /// It asked for what its queue pair does not do, or for more than its queue has room for.
        invalid: u64,
    }
}

impl BadWorkCounters {
    pub(super) fn note(&mut self, bad: &BadRequest) {
        *match bad {
            BadRequest::Count { .. } | BadRequest::Opcode(_) | BadRequest::Source => &mut self.malformed,
            BadRequest::Post(PostError::State(_)) => &mut self.state,
            BadRequest::Post(PostError::QueueFull { .. }) => &mut self.queue_full,
            BadRequest::Post(_) => &mut self.invalid,
        } += 1;
    }

    /// All of them.
    pub const fn total(&self) -> u64 {
        self.malformed + self.state + self.queue_full + self.invalid
    }
}

totals! {
    /// Asynchronous events, by kind, each counted once though many clients may hear of it.
    struct EventCounters {
        /// [`Event::CqErr`]
        cq_err: u64,
        /// [`Event::QpFatal`]
        qp_fatal: u64,
        /// [`Event::QpReqErr`]
        qp_req_err: u64,
        /// [`Event::QpAccessErr`]
        qp_access_err: u64,
        /// [`Event::CommEst`]
        comm_est: u64,
        /// [`Event::SqDrained`]
        sq_drained: u64,
        /// [`Event::QpLastWqeReached`]
        qp_last_wqe_reached: u64,
        /// [`Event::SrqLimitReached`]
        srq_limit_reached: u64,
        /// [`Event::PortActive`]
        port_active: u64,
        /// [`Event::PortErr`]
        port_err: u64,
    }
}

impl EventCounters {
    pub(super) fn note(&mut self, event: &Event) {
        *match event {
            Event::CqErr(_) => &mut self.cq_err,
            Event::QpFatal(_) => &mut self.qp_fatal,
            Event::QpReqErr(_) => &mut self.qp_req_err,
            Event::QpAccessErr(_) => &mut self.qp_access_err,
            Event::CommEst(_) => &mut self.comm_est,
            Event::SqDrained(_) => &mut self.sq_drained,
            Event::QpLastWqeReached(_) => &mut self.qp_last_wqe_reached,
            Event::SrqLimitReached(_) => &mut self.srq_limit_reached,
            Event::PortActive => &mut self.port_active,
            Event::PortErr => &mut self.port_err,
        } += 1;
    }
}
