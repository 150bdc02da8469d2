//! The stock end of a connection: pyverbs over rxe, in the VM.

use crate::end::{Done, QKEY, Setup, Side, Work};
use crate::lab::{Lab, PATIENCE, Session};
use holdfast::ipc::client::{Endpoint, QpType, Qpn, SendFlags, SendOp, WcOpcode, WcStatus};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

pub(crate) struct Theirs {
    setup: Setup,
    pub(crate) session: Session,
    mr: u64,
    there: (u64, u32),
    srq: Option<u64>,
    qps: Vec<(u64, Endpoint)>,
}

impl Theirs {
    pub(crate) fn new(lab: &Lab, setup: &Setup) -> Self {
        let mut session = lab.session();
        let memory = session.ask("mr", json!({"size": setup.memory}));
        let srq = setup.srq.then(|| number(&session.ask("srq", json!({"depth": 64, "sge": 4}))["srq"]));
        let kind = match setup.kind {
            QpType::Rc => "rc",
            QpType::Uc => "uc",
            QpType::Ud | QpType::Gsi => "ud",
        };
        let mut this = Self {
            setup: *setup,
            mr: number(&memory["mr"]),
            there: (number(&memory["addr"]), number(&memory["rkey"]) as u32),
            srq,
            qps: Vec::new(),
            session,
        };
        for _ in 0..setup.qps {
            let arguments = json!({"type": kind, "gid": setup.family.name(), "psn": setup.psn, "srq": srq,
                "qkey": QKEY, "sge": 32, "inline": 400});
            let qp = this.session.ask("qp", arguments);
            let gid: Ipv6Addr = qp["gid"].as_str().unwrap().parse().unwrap();
            let endpoint = Endpoint {
                qpn: Qpn::new(number(&qp["qpn"]) as u32),
                psn: setup.psn,
                address: IpAddr::V6(gid).to_canonical(),
            };
            let qp = number(&qp["qp"]);
            if setup.kind.is_datagram() {
                this.session.ask("connect", json!({"qp": qp}));
            }
            this.qps.push((qp, endpoint));
        }
        this
    }

    fn sges(&self, parts: &[(u64, u32)]) -> Value {
        parts.iter().map(|(offset, len)| json!([self.mr, offset, len])).collect()
    }

    fn span(&self, offset: u64, len: u64) -> Value {
        json!({"mr": self.mr, "off": offset, "len": len})
    }
}

impl Side for Theirs {
    fn endpoint(&self, qp: usize) -> Endpoint {
        self.qps[qp].1
    }

    fn connect(&mut self, qp: usize, peer: &Endpoint) {
        if self.setup.kind.is_datagram() {
            return;
        }
        let Setup { mtu, timeout, retry_count, rnr_retry, min_rnr_timer, .. } = self.setup;
        let arguments = json!({"qp": self.qps[qp].0, "remote": remote(peer), "mtu": mtu, "timeout": timeout,
            "retry_cnt": retry_count, "rnr_retry": rnr_retry, "min_rnr_timer": min_rnr_timer});
        self.session.ask("connect", arguments);
    }

    fn post(&mut self, qp: usize, work: &Work) {
        let mut wr = operation(work.op);
        wr["wr_id"] = work.wr_id.into();
        wr["sge"] = self.sges(&work.parts);
        let names = [
            (SendFlags::SIGNALED, "signaled"),
            (SendFlags::FENCE, "fence"),
            (SendFlags::SOLICITED, "solicited"),
            (SendFlags::INLINE, "inline"),
        ];
        wr["flags"] = names.iter().filter(|(flag, _)| work.flags.contains(*flag)).map(|(_, name)| *name).collect();
        if let Some((to, qkey)) = &work.to {
            wr["to"] = remote(to);
            wr["to"]["qkey"] = (*qkey).into();
        }
        self.session.ask("post", json!({"qp": self.qps[qp].0, "wrs": [wr]}));
    }

    fn receive(&mut self, qp: usize, wr_id: u64, parts: &[(u64, u32)]) {
        let wrs = json!([{"sge": self.sges(parts), "wr_id": wr_id}]);
        let arguments = match self.srq {
            Some(srq) => json!({"srq": srq, "wrs": wrs}),
            None => json!({"qp": self.qps[qp].0, "wrs": wrs}),
        };
        self.session.ask("recv", arguments);
    }

    fn poll(&mut self, n: usize, limit: Duration) -> Vec<Done> {
        let got = self.session.ask("poll", json!({"n": n, "timeout_ms": limit.as_millis() as u64}));
        got["wcs"].as_array().unwrap().iter().map(done).collect()
    }

    fn there(&self) -> (u64, u32) {
        self.there
    }

    fn open_window(&mut self, offset: u64, len: u64) -> u32 {
        let window = number(&self.session.ask("mw", json!({}))["mw"]);
        let arguments = json!({"qp": self.qps[0].0, "mw": window, "mr": self.mr, "off": offset, "len": len,
            "access": ["remote_write"]});
        let rkey = number(&self.session.ask("bind", arguments)["rkey"]) as u32;
        let bound = self.session.ask("poll", json!({"n": 1}));
        assert_eq!(bound["wcs"][0]["opcode"], "BIND_MW", "{bound}");
        rkey
    }

    fn read_only(&mut self) -> (u64, u32) {
        let region = self.session.ask("mr", json!({"size": 4096, "access": ["local_write", "remote_read"]}));
        (number(&region["addr"]), number(&region["rkey"]) as u32)
    }

    fn wait_for_event(&mut self, name: &str) {
        loop {
            let event = self.session.ask("async", json!({"timeout_ms": PATIENCE.as_millis() as u64}));
            let event = event["event"].as_str().unwrap_or_else(|| panic!("no {name}")).to_owned();
            if event == name {
                return;
            }
        }
    }

    fn arm_limit(&mut self, limit: u32) {
        self.session.ask("srq_limit", json!({"srq": self.srq, "limit": limit}));
    }

    fn arm(&mut self, solicited: bool) {
        self.session.ask("arm", json!({"solicited": solicited}));
    }

    fn hears_event(&mut self, limit: Duration) -> bool {
        self.session.ask("event", json!({"timeout_ms": limit.as_millis() as u64}))["event"] == true
    }

    fn fill(&mut self, seed: u64, offset: u64, len: u64, at: u64) {
        let mut arguments = self.span(offset, len);
        (arguments["seed"], arguments["at"]) = (seed.into(), at.into());
        self.session.ask("fill", arguments);
    }

    fn check(&mut self, seed: u64, offset: u64, len: u64, at: u64) {
        let mut arguments = self.span(offset, len);
        (arguments["seed"], arguments["at"]) = (seed.into(), at.into());
        let got = self.session.ask("check", arguments);
        assert_eq!(got["equal"], true, "rxe: of {len} bytes at {offset}: {got}");
    }

    fn word(&mut self, offset: u64) -> u64 {
        let arguments = self.span(offset, 8);
        let hex = self.session.ask("read", arguments)["hex"].as_str().unwrap().to_owned();
        u64::from_str_radix(&hex, 16).unwrap().swap_bytes()
    }

    fn set_word(&mut self, offset: u64, value: u64) {
        let hex = format!("{:016x}", value.swap_bytes());
        self.session.ask("write", json!({"mr": self.mr, "off": offset, "hex": hex}));
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("the peer said {value} where a number belongs"))
}

fn remote(endpoint: &Endpoint) -> Value {
    let gid = match endpoint.address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    json!({"gid": gid, "qpn": endpoint.qpn.get(), "psn": endpoint.psn})
}

fn operation(op: SendOp) -> Value {
    match op {
        SendOp::Send => json!({"op": "SEND"}),
        SendOp::SendImm(imm) => json!({"op": "SEND_IMM", "imm": imm}),
        SendOp::SendInvalidate(rkey) => json!({"op": "SEND_INV", "inv": rkey}),
        SendOp::Write { va, rkey } => json!({"op": "WRITE", "raddr": va, "rkey": rkey}),
        SendOp::WriteImm { va, rkey, imm } => json!({"op": "WRITE_IMM", "raddr": va, "rkey": rkey, "imm": imm}),
        SendOp::Read { va, rkey } => json!({"op": "READ", "raddr": va, "rkey": rkey}),
        SendOp::CompareSwap { va, rkey, compare, swap } => {
            json!({"op": "CMP_SWP", "raddr": va, "rkey": rkey, "compare": compare, "swap": swap})
        }
        SendOp::FetchAdd { va, rkey, add } => json!({"op": "FETCH_ADD", "raddr": va, "rkey": rkey, "add": add}),
        SendOp::LocalInvalidate(_) | SendOp::BindWindow { .. } => panic!("no scenario asks the peer for {op:?}"),
    }
}

fn done(wc: &Value) -> Done {
    let status = match wc["status"].as_str().unwrap() {
        "SUCCESS" => WcStatus::Success,
        "LOC_LEN_ERR" => WcStatus::LocalLength,
        "LOC_QP_OP_ERR" => WcStatus::LocalQpOperation,
        "LOC_PROT_ERR" => WcStatus::LocalProtection,
        "WR_FLUSH_ERR" => WcStatus::WrFlush,
        "REM_INV_REQ_ERR" => WcStatus::RemoteInvalidRequest,
        "REM_ACCESS_ERR" => WcStatus::RemoteAccess,
        "REM_OP_ERR" => WcStatus::RemoteOperation,
        "RETRY_EXC_ERR" => WcStatus::RetryExceeded,
        "RNR_RETRY_EXC_ERR" => WcStatus::RnrRetryExceeded,
        _ => WcStatus::General,
    };
    let opcode = match wc["opcode"].as_str().unwrap_or_default() {
        "RDMA_WRITE" => WcOpcode::RdmaWrite,
        "RDMA_READ" => WcOpcode::RdmaRead,
        "COMP_SWAP" => WcOpcode::CompareSwap,
        "FETCH_ADD" => WcOpcode::FetchAdd,
        "BIND_MW" => WcOpcode::BindWindow,
        "LOCAL_INV" => WcOpcode::LocalInvalidate,
        "RECV" => WcOpcode::Recv,
        "RECV_RDMA_WITH_IMM" => WcOpcode::RecvRdmaWithImm,
        _ => WcOpcode::Send,
    };
    Done {
        wr_id: number(&wc["wr_id"]),
        status,
        opcode,
        len: number(&wc["len"]) as u32,
        imm: wc["imm"].as_u64().map(|imm| imm as u32),
        qpn: Qpn::new(number(&wc["qpn"]) as u32),
        src_qp: wc["src_qp"].as_u64().map(|qp| Qpn::new(qp as u32)),
    }
}
