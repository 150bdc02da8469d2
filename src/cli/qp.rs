//! `holdfast qp list` and `holdfast qp show`.

use super::Outcome;
use super::ask::{Ask, Listing, print_json};
use super::table::{Left, Right, Table, bytes, count, or_dash, time};
use crate::congestion::Bps;
use crate::control::client::Client;
use crate::control::view::{Congestion, Depth, QpKind, QpState, QueuePair, Wait};
use clap::{Subcommand, ValueEnum};
use serde::Serialize;
use std::io::{self, Write};

/// Show queue pairs.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// All queue pairs, one a line.
    List {
        #[command(flatten)]
        listing: Listing,
        /// Only those in this state.
        #[arg(long)]
        state: Option<State>,
    },
    /// Everything about one queue pair.
    Show {
        #[command(flatten)]
        ask: Ask,
        /// Its number, decimal or 0x hexadecimal.
        #[arg(value_parser = parse_qpn)]
        qpn: u32,
    },
}

/// A state as typed on the command line.
#[derive(Clone, Copy, ValueEnum)]
enum State {
    Reset,
    Init,
    Rtr,
    Rts,
    Sqd,
    Sqe,
    Error,
}

impl From<State> for QpState {
    fn from(state: State) -> Self {
        match state {
            State::Reset => Self::Reset,
            State::Init => Self::Init,
            State::Rtr => Self::Rtr,
            State::Rts => Self::Rts,
            State::Sqd => Self::Sqd,
            State::Sqe => Self::Sqe,
            State::Error => Self::Error,
        }
    }
}

fn parse_qpn(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    number.ok().filter(|n| *n < 1 << 24).ok_or_else(|| "a queue pair number is 0 to 16777215 (0xffffff)".into())
}

impl Args {
    pub(super) fn run(self) -> Outcome {
        match self.command {
            Command::List { listing, state } => {
                let state = state.map(QpState::from);
                let all = |client: Client| async move {
                    let mut qps = client.queue_pairs(usize::MAX).await?;
                    qps.retain(|q| state.is_none_or(|s| q.state == s));
                    Ok(qps)
                };
                listing.run(all, |qp| qp.client_pid, write_list)
            }
            Command::Show { ask, qpn } => {
                let qp = ask.run(|client| async move { client.queue_pair(qpn).await })?;
                if ask.json { print_json(&qp) } else { Ok(write_one(&mut io::stdout().lock(), &qp)?) }
            }
        }
    }
}

/// The name that the JSON has, too.
pub(super) fn name(value: &(impl Serialize + Copy)) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}

pub(super) fn kind(kind: QpKind) -> String {
    name(&kind).to_uppercase()
}

pub(super) fn state(state: QpState) -> String {
    name(&state).to_uppercase()
}

pub(super) fn peer(qp: &QueuePair) -> String {
    or_dash(qp.peer.map(|p| p.address))
}

pub(super) fn waits_for(wait: Option<Wait>) -> String {
    or_dash(wait.map(|w| name(&w)))
}

/// Why it does not send, in a sentence.
fn why(q: &QueuePair) -> String {
    let until = |what: &str| q.wait_ends_in_ns.map(|ns| format!("; {what} in {}", time(ns))).unwrap_or_default();
    let since = || q.waited_ns.map(|ns| format!(" for {}", time(ns))).unwrap_or_default();
    let retries = || format!("{}{}", until("sends again"), budget("retries", q.retries_left, q.retry_count));
    let Some(wait) = q.waits_for else {
        return match q.state {
            QpState::Rts | QpState::Sqd => "nothing: it sends".into(),
            QpState::Error | QpState::Sqe => "nothing more: it has failed".into(),
            QpState::Reset | QpState::Init | QpState::Rtr => {
                format!("its program: {} does not send, RTS does", state(q.state))
            }
        };
    };
    match wait {
        Wait::Dark => "light: its path is dark".into(),
        Wait::Congestion => {
            let rate = q.congestion.map_or_else(String::new, |c| format!(" to {}", Bps::from_bps(c.rate_bps)));
            format!("its rate, which congestion control has lowered{rate}{}", until("sends again"))
        }
        Wait::Rnr => {
            let left =
                if q.rnr_retry == 7 { String::new() } else { budget("RNR retries", q.rnr_retries_left, q.rnr_retry) };
            format!("the peer to post a receive (RNR NAK){}{left}", until("asks again"))
        }
        Wait::Loss => format!("what was lost to arrive; no answer{}{}", since(), retries()),
        Wait::Ack => format!("the peer's answer (ACK){}{}", since(), retries()),
        Wait::Credit => "credit: the peer has posted too few receives".into(),
        Wait::Window => {
            format!("the window: {} packets are in flight, no answer{}{}", in_flight(q), since(), retries())
        }
        Wait::Reads => format!("READs and atomics in flight: max_rd_atomic allows {}", q.max_rd_atomic),
        Wait::Fence => "READs and atomics in flight: the next request has a fence".into(),
        Wait::Stopped => "its program: the send queue is stopped (SQD)".into(),
        Wait::Application => "its program: nothing is posted".into(),
    }
}

fn budget(what: &str, left: u32, of: u32) -> String {
    format!(", {left} of {of} {what} left")
}

/// How congestion control sees it.
fn congestion(c: &Congestion) -> String {
    let bps = Bps::from_bps;
    let rate = match c.is_limited {
        true => format!(
            "{} on the way to {}, alpha {:.3}",
            bps(c.rate_bps),
            bps(c.target_bps),
            f64::from(c.alpha_millionths) / 1e6
        ),
        false => "not limited".into(),
    };
    let (received, sent, marked) = (count(c.cnps_received), count(c.cnps_sent), count(c.marked_packets));
    format!("{rate}; {received} CNPs received, {sent} sent for {marked} marked packets")
}

/// How full the receive queue is, and whether the peer suffers for it.
fn receives(q: &QueuePair) -> String {
    if let Some(srq) = q.shared_receive_queue {
        return format!("shared receive queue {srq}");
    }
    let Depth { posted, capacity } = q.receive_queue;
    match (posted, q.counters.out_of_buffer) {
        (1.., _) | (0, 0) => format!("{posted} of {capacity} posted"),
        (0, n) => format!("0 of {capacity} posted: the peer's sends find none ({} so far)", count(n)),
    }
}

fn in_flight(qp: &QueuePair) -> u32 {
    qp.send_psn.wrapping_sub(qp.unacknowledged_psn) & 0x00ff_ffff
}

fn write_list(out: &mut dyn Write, qps: &[QueuePair]) -> io::Result<()> {
    let mut table = Table::new(&[
        ("QPN", Right),
        ("TYPE", Left),
        ("STATE", Left),
        ("PEER", Left),
        ("PEER-QPN", Right),
        ("MTU", Right),
        ("SENDS", Right),
        ("RECEIVES", Right),
        ("IN-FLIGHT", Right),
        ("AGAIN", Right),
        ("WAITS-FOR", Left),
        ("PID", Right),
    ]);
    for q in qps {
        table.row([
            q.qpn.to_string(),
            kind(q.kind),
            state(q.state),
            peer(q),
            or_dash(q.peer.map(|p| p.qpn)),
            q.path_mtu_bytes.to_string(),
            q.send_queue.posted.to_string(),
            q.receive_queue.posted.to_string(),
            in_flight(q).to_string(),
            q.counters.retransmitted_packets.to_string(),
            waits_for(q.waits_for),
            q.client_pid.to_string(),
        ]);
    }
    if table.is_empty() { writeln!(out, "no queue pairs") } else { table.write(out) }
}

fn write_one(out: &mut dyn Write, q: &QueuePair) -> io::Result<()> {
    let mut line = |name: &str, text: String| writeln!(out, "{name:<15} {text}");
    line("queue pair", format!("{} ({:#08x}), {}, {}", q.qpn, q.qpn, kind(q.kind), state(q.state)))?;
    line("owner", format!("process {}, worker {}, PD {}", q.client_pid, q.worker, q.protection_domain))?;
    if let Some(p) = q.peer {
        line("peer", format!("{} QPN {} ({:#08x})", p.address, p.qpn, p.qpn))?;
        let class = format!("DSCP {}, ECN {}", p.traffic_class >> 2, p.traffic_class & 3);
        line(
            "path",
            format!("UDP source port {}, {class}, hop limit {}, MTU {}", p.source_port, p.hop_limit, q.path_mtu_bytes),
        )?;
    }
    if let Some(failure) = &q.failure {
        line("failed by", failure.clone())?;
    }
    line("waits for", why(q))?;
    if let Some(c) = q.congestion {
        line("congestion", congestion(&c))?;
    }
    line("queues", format!("send CQ {}, receive CQ {}", q.send_cq, q.receive_cq))?;
    line("send queue", format!("{} of {} posted", q.send_queue.posted, q.send_queue.capacity))?;
    line("receive queue", receives(q))?;
    line(
        "requester PSN",
        format!("next {}, oldest unacknowledged {}, {} in flight", q.send_psn, q.unacknowledged_psn, in_flight(q)),
    )?;
    line("responder PSN", format!("expected {}, MSN {}", q.expected_psn, q.msn))?;
    let never = |ns| if ns == 0 { "never".into() } else { time(ns) };
    line("retries", format!("{} of {} left, ACK timeout {}", q.retries_left, q.retry_count, never(q.ack_timeout_ns)))?;
    let rnr =
        if q.rnr_retry == 7 { "no limit".into() } else { format!("{} of {} left", q.rnr_retries_left, q.rnr_retry) };
    line("RNR retries", format!("{rnr}, asks peers to wait {}", time(q.min_rnr_timer_ns)))?;
    line("READ, atomic", format!("{} outstanding at most, {} from the peer", q.max_rd_atomic, q.max_dest_rd_atomic))?;
    let c = &q.counters;
    line("sent", format!("{} packets, {}", count(c.sent_packets), bytes(c.sent_bytes)))?;
    line("received", format!("{} packets, {}", count(c.received_packets), bytes(c.received_bytes)))?;
    line("sent again", format!("{} packets, {} ACK timeouts", count(c.retransmitted_packets), count(c.ack_timeouts)))?;
    line(
        "NAKs received",
        format!("{} sequence, {} RNR, {} implied", c.sequence_naks_received, c.rnr_naks_received, c.implied_naks),
    )?;
    line(
        "peer's requests",
        format!(
            "{} READs, {} WRITEs, {} atomics; {} duplicate, {} out of sequence, {} without a receive",
            c.read_requests,
            c.write_requests,
            c.atomic_requests,
            c.duplicate_requests,
            c.out_of_sequence_packets,
            c.out_of_buffer
        ),
    )?;
    line("ACKs sent", count(c.acks_sent))?;
    line("dropped", format!("{} packets", count(c.dropped_packets)))?;
    line(
        "in error",
        format!(
            "{} sends ({} flushed), {} receives ({} flushed)",
            c.send_errors, c.send_flushed, c.receive_errors, c.receive_flushed
        ),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::control::view::Peer;

    fn queue_pair() -> QueuePair {
        QueuePair {
            qpn: 17,
            state: QpState::Rts,
            peer: Some(Peer {
                address: "198.18.0.2".parse().unwrap(),
                qpn: 0x2a,
                source_port: 49_200,
                traffic_class: 0x6a,
                hop_limit: 64,
            }),
            path_mtu_bytes: 4096,
            send_psn: 2,
            unacknowledged_psn: 0x00ff_fffe,
            send_queue: Depth { posted: 4, capacity: 128 },
            waits_for: Some(Wait::Window),
            waited_ns: Some(3_000_000),
            wait_ends_in_ns: Some(64_108_864),
            retry_count: 7,
            retries_left: 6,
            client_pid: 4711,
            rnr_retry: 7,
            ..Default::default()
        }
    }

    #[test]
    fn numbers_are_read_in_both_bases_and_checked() {
        assert_eq!((parse_qpn("17"), parse_qpn("0x11")), (Ok(17), Ok(17)));
        assert!(parse_qpn("16777216").is_err() && parse_qpn("x").is_err() && parse_qpn("-1").is_err());
    }

    #[test]
    fn a_list_has_one_aligned_line_a_queue_pair() {
        let mut out = Vec::new();
        write_list(&mut out, &[queue_pair(), QueuePair { qpn: 1_000_001, ..Default::default() }]).unwrap();
        insta::assert_snapshot!(String::from_utf8(out).unwrap(), @r"
            QPN  TYPE  STATE  PEER        PEER-QPN   MTU  SENDS  RECEIVES  IN-FLIGHT  AGAIN  WAITS-FOR   PID
             17  RC    RTS    198.18.0.2        42  4096      4         0          4      0  window     4711
        1000001  RC    RESET  -                  -     0      0         0          0      0  -             0
        ");
    }

    #[test]
    fn one_queue_pair_is_shown_whole() {
        let mut out = Vec::new();
        write_one(&mut out, &queue_pair()).unwrap();
        insta::assert_snapshot!(String::from_utf8(out).unwrap(), @r"
        queue pair      17 (0x000011), RC, RTS
        owner           process 4711, worker 0, PD 0
        peer            198.18.0.2 QPN 42 (0x00002a)
        path            UDP source port 49200, DSCP 26, ECN 2, hop limit 64, MTU 4096
        waits for       the window: 4 packets are in flight, no answer for 3 ms; sends again in 64.1 ms, 6 of 7 retries left
        queues          send CQ 0, receive CQ 0
        send queue      4 of 128 posted
        receive queue   0 of 0 posted
        requester PSN   next 2, oldest unacknowledged 16777214, 4 in flight
        responder PSN   expected 0, MSN 0
        retries         6 of 7 left, ACK timeout never
        RNR retries     no limit, asks peers to wait 0 ns
        READ, atomic    0 outstanding at most, 0 from the peer
        sent            0 packets, 0 B
        received        0 packets, 0 B
        sent again      0 packets, 0 ACK timeouts
        NAKs received   0 sequence, 0 RNR, 0 implied
        peer's requests 0 READs, 0 WRITEs, 0 atomics; 0 duplicate, 0 out of sequence, 0 without a receive
        ACKs sent       0
        dropped         0 packets
        in error        0 sends (0 flushed), 0 receives (0 flushed)
        ");
    }

    #[test]
    fn every_wait_is_a_sentence() {
        let in_state = |state| why(&QueuePair { state, waits_for: None, ..queue_pair() });
        assert_eq!(in_state(QpState::Rtr), "its program: RTR does not send, RTS does");
        assert_eq!(in_state(QpState::Error), "nothing more: it has failed");
        let with = |wait| why(&QueuePair { waits_for: Some(wait), rnr_retry: 6, rnr_retries_left: 5, ..queue_pair() });
        assert_eq!(
            with(Wait::Rnr),
            "the peer to post a receive (RNR NAK); asks again in 64.1 ms, 5 of 6 RNR retries left"
        );
        assert_eq!(with(Wait::Ack), "the peer's answer (ACK) for 3 ms; sends again in 64.1 ms, 6 of 7 retries left");
        let no_timer = QueuePair { waits_for: Some(Wait::Rnr), wait_ends_in_ns: None, waited_ns: None, ..queue_pair() };
        assert_eq!(why(&no_timer), "the peer to post a receive (RNR NAK)", "for ever");
    }

    #[test]
    fn a_receiver_without_receives_says_who_suffers() {
        let lacking = |out_of_buffer| {
            let mut q = QueuePair { receive_queue: Depth { posted: 0, capacity: 16 }, ..queue_pair() };
            q.counters.out_of_buffer = out_of_buffer;
            q
        };
        assert_eq!(receives(&lacking(0)), "0 of 16 posted");
        assert_eq!(receives(&lacking(3)), "0 of 16 posted: the peer's sends find none (3 so far)");
        let shared = QueuePair { shared_receive_queue: Some(2), ..lacking(0) };
        assert_eq!(receives(&shared), "shared receive queue 2");
    }

    #[test]
    fn without_queue_pairs_the_list_says_so() {
        let mut out = Vec::new();
        write_list(&mut out, &[]).unwrap();
        assert_eq!(out, b"no queue pairs\n");
    }
}
