#!/usr/bin/python3
"""Drives peer.py with rxe at both ends: shows that the peer does what its page says.

    vm host selftest.py [ADDR [ADDR]] [-k WORD]

One address (or none: that of `vm host`): both ends are sessions of one VM, on one device, whose packets never
reach that VM's network stack; what needs netem or drops is skipped. Two: two VMs."""
import json
import os
import socket
import sys
import time

ODD = (0, 1, 3, 255, 1024, 1025, 3000, 65536)
SEED = 42


class Peer:
    """A session; each call is a command."""

    def __init__(self, addr):
        self.addr = addr
        self.conn = socket.create_connection((addr, 4792), timeout=60)
        self.lines = self.conn.makefile("r")
        hello = self("hello")
        self.gids, self.mtu = hello["gids"], hello["active_mtu"]

    def __call__(self, do, **args):
        reply = self.raw(do, **args)
        assert reply["ok"], f"{do} {args}: {reply['error']}"
        return reply

    def raw(self, do, **args):
        self.conn.sendall(json.dumps({"do": do, **args}).encode() + b"\n")
        return json.loads(self.lines.readline())


class End:
    """A session with one memory region and one QP."""

    def __init__(self, addr, type="rc", gid="ipv4", psn=0, size=1 << 20, **qp):
        self.peer = Peer(addr)
        self.mem = self.peer("mr", size=size)
        self.mr, self.type = self.mem["mr"], type
        self.local = self.peer("qp", type=type, gid=gid, psn=psn, **qp)
        self.qp = self.local["qp"]

    def sge(self, length, off=0):
        return [[self.mr, off, length]]

    def post(self, op, length, off=0, **more):
        self.peer("post", qp=self.qp, wrs=[dict(op=op, sge=self.sge(length, off), **more)])

    def recv(self, length, off=0, **more):
        self.peer("recv", qp=self.qp, wrs=[dict(sge=self.sge(length, off), **more)])

    def poll(self, n=1, status="SUCCESS", **more):
        wcs = self.peer("poll", n=n, **more)["wcs"]
        assert len(wcs) == n, f"{len(wcs)} of {n} completions: {wcs}"
        assert all(wc["status"] == status for wc in wcs), wcs
        return wcs

    def do(self, op, length, off=0, status="SUCCESS", **more):
        self.post(op, length, off, **more)
        return self.poll(status=status)[0]

    def check(self, seed=SEED, **span):
        got = self.peer("check", mr=self.mr, seed=seed, **span)
        assert got["equal"], got

    def there(self, off=0):
        """How the other end names a place of this end's memory."""
        return {"rkey": self.mem["rkey"], "raddr": self.mem["addr"] + off}


def connect(a, b, **attrs):
    for end, other in ((a, b), (b, a)):
        end.peer("connect", qp=end.qp, remote=other.local, **attrs)


def ends(addrs, gid="ipv4", type="rc", psn=0, qp={}, **attrs):
    a = End(addrs[0], type=type, gid=gid, psn=psn, **qp)
    b = End(addrs[-1], type=type, gid=gid, psn=(psn + 0x800) & 0xFFFFFF, **qp)
    connect(a, b, **attrs)
    a.peer("fill", mr=a.mr, seed=SEED)
    return a, b


def rdma(addrs):
    for gid in ("link", "ipv4", "ipv6"):
        for mtu in (256, 1024, 4096):
            a, b = ends(addrs, gid=gid, mtu=mtu)
            for n in ODD:
                a.do("WRITE", n, off=3, **b.there(5))
                b.check(off=5, len=n, at=3)
                a.do("READ", n, off=500001, **b.there(5))
                a.check(off=500001, len=n, at=3)
            b.recv(0, wr_id=7)
            a.do("WRITE_IMM", 3000, imm=0x01020304, **b.there())
            (wc,) = b.poll()
            assert (wc["opcode"], wc["imm"], wc["wr_id"]) == ("RECV_RDMA_WITH_IMM", 0x01020304, 7), wc
            b.check(len=3000)


def send(addrs):
    for gid in ("ipv4", "ipv6"):
        a, b = ends(addrs, gid=gid)
        for n in ODD:
            b.recv(65536)
            a.do("SEND", n, off=8)
            assert b.poll()[0]["len"] == n
            b.check(len=n, at=8)
        b.recv(100)
        a.do("SEND_IMM", 10, imm=0xDEAD0001)
        assert b.poll()[0]["imm"] == 0xDEAD0001
        a.peer("post", qp=a.qp, wrs=[  # gathered from three places; inline, fenced
            dict(op="SEND", sge=[[a.mr, 0, 100], [a.mr, 100, 1], [a.mr, 101, 2000]]),
            dict(op="SEND", sge=a.sge(60), flags=["signaled", "inline", "fence"])])
        b.peer("recv", qp=b.qp, wrs=[  # scattered to two, with a gap
            dict(sge=[[b.mr, 0, 50], [b.mr, 4096, 3000]]), dict(sge=b.sge(60, 9000))])
        a.poll(2), b.poll(2)
        b.check(len=50), b.check(off=4096, len=2051, at=50), b.check(off=9000, len=60)


def atomics(addrs):
    a, b = ends(addrs)
    b.peer("write", mr=b.mr, hex=(1000).to_bytes(8, "little").hex())

    def returned():
        return int.from_bytes(bytes.fromhex(a.peer("read", mr=a.mr, len=8)["hex"]), "little")

    for op, args, before in (("FETCH_ADD", dict(add=5), 1000),
                             ("FETCH_ADD", dict(add=2**64 - 1), 1005),
                             ("CMP_SWP", dict(compare=1004, swap=77), 1004),
                             ("CMP_SWP", dict(compare=1, swap=99), 77),
                             ("CMP_SWP", dict(compare=77, swap=2**63 + 9), 77)):
        a.do(op, 8, **args, **b.there())
        assert returned() == before, (op, args, returned())
    assert b.peer("read", mr=b.mr, len=8)["hex"] == (2**63 + 9).to_bytes(8, "little").hex()


def invalidate(addrs):
    a, b = ends(addrs)
    mw = b.peer("mw")["mw"]
    rkey = b.peer("bind", qp=b.qp, mw=mw, mr=b.mr, len=65536, access=["remote_write"])["rkey"]
    assert b.poll()[0]["opcode"] == "BIND_MW"
    there = {**b.there(), "rkey": rkey}
    a.do("WRITE", 100, **there)
    b.check(len=100)
    b.recv(100, off=70000)
    a.do("SEND_INV", 10, inv=rkey)
    assert b.poll()[0]["opcode"] == "RECV"  # rxe tells a user no key: the next write does
    a.do("WRITE", 100, status="REM_ACCESS_ERR", **there)


def shared_receives(addrs):
    peer = Peer(addrs[-1])
    mr = peer("mr", size=65536)["mr"]
    srq = peer("srq", depth=16)["srq"]
    peer("srq_limit", srq=srq, limit=2)
    peer("recv", srq=srq, wrs=[dict(sge=[[mr, i * 4096, 4096]], wr_id=i) for i in range(4)])
    senders = []
    for _ in range(2):
        a = End(addrs[0])
        local = peer("qp", type="rc", srq=srq)
        a.peer("connect", qp=a.qp, remote=local)
        peer("connect", qp=local["qp"], remote=a.local)
        a.peer("fill", mr=a.mr, seed=SEED)
        senders.append((a, local))
    for n, (a, local) in zip((1000, 2000, 3000), senders + senders[:1]):
        a.do("SEND", n)
        (wc,) = peer("poll", n=1)["wcs"]
        assert (wc["status"], wc["len"], wc["qpn"]) == ("SUCCESS", n, local["qpn"]), wc
        got = peer("check", mr=mr, seed=SEED, off=wc["wr_id"] * 4096, len=n)
        assert got["equal"], got
    while (event := peer("async", timeout_ms=2000)["event"]) != "SRQ_LIMIT_REACHED":
        assert event, "no limit event"


def receiver_not_ready(addrs):
    a, b = ends(addrs, min_rnr_timer=14)
    a.post("SEND", 3000)
    assert not a.peer("poll", n=1, timeout_ms=100)["wcs"]
    b.recv(4096)
    a.poll(), b.poll()
    b.check(len=3000)
    a, b = ends(addrs, rnr_retry=2, min_rnr_timer=14)
    a.do("SEND", 64, status="RNR_RETRY_EXC_ERR")


def psn_wrap(addrs):
    a, b = ends(addrs, psn=0xFFFFFD)
    b.recv(65536, off=100000)
    a.do("WRITE", 3000, **b.there())
    a.do("READ", 6000, off=500000, **b.there())
    a.check(off=500000, len=3000)
    a.do("SEND", 6000)
    b.poll()
    b.check(off=100000, len=6000)
    assert a.peer("query", qp=a.qp)["sq_psn"] == (0xFFFFFD + 3 + 6 + 6) & 0xFFFFFF


def unreliable(addrs):
    a, b = ends(addrs, type="uc")
    for n in ODD[1:]:
        b.recv(65536)
        a.do("SEND_IMM", n, imm=n)
        assert b.poll()[0]["imm"] == n
        b.check(len=n)
        a.do("WRITE", n, **b.there(100000))
        time.sleep(0.02)  # nothing tells a UC sender that its write arrived
        b.check(off=100000, len=n)


def datagram(addrs):
    for gid in ("ipv4", "ipv6"):
        a, b = End(addrs[0], type="ud", gid=gid), End(addrs[-1], type="ud", gid=gid)
        for end in (a, b):
            end.peer("connect", qp=end.qp)
        a.peer("fill", mr=a.mr, seed=SEED)
        to = {"gid": b.local["gid"], "qpn": b.local["qpn"]}
        for n in (0, 1, 1000, 4096):
            b.recv(40 + 4096)
            a.do("SEND_IMM", n, imm=5, to=to)
            wc = b.poll()[0]
            assert (wc["len"], wc["imm"], wc["src_qp"]) == (40 + n, 5, a.local["qpn"]), wc
            b.check(off=40, len=n)
        a.do("SEND", 10, to={**to, "qkey": 99})
        assert not b.peer("poll", n=1, timeout_ms=100)["wcs"]


def refusals(addrs):
    a, b = ends(addrs)
    a.peer("post", qp=a.qp, wrs=[
        dict(op="WRITE", sge=a.sge(100), raddr=b.mem["addr"], rkey=0x123456),
        dict(op="WRITE", sge=a.sge(100), **b.there())])
    statuses = [wc["status"] for wc in a.peer("poll", n=2)["wcs"]]
    assert statuses == ["REM_ACCESS_ERR", "WR_FLUSH_ERR"], statuses
    assert a.peer("query", qp=a.qp)["state"] == "ERR"
    for end in (a, b):
        end.peer("modify", qp=end.qp, state="RESET")
        end.peer("modify", qp=end.qp, state="INIT")
    connect(a, b)
    a.do("WRITE", 100, **b.there())
    b.check(len=100)
    b.recv(100)
    b.peer("modify", qp=b.qp, state="ERR")
    b.poll(status="WR_FLUSH_ERR")
    b.peer("destroy", qp=b.qp)
    for wrong in (dict(do="nonsense"), dict(do="read", mr=a.mr, len=2**40), dict(do="qp", type="rd")):
        assert not a.peer.raw(**wrong)["ok"], wrong


def events(addrs):
    a, b = ends(addrs)
    b.recv(100), b.recv(100)
    b.peer("arm", solicited=True)
    a.do("SEND", 10)
    assert not b.peer("event", timeout_ms=200)["event"]
    a.do("SEND", 10, flags=["signaled", "solicited"])
    assert b.peer("event")["event"]
    b.poll(2)


def pingpong(addrs):
    a, b = Peer(addrs[0]), Peer(addrs[-1])
    for tool, args in (("rc", ["-m", "4096", "-e"]), ("uc", ["-m", "256"]), ("ud", ["-s", "1000"])):
        argv = [f"ibv_{tool}_pingpong", "-g", "1", "-n", "200", *args]
        job = b("spawn", argv=argv, listen=18515)["job"]
        client = a("run", argv=argv + [b.addr])
        server = b("wait", job=job)
        for done in (client, server):
            assert done["status"] == 0 and "200 iters" in done["output"], done
    assert a("run", argv=["sleep", "60"], timeout_ms=50)["status"] is None


def bad_weather(addrs):
    if len(addrs) == 1:
        return "one device: its packets pass by netem"
    for args in ("loss 2%", "delay 2ms reorder 25% 50%", "duplicate 5%"):
        for gid, dir in (("ipv4", "in"), ("ipv6", "out")):
            a, b = ends(addrs, gid=gid, timeout=14, retry_cnt=7)
            b.peer("netem", dir=dir, args=args)
            for round in range(8):
                b.recv(65536, off=65536 * 2)
                a.post("WRITE", 65536, off=round, **b.there(round))
                a.post("SEND", 65536)
                a.post("READ", 65536, off=500000, **b.there(round))
                a.post("FETCH_ADD", 8, off=800000, add=1, **b.there(600000))
                a.poll(4, timeout_ms=40000), b.poll(timeout_ms=40000)
                b.check(off=round, len=65536, at=round), b.check(off=65536 * 2, len=65536)
                a.check(off=500000, len=65536, at=round)
            done = b.peer("netem", dir=dir, args=None)
            print(f"    {args}, {dir}: {done['packets']} packets passed, {done['dropped']} dropped")
            assert done["packets"] > 100 and (done["dropped"] > 0) == args.startswith("loss"), done
            count = b.peer("read", mr=b.mr, off=600000, len=1)["hex"]
            assert count == "08", count


def drops(addrs):
    if len(addrs) == 1:
        return "one device: its packets pass by nft"
    a, b = ends(addrs, timeout=16)
    before = b.peer("counters")["counters"]["out_of_seq_request"]
    b.peer("drop", dir="in", first=2, count=1)  # the third packet of the write
    a.do("WRITE", 8192, **b.there())
    b.check(len=8192)
    assert b.peer("counters")["counters"]["out_of_seq_request"] > before
    b.peer("undrop")
    b.peer("drop", dir="out", opcode=17)  # every ACK
    a.post("WRITE", 100, **b.there())
    assert not a.peer("poll", n=1, timeout_ms=300)["wcs"]
    b.peer("undrop")
    a.poll()
    b.peer("drop", dir="in")
    a.peer("modify", qp=a.qp, state="RESET"), b.peer("modify", qp=b.qp, state="RESET")
    a.peer("modify", qp=a.qp, state="INIT"), b.peer("modify", qp=b.qp, state="INIT")
    connect(a, b, timeout=14, retry_cnt=2)
    a.do("WRITE", 100, status="RETRY_EXC_ERR", **b.there())


TESTS = (rdma, send, atomics, invalidate, shared_receives, receiver_not_ready, psn_wrap, unreliable,
         datagram, refusals, events, pingpong, bad_weather, drops)


def main(args):
    word = ""
    if "-k" in args:
        at = args.index("-k")
        word, args = args[at + 1], args[:at] + args[at + 2:]
    addrs = args or [os.environ["HOLDFAST_LAB_PEER"].split(":")[0]]
    passed = skipped = failed = 0
    for test in TESTS:
        if word not in test.__name__:
            continue
        start = time.monotonic()
        try:
            reason = test(addrs)
        except (AssertionError, OSError) as error:
            failed += 1
            print(f"{test.__name__}: FAILED: {error}", flush=True)
            continue
        took = f"{time.monotonic() - start:.1f} s"
        passed, skipped = passed + (not reason), skipped + bool(reason)
        print(f"{test.__name__}: " + (f"skipped: {reason}" if reason else f"ok, {took}"), flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
