//! What a queue pair counts.

/// Why a packet was dropped without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum Refusal {
    /// The QP does not receive in its state (IBTA 10.3.1).
    State,
    /// The packet comes from another address than the connection's peer.
    Source,
    /// The P_Keys do not match (IBTA 10.9.3).
    Pkey,
    /// The Q_Keys do not match (IBTA 10.2.5).
    Qkey,
    /// The opcode belongs to another service than the QP.
    Service,
    /// A response to nothing that is outstanding: a ghost of an earlier life of the QPN, or a late duplicate (IBTA 9.7.5.1).
    Ghost,
    /// A response whose headers make no sense: reserved syndrome, wrong length.
    BadResponse,
    /// A request out of order, after the one NAK of its gap (IBTA 9.7.5.1.4).
    OutOfSequence,
    /// A duplicate READ or atomic that is not among the last ones kept (IBTA 9.7.5.1.5).
    StaleDuplicate,
    /// An unreliable message with a hole (IBTA 9.8.2.2).
    MessageGap,
    /// An unreliable packet that breaks the rules of its message (IBTA 9.8.2.2).
    InvalidUnreliable,
    /// No receive for a datagram or an unreliable message (IBTA 9.8.3.2).
    NoReceive,
    /// A datagram longer than its receive.
    ReceiveTooShort,
    /// Memory did not allow an unreliable WRITE.
    Access,
}

impl Refusal {
    /// Every reason.
    pub const ALL: [Self; 14] = [
        Self::State,
        Self::Source,
        Self::Pkey,
        Self::Qkey,
        Self::Service,
        Self::Ghost,
        Self::BadResponse,
        Self::OutOfSequence,
        Self::StaleDuplicate,
        Self::MessageGap,
        Self::InvalidUnreliable,
        Self::NoReceive,
        Self::ReceiveTooShort,
        Self::Access,
    ];

    /// Its name as a metric's label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Source => "source",
            Self::Pkey => "pkey",
            Self::Qkey => "qkey",
            Self::Service => "service",
            Self::Ghost => "ghost",
            Self::BadResponse => "bad_response",
            Self::OutOfSequence => "out_of_sequence",
            Self::StaleDuplicate => "stale_duplicate",
            Self::MessageGap => "message_gap",
            Self::InvalidUnreliable => "invalid_unreliable",
            Self::NoReceive => "no_receive",
            Self::ReceiveTooShort => "receive_too_short",
            Self::Access => "access",
        }
    }
}

/// Counters of one queue pair, since its creation. Named after `hw_counters` of Linux where those exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpCounters {
    /// Packets built, answers included.
    pub sent_packets: u64,
    /// Payload bytes in them.
    pub sent_bytes: u64,
    /// Packets that were for this QP and well-formed.
    pub received_packets: u64,
    /// Payload bytes in them.
    pub received_bytes: u64,
    /// Request packets sent again.
    pub retransmitted_packets: u64,
    /// Acknowledgements sent (ACK, not READ responses).
    pub acks_sent: u64,
    /// READ requests executed.
    pub rx_read_requests: u64,
    /// WRITE requests executed.
    pub rx_write_requests: u64,
    /// Atomics executed.
    pub rx_atomic_requests: u64,
    /// Requests received again.
    pub duplicate_request: u64,
    /// Requests received beyond a gap.
    pub out_of_sequence: u64,
    /// Requests that found no receive: RNR NAKs sent, and datagrams dropped for it.
    pub out_of_buffer: u64,
    /// Sequence NAKs received.
    pub packet_seq_err: u64,
    /// Answers that passed an unanswered READ or atomic.
    pub implied_nak_seq_err: u64,
    /// RNR NAKs received.
    pub rnr_nak_retry_err: u64,
    /// Expiries of the ACK timer.
    pub local_ack_timeout_err: u64,
    /// Requests given up after `retry_count`.
    pub retry_exceeded_err: u64,
    /// Requests given up after `rnr_retry`.
    pub retry_rnr_exceeded_err: u64,
    /// Send completions with an error other than flush.
    pub req_cqe_error: u64,
    /// Send completions flushed.
    pub req_cqe_flush_error: u64,
    /// Receive completions with an error other than flush.
    pub resp_cqe_error: u64,
    /// Receive completions flushed.
    pub resp_cqe_flush_error: u64,
    /// NAK "remote access error" received.
    pub req_remote_access_errors: u64,
    /// NAK "invalid request" received.
    pub req_remote_invalid_request: u64,
    /// NAK "remote access error" sent.
    pub resp_remote_access_errors: u64,
    /// NAK "invalid request" sent.
    pub resp_invalid_requests: u64,
    /// Messages longer than their receive.
    pub resp_local_length_error: u64,
    /// Packets dropped, by reason, in the order of [`Refusal::ALL`].
    refused: [u32; Refusal::ALL.len()],
}

impl QpCounters {
    /// Packets dropped for `reason`.
    pub fn refused(&self, reason: Refusal) -> u32 {
        self.refused.get(reason as usize).copied().unwrap_or(0)
    }

    /// Adds what `now` has grown by since it was `before`.
    pub fn add_growth(&mut self, now: &Self, before: &Self) {
        macro_rules! grow {
            ($($field:ident)+) => { $( self.$field = self.$field.wrapping_add(now.$field.wrapping_sub(before.$field)); )+ };
        }
        grow!(
            sent_packets
            sent_bytes
            received_packets
            received_bytes
            retransmitted_packets
            acks_sent
            rx_read_requests
            rx_write_requests
            rx_atomic_requests
            duplicate_request
            out_of_sequence
            out_of_buffer
            packet_seq_err
            implied_nak_seq_err
            rnr_nak_retry_err
            local_ack_timeout_err
            retry_exceeded_err
            retry_rnr_exceeded_err
            req_cqe_error
            req_cqe_flush_error
            resp_cqe_error
            resp_cqe_flush_error
            req_remote_access_errors
            req_remote_invalid_request
            resp_remote_access_errors
            resp_invalid_requests
            resp_local_length_error
        );
        for ((sum, now), before) in self.refused.iter_mut().zip(now.refused).zip(before.refused) {
            *sum = sum.wrapping_add(now.wrapping_sub(before));
        }
    }

    pub(super) fn refuse(&mut self, reason: Refusal) -> Refusal {
        if let Some(n) = self.refused.get_mut(reason as usize) {
            *n = n.wrapping_add(1);
        }
        reason
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_name_and_a_counter_of_its_own() {
        let mut counters = QpCounters::default();
        for (n, reason) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, n);
            assert_eq!(Refusal::ALL.iter().filter(|r| r.name() == reason.name()).count(), 1);
            counters.refuse(reason);
            assert_eq!(counters.refused(reason), 1);
        }
    }
}
