//! Runs written traces against one queue pair. See `scenarios/README.md` for the language.

mod packet;
mod words;

use super::end::{ALICE, BASE, BOB, End, Setup, all_access};
use crate::memory::{Access, Sge, WindowBinding};
use crate::time::Duration;
use crate::transport::*;
use crate::wire::{PathMtu, Psn, Qpn};
use std::collections::VecDeque;
use std::fs;
use std::path::Path;
use words::Words;

/// The QPN under test.
const QPN: u32 = 0x11;

#[test]
fn every_scenario_runs_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/transport/tests/scenarios");
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "txt"));
    files.sort();
    let mut scenarios = 0;
    let mut failures = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        let name = file.file_name().unwrap().to_string_lossy();
        for scenario in split(&text) {
            scenarios += 1;
            if let Err((line, what)) = run(&scenario) {
                failures.push(format!("{name}:{line}: {what}"));
            }
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
    assert!(files.len() >= 8 && scenarios >= 60, "{} files, {scenarios} scenarios", files.len());
}

type Lines<'a> = Vec<(usize, &'a str)>;

/// The scenarios of a file, each with its lines and their numbers.
fn split(text: &str) -> Vec<Lines<'_>> {
    let mut scenarios: Vec<Lines<'_>> = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        if line.starts_with("==") {
            scenarios.push(Vec::new());
        } else if !line.is_empty() {
            scenarios.last_mut().expect("a file begins with == title").push((n + 1, line));
        }
    }
    scenarios
}

fn run(lines: &Lines<'_>) -> Result<(), (usize, String)> {
    let mut runner: Option<Runner> = None;
    for (n, line) in lines {
        let step = match &mut runner {
            None => Runner::new(line).map(|r| runner = Some(r)),
            Some(runner) => runner.step(line),
        };
        step.map_err(|what| (*n, format!("`{line}`: {what}")))?;
    }
    let last = lines.last().map_or(0, |(n, _)| *n);
    runner.ok_or((last, "an empty scenario".into()))?.end().map_err(|what| (last, format!("at the end: {what}")))
}

struct Runner {
    end: End,
    attrs: QpAttributes,
    /// Sent, and not yet named by the scenario.
    sent: VecDeque<Vec<u8>>,
    completed: VecDeque<Completion>,
    window: u32,
}

impl Runner {
    /// `qp KIND key=value ...`
    fn new(line: &str) -> Result<Self, String> {
        let words = Words::parse(line.strip_prefix("qp ").ok_or("a scenario begins with qp")?)?;
        let mut setup = Setup {
            kind: match words.name() {
                "rc" => QpType::Rc,
                "uc" => QpType::Uc,
                "ud" => QpType::Ud,
                "gsi" => QpType::Gsi,
                other => return Err(format!("no service {other}")),
            },
            srq: words.flag("srq"),
            ..Setup::default()
        };
        let a = &mut setup.attrs;
        a.path_mtu = PathMtu::from_bytes(words.number_or("mtu", 1024)? as u32).ok_or("no such MTU")?;
        a.sq_psn = Psn::new(words.number_or("sq_psn", 0)? as u32);
        a.rq_psn = Psn::new(words.number_or("rq_psn", 0)? as u32);
        a.timeout = words.number_or("timeout", 14)? as u8;
        a.retry_count = words.number_or("retry", 3)? as u8;
        a.rnr_retry = words.number_or("rnr", 7)? as u8;
        a.max_rd_atomic = words.number_or("reads", 4)? as u8;
        a.max_dest_rd_atomic = words.number_or("dest_reads", 4)? as u8;
        a.min_rnr_timer = words.number_or("min_rnr", 14)? as u8;
        a.access = if words.flag("no_access") { Access::LOCAL_WRITE } else { all_access() };
        let l = &mut setup.limits;
        l.max_unacked_packets = words.number_or("window", 512)? as u32;
        l.max_read_bytes = words.number_or("read_piece", 256 << 10)? as u32;
        setup.caps.max_send_wr = words.number_or("depth", 16)? as u32;
        setup.caps.max_recv_wr = words.number_or("depth", 16)? as u32;
        let attrs = setup.attrs;
        let mut end = match words.text("state") {
            None => End::ready(QPN, &setup, &attrs),
            Some(_) => End::new(QPN, &setup),
        };
        end.pkeys = vec![words.number_or("pkey", 0xffff)? as u16];
        if let Some(until) = words.text("state") {
            for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
                if words::state(until)? as u8 >= state as u8 {
                    end.go(state, &attrs).map_err(|e| e.to_string())?;
                }
            }
        }
        Ok(Self { end, attrs, sent: VecDeque::new(), completed: VecDeque::new(), window: 0 })
    }

    fn step(&mut self, line: &str) -> Result<(), String> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            ">" => self.expect_packet(rest),
            "<" => self.receive(rest),
            "=" => self.expect_completion(rest),
            "!" => self.expect_event(rest),
            "post" => self.post(&Words::parse(rest)?),
            "recv" => self.recv(&Words::parse(line)?),
            "modify" => self.modify(&Words::parse(rest)?),
            "state" => same(words::state(rest)?, self.end.qp.state()),
            "waits" => same(words::wait(rest)?, self.end.wait()),
            "count" => self.expect_count(&Words::parse(&format!("count {rest}"))?),
            "set" => self.set_word(&Words::parse(&format!("set {rest}"))?),
            "word" => self.expect_word(&Words::parse(&format!("word {rest}"))?),
            "limit" => self.srq_limit(rest),
            "deregister" => self.end.memory.deregister(self.end.keys.lkey).map_err(|e| e.to_string()),
            "window" => self.bind_window(),
            _ if verb.starts_with('+') => self.pass(words::duration(&verb[1..])?),
            _ => Err("no such verb".into()),
        }
    }

    /// Nothing may be left over.
    fn end(mut self) -> Result<(), String> {
        self.expect_packet("nothing")?;
        self.expect_completion("nothing")?;
        self.expect_event("nothing")
    }

    fn expect_packet(&mut self, text: &str) -> Result<(), String> {
        if self.sent.is_empty() {
            self.sent.extend(self.end.transmit().into_iter().flatten());
        }
        let sent = self.sent.pop_front().map(|bytes| packet::describe(&bytes));
        match (text, sent) {
            ("nothing", None) => Ok(()),
            (_, None) => Err("nothing was sent".into()),
            (_, Some(sent)) => Words::parse(text)?.must_be_part_of(&Words::parse(&sent)?),
        }
    }

    fn receive(&mut self, text: &str) -> Result<(), String> {
        let words = Words::parse(text)?;
        let rkey = match words.text("rkey") {
            Some("bad") => 0x0bad_0bad,
            Some("window") => self.window,
            _ => self.end.keys.rkey,
        };
        let bytes = packet::build(&words, Qpn::new(QPN), rkey)?;
        let from = if words.flag("stranger") { ALICE } else { BOB };
        let refused = match self.end.receive(from, &bytes) {
            Ok(()) => None,
            Err(reason) => Some(reason.name()),
        };
        if refused == words.text("refused") { Ok(()) } else { Err(format!("refused: {refused:?}")) }
    }

    fn expect_completion(&mut self, text: &str) -> Result<(), String> {
        self.completed.extend(self.end.completed());
        let got = self.completed.pop_front().map(|c| words::completion(&c));
        match (text, got) {
            ("nothing", None) => Ok(()),
            (_, None) => Err("nothing completed".into()),
            (_, Some(got)) => Words::parse(text)?.must_be_part_of(&Words::parse(&got)?),
        }
    }

    fn expect_event(&mut self, text: &str) -> Result<(), String> {
        match (text, self.end.events.pop_front()) {
            ("nothing", None) => Ok(()),
            (text, Some(event)) if format!("{event:?}").split('(').next() == Some(text) => Ok(()),
            (_, got) => Err(format!("the event is {got:?}")),
        }
    }

    fn post(&mut self, words: &Words<'_>) -> Result<(), String> {
        let (va, rkey) = (BASE + words.number_or("va", 0)?, 0x77);
        let imm = words.number_or("imm", 0)? as u32;
        let op = match words.name() {
            "send" => SendOp::Send,
            "send_imm" => SendOp::SendImm(imm),
            "send_inv" => SendOp::SendInvalidate(words.number_or("inv", 0)? as u32),
            "write" => SendOp::Write { va, rkey },
            "write_imm" => SendOp::WriteImm { va, rkey, imm },
            "read" => SendOp::Read { va, rkey },
            "cas" => SendOp::CompareSwap {
                va,
                rkey,
                compare: words.number_or("compare", 0)?,
                swap: words.number_or("swap", 0)?,
            },
            "faa" => SendOp::FetchAdd { va, rkey, add: words.number_or("add", 0)? },
            "local_inv" => SendOp::LocalInvalidate(if words.text("key") == Some("window") { self.window } else { 1 }),
            other => return Err(format!("no operation {other}")),
        };
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, !words.flag("unsignaled"));
        flags.set(SendFlags::FENCE, words.flag("fence"));
        flags.set(SendFlags::SOLICITED, words.flag("solicited"));
        let len = words.number_or("len", if op.is_atomic() { 8 } else { 0 })? as u32;
        let mut sge = self.end.sge(words.number_or("at", 0)?, len);
        if words.flag("bad_lkey") {
            sge.lkey ^= 1;
        }
        let inline = vec![0x5a; len as usize];
        let datagram = words.text("to").map(|_| UdAddress {
            av: AddressVector { source_port: words.number_or("to", 0).unwrap_or(0) as u16, ..self.attrs.av },
            dest_qp: Qpn::new(0x22),
            qkey: words.number_or("qkey", 0x8000_0000).unwrap_or(0) as u32,
        });
        let sges: &[Sge] = if len == 0 { &[] } else { &[sge] };
        let data = if words.flag("inline") { Data::Inline(&inline) } else { Data::Sges(sges) };
        let result = self.end.post(&SendRequest { wr_id: words.number_or("wr", 0)?, op, flags, data, datagram });
        match (result, words.text("error")) {
            (Ok(()), None) => Ok(()),
            (Err(e), Some(wanted)) if format!("{e:?}").starts_with(wanted) => Ok(()),
            (result, _) => Err(format!("the post gave {result:?}")),
        }
    }

    fn recv(&mut self, words: &Words<'_>) -> Result<(), String> {
        let len = words.number_or("len", 4096)? as u32;
        let mut sge = self.end.sge(words.number_or("at", 1 << 20)?, len);
        if words.flag("bad_lkey") {
            sge.lkey ^= 1;
        }
        let sges = [sge];
        let request = RecvRequest { wr_id: words.number_or("wr", 0)?, sges: &sges };
        match self.end.qp.init().srq {
            Some(srq) => self.end.srqs.post(srq, &request).map_err(|e| e.to_string()),
            None => self.end.with(|qp, cx| qp.post_recv(cx, &request)).map_err(|e| e.to_string()),
        }
    }

    fn modify(&mut self, words: &Words<'_>) -> Result<(), String> {
        let to = words::state(words.name())?;
        let notify = words.flag("notify");
        let result = if notify {
            let attrs = QpAttributes { state: to, sqd_notify: true, ..self.attrs };
            self.end.with(|qp, cx| qp.modify(cx, &attrs, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY))
        } else {
            self.end.go(to, &self.attrs)
        };
        match (result, words.text("error")) {
            (Ok(()), None) => Ok(()),
            (Err(e), Some(wanted)) if format!("{e:?}").starts_with(wanted) => Ok(()),
            (result, _) => Err(format!("the modify gave {result:?}")),
        }
    }

    fn expect_count(&self, words: &Words<'_>) -> Result<(), String> {
        let all = format!("{:?}", self.end.qp.counters());
        words.pairs().try_for_each(|(key, wanted)| {
            let found = all.split([',', '{']).find_map(|part| part.trim().strip_prefix(key)?.strip_prefix(": "));
            if found == Some(wanted) { Ok(()) } else { Err(format!("{key} is {found:?}")) }
        })
    }

    fn set_word(&mut self, words: &Words<'_>) -> Result<(), String> {
        self.end.fill(words.number_or("at", 0)?, &words.number_or("to", 0)?.to_ne_bytes());
        Ok(())
    }

    fn expect_word(&self, words: &Words<'_>) -> Result<(), String> {
        let got = u64::from_ne_bytes(self.end.bytes(words.number_or("at", 0)?, 8).try_into().unwrap());
        same(words.number_or("is", 0)?, got)
    }

    fn srq_limit(&mut self, rest: &str) -> Result<(), String> {
        let srq = self.end.qp.init().srq.ok_or("no SRQ")?;
        let limit = rest.parse().map_err(|_| "no number")?;
        self.end.srqs.set_limit(srq, limit).map_err(|e| e.to_string())
    }

    /// Binds a window over the first 4096 bytes.
    fn bind_window(&mut self) -> Result<(), String> {
        let rkey = self.end.memory.allocate_window(self.end.pd).map_err(|e| e.to_string())?;
        let binding =
            WindowBinding { rkey, lkey: self.end.keys.lkey, addr: BASE, length: 4096, access: Access::REMOTE_WRITE };
        self.end.memory.bind_window(self.end.pd, QPN, &binding).map_err(|e| e.to_string())?;
        self.window = rkey;
        Ok(())
    }

    /// Lets time pass, with everything that falls due in it.
    fn pass(&mut self, time: Duration) -> Result<(), String> {
        let end = self.end.now + time;
        self.sent.extend(self.end.transmit().into_iter().flatten());
        while let Some(at) = self.end.qp.poll_timeout().filter(|at| *at <= end) {
            self.end.now = self.end.now.max(at);
            self.end.with(|qp, cx| qp.handle_timeout(cx));
            self.sent.extend(self.end.transmit().into_iter().flatten());
        }
        self.end.now = end;
        Ok(())
    }
}

fn same<T: PartialEq + core::fmt::Debug>(wanted: T, got: T) -> Result<(), String> {
    if wanted == got { Ok(()) } else { Err(format!("it is {got:?}")) }
}
