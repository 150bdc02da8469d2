#!/usr/bin/python3
"""The stock peer of the interop tests: Linux rxe, driven from outside the VM.

    peer.py ADDR [PORT]     listen there (default 4792), go to the background

A TCP connection is a session: a process of its own with one device context, one PD
and one CQ, gone with all it made when the connection closes. The client sends one
JSON object a line, {"do": COMMAND, ...}; each is answered by one line, {"ok": true,
...} or {"ok": false, "error": TEXT, "errno": NUMBER or null}, in order. Numbers are
plain integers up to 2**64-1; GIDs are IPv6 text; handles (mr, qp, srq, mw, job) are
integers. What stands in [] may be left out; the default follows it.

  hello       -> device, kernel, active_mtu, gids {"link": GID, "ipv4": GID, "ipv6": GID}

Memory. A pattern of seed s is the stream of little-endian u64 words
w(i) = (s + (i+1) * 0x9E3779B97F4A7C15) mod 2**64; "at" is a byte offset in it.
  mr          size [access: all of local_write remote_write remote_read remote_atomic
              mw_bind]                            -> mr, addr, rkey, lkey
  fill        mr, seed [off 0, len: to the end, at 0]
  check       mr, seed [off 0, len: to the end, at 0]
                                  -> equal, [differs: first offset in mr, got: hex]
  write       mr, hex [off 0]
  read        mr, len [off 0]                     -> hex
  crc         mr [off 0, len: to the end]         -> crc32 (the Ethernet one)

Queue pairs. A QP comes back in INIT; connect takes it to RTS (or RTR).
  srq         [depth 64, sge 1]                   -> srq
  srq_limit   srq, limit          arms the limit event
  qp          type: rc uc ud [gid: link ipv4 ipv6 (ipv4), psn 0, srq, qkey 0x11111111,
              access: as mr, depth 128, sge 4, inline 64, sig_all false]
                                                  -> qp, qpn, psn, gid
  connect     qp [remote {qpn, psn, gid}: not for ud; mtu 1024, timeout 14,
              retry_cnt 6, rnr_retry 7, min_rnr_timer 12, max_rd_atomic 4,
              max_dest_rd_atomic 4, to: RTS or RTR (RTS)]
  modify      qp, state: RESET INIT RTS SQD ERR
  query       qp                                  -> state, sq_psn, rq_psn, dest_qpn
  destroy     one of qp, mr, srq, mw

Work. A sge is [mr, off, len]; an op one of SEND, SEND_IMM, SEND_INV, WRITE, WRITE_IMM,
READ, CMP_SWP, FETCH_ADD, LOCAL_INV; imm is the number whose big-endian bytes are on the
wire.
  recv        qp or srq, wrs [{sge: list [wr_id 0]}]
  post        qp, wrs [{op, sge: list [wr_id 0, flags: list of signaled fence solicited
              inline (signaled), raddr, rkey, imm, inv: rkey, compare, swap, add,
              to {gid, qpn, qkey}: for ud]}]
  mw          -> mw               a type 2 memory window
  bind        qp, mw, mr, access [off 0, len: to the end, wr_id 0]  posts it -> rkey
  poll        n [timeout_ms 10000]                -> wcs: n or what came in time, each
              {wr_id, status, qpn, len, opcode (success only), [imm], [src_qp, grh]}
  arm         [solicited false]   asks for a completion event
  event       [timeout_ms 10000]                  -> event: whether it came
  async       [timeout_ms 10000]                  -> event: its name or null

The wire. dir is the VM's view: in or out. Only RoCEv2 is touched, but that of every session
of the VM. So the first netem or drop of a session waits until no other session that used
them is left (60 s, then an error).
  netem       dir, args: as for tc, or null to stop ("loss 1%", "delay 2ms reorder 25%")
              -> when it stops: packets that it let pass, dropped
  drop        dir [first 0, count: for ever, opcode: of the BTH]
              drops these of the packets that match, counted from now; adds up
  undrop      ends all drops
  counters    -> counters {name: value} of rxe

Programs of the VM.
  spawn       argv [listen: wait until it listens on this TCP port]  -> job
  wait        job [timeout_ms 30000]              -> status, output: killed at the timeout,
                                                  then status is null
  run         argv [timeout_ms 30000]             as wait

At a session's end its drops, netem and programs end too.
"""
import array
import fcntl
import glob
import ipaddress
import json
import os
import platform
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import zlib

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

DEVICE, NETDEV = "rxe0", "eth0"
GIDS = {"link": 0, "ipv4": 1, "ipv6": 2}
QKEY = 0x11111111
ACCESS = ["local_write", "remote_write", "remote_read", "remote_atomic", "mw_bind"]
TYPES = {"rc": e.IBV_QPT_RC, "uc": e.IBV_QPT_UC, "ud": e.IBV_QPT_UD}
MTUS = {256: e.IBV_MTU_256, 512: e.IBV_MTU_512, 1024: e.IBV_MTU_1024,
        2048: e.IBV_MTU_2048, 4096: e.IBV_MTU_4096}
OPS = {"SEND": e.IBV_WR_SEND, "SEND_IMM": e.IBV_WR_SEND_WITH_IMM,
       "SEND_INV": e.IBV_WR_SEND_WITH_INV, "WRITE": e.IBV_WR_RDMA_WRITE,
       "WRITE_IMM": e.IBV_WR_RDMA_WRITE_WITH_IMM, "READ": e.IBV_WR_RDMA_READ,
       "CMP_SWP": e.IBV_WR_ATOMIC_CMP_AND_SWP, "FETCH_ADD": e.IBV_WR_ATOMIC_FETCH_AND_ADD,
       "LOCAL_INV": e.IBV_WR_LOCAL_INV}


def names(prefix, keep=lambda name: True):
    """The enum's values with their names, less the prefix."""
    return {getattr(e, name): name[len(prefix):] for name in dir(e)
            if name.startswith(prefix) and keep(name)}


STATES = names("IBV_QPS_")
STATUSES = names("IBV_WC_", lambda name: name.endswith(("_ERR", "_SUCCESS")))
EVENTS = names("IBV_EVENT_")
OPCODES = {getattr(e, "IBV_WC_" + name): name for name in (
    "SEND", "RDMA_WRITE", "RDMA_READ", "COMP_SWAP", "FETCH_ADD", "BIND_MW", "LOCAL_INV",
    "RECV", "RECV_RDMA_WITH_IMM")}


def bits(prefix, words):
    value = 0
    for word in words:
        value |= getattr(e, prefix + word.upper())
    return value


def pattern(seed, length, at=0):
    first, end = at // 8, (at + length + 7) // 8
    step, mask = 0x9E3779B97F4A7C15, 2**64 - 1
    words = array.array("Q", [(seed + (i + 1) * step) & mask for i in range(first, end)])
    return words.tobytes()[at % 8:at % 8 + length]


def opened_by(make):
    """What make() returns, and the file descriptor of the events that it opened."""
    def event_fds():
        fds = set()
        for path in glob.glob("/proc/self/fd/*"):
            try:
                if "infinibandevent" in os.readlink(path):
                    fds.add(int(path.rsplit("/", 1)[1]))
            except FileNotFoundError:
                pass  # glob's own
        return fds
    before = event_fds()
    made = make()
    (fd,) = event_fds() - before
    return made, fd


def readable(fd, timeout_ms):
    return bool(select.select([fd], [], [], timeout_ms / 1000)[0])


def sh(script):
    """Runs the lines; the first that fails is the error."""
    done = subprocess.run(["sh", "-e"], input=script, text=True, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"{script.strip()}: {done.stderr.strip()}")


class Session:
    """The do_* methods are the commands; their arguments are the command's."""

    def __init__(self):
        self.context, self.async_fd = opened_by(lambda: Context(name=DEVICE))
        self.pd = PD(self.context)
        self.channel, self.channel_fd = opened_by(lambda: CompChannel(self.context))
        self.cq = CQ(self.context, 4096, None, self.channel, 0)
        self.things = {"mr": {}, "qp": {}, "srq": {}, "mw": {}, "job": {}}
        self.made = 0
        self.ahs = {}
        self.wire = None  # the lock file, held by the session that changes the wire
        self.attrs = {}  # of each QP: its QPAttr in INIT, GID index, PSN

    def keep(self, kind, thing):
        self.made += 1
        self.things[kind][self.made] = thing
        return self.made

    def handle(self, line):
        try:
            args = json.loads(line)
            command = getattr(self, "do_" + args.pop("do"))
            return {"ok": True, **(command(**args) or {})}
        except (PyverbsError, OSError) as error:
            number = error.error_code if isinstance(error, PyverbsRDMAError) \
                else getattr(error, "errno", None)
            return {"ok": False, "error": str(error), "errno": number}
        except Exception as error:  # a wrong command must not end the session
            traceback.print_exc()
            return {"ok": False, "error": f"{type(error).__name__}: {error}", "errno": None}

    def close(self):
        """What the kernel does not clean up when the process ends."""
        for process, output in self.things["job"].values():
            process.kill()
        self.do_undrop()
        for way in ("in", "out"):
            self.do_netem(way, None)

    # --- the device and its memory ---------------------------------------------

    def do_hello(self):
        return {"device": DEVICE, "kernel": platform.release(),
                "active_mtu": 128 << self.context.query_port(1).active_mtu,
                "gids": {name: self.gid(name) for name in GIDS}}

    def gid(self, name):
        return ipaddress.ip_address(str(self.context.query_gid(1, GIDS[name]))).exploded

    def do_mr(self, size, access=ACCESS):
        mr = MR(self.pd, size, bits("IBV_ACCESS_", access))
        mr.write(bytes(size), size)
        return {"mr": self.keep("mr", mr), "addr": mr.buf, "rkey": mr.rkey, "lkey": mr.lkey}

    def span(self, mr, off, length):
        """The region and the length asked for, or an error if it is outside."""
        region = self.things["mr"][mr]
        length = region.length - off if length is None else length
        if off < 0 or length < 0 or off + length > region.length:
            raise ValueError(f"{length} bytes at {off} are not in mr {mr}: {region.length} bytes")
        return region, length

    def do_fill(self, mr, seed, off=0, len=None, at=0):
        region, length = self.span(mr, off, len)
        region.write(pattern(seed, length, at), length, off)

    def do_check(self, mr, seed, off=0, len=None, at=0):
        region, length = self.span(mr, off, len)
        got, want = region.read(length, off), pattern(seed, length, at)
        if got == want:
            return {"equal": True}
        first = next(i for i in range(length) if got[i] != want[i])
        return {"equal": False, "differs": off + first, "got": got[first:first + 16].hex()}

    def do_write(self, mr, hex, off=0):
        data = bytes.fromhex(hex)
        region, length = self.span(mr, off, len(data))
        region.write(data, length, off)

    def do_read(self, mr, len, off=0):
        region, length = self.span(mr, off, len)
        return {"hex": region.read(length, off).hex()}

    def do_crc(self, mr, off=0, len=None):
        region, length = self.span(mr, off, len)
        return {"crc32": zlib.crc32(region.read(length, off))}

    # --- queue pairs -----------------------------------------------------------

    def do_srq(self, depth=64, sge=1):
        return {"srq": self.keep("srq", SRQ(self.pd, SrqInitAttr(SrqAttr(depth, sge))))}

    def do_srq_limit(self, srq, limit):
        self.things["srq"][srq].modify(SrqAttr(srq_limit=limit), e.IBV_SRQ_LIMIT)

    def do_qp(self, type, gid="ipv4", psn=0, srq=None, qkey=QKEY, access=ACCESS, depth=128,
              sge=4, inline=64, sig_all=False):
        cap = QPCap(max_send_wr=depth, max_recv_wr=depth, max_send_sge=sge, max_recv_sge=sge,
                    max_inline_data=inline)
        init = QPInitAttr(qp_type=TYPES[type], scq=self.cq, rcq=self.cq, cap=cap,
                          srq=self.things["srq"][srq] if srq else None, sq_sig_all=sig_all)
        attr = QPAttr(port_num=1)
        if type == "ud":
            attr.qkey = qkey
        else:
            attr.qp_access_flags = bits("IBV_ACCESS_", access)
        qp = QP(self.pd, init)
        qp.to_init(attr)
        handle = self.keep("qp", qp)
        self.attrs[handle] = attr, GIDS[gid], psn
        return {"qp": handle, "qpn": qp.qp_num, "psn": psn, "gid": self.gid(gid)}

    def route(self, gid, index):
        grh = GlobalRoute(dgid=GID(ipaddress.ip_address(gid).exploded), sgid_index=index,
                          hop_limit=64)
        return AHAttr(port_num=1, is_global=1, gr=grh, sl=0)

    def do_connect(self, qp, remote=None, mtu=1024, to="RTS", **timing):
        attr, gid, psn = self.attrs[qp]
        qp = self.things["qp"][qp]
        if remote:
            attr.path_mtu, attr.dest_qp_num, attr.rq_psn = MTUS[mtu], remote["qpn"], remote["psn"]
            attr.ah_attr = self.route(remote["gid"], gid)
        defaults = dict(timeout=14, retry_cnt=6, rnr_retry=7, min_rnr_timer=12, max_rd_atomic=4,
                        max_dest_rd_atomic=4)
        if unknown := timing.keys() - defaults.keys():
            raise ValueError(f"no such attribute: {unknown}")
        for name, value in {**defaults, **timing}.items():
            setattr(attr, name, value)
        attr.sq_psn = psn
        qp.to_rtr(attr)
        if to == "RTS":
            qp.to_rts(attr)

    def do_modify(self, qp, state):
        if state == "INIT":
            self.things["qp"][qp].to_init(self.attrs[qp][0])
        else:
            attr = QPAttr(qp_state=getattr(e, "IBV_QPS_" + state))
            self.things["qp"][qp].modify(attr, e.IBV_QP_STATE)

    def do_query(self, qp):
        attr, _ = self.things["qp"][qp].query(
            e.IBV_QP_STATE | e.IBV_QP_SQ_PSN | e.IBV_QP_RQ_PSN | e.IBV_QP_DEST_QPN)
        return {"state": STATES[attr.qp_state], "sq_psn": attr.sq_psn, "rq_psn": attr.rq_psn,
                "dest_qpn": attr.dest_qp_num}

    def do_destroy(self, **which):
        ((kind, handle),) = which.items()
        self.things[kind][handle].close()
        del self.things[kind][handle]

    # --- work ------------------------------------------------------------------

    def sge(self, parts):
        regions = self.things["mr"]
        return [SGE(regions[mr].buf + off, length, regions[mr].lkey) for mr, off, length in parts]

    def do_recv(self, wrs, qp=None, srq=None):
        queue = self.things["qp"][qp] if qp else self.things["srq"][srq]
        for wr in wrs:
            sge = self.sge(wr["sge"])
            queue.post_recv(RecvWR(wr_id=wr.get("wr_id", 0), num_sge=len(sge), sg=sge))

    def do_post(self, qp, wrs):
        for wr in wrs:
            self.things["qp"][qp].post_send(self.send_wr(self.attrs[qp][1], **wr))

    def send_wr(self, gid, op, sge, wr_id=0, flags=("signaled",), raddr=0, rkey=0, imm=0, inv=0,
                compare=0, swap=0, add=0, to=None):
        sge = self.sge(sge)
        # imm_data is big-endian and shares its place with the key to invalidate.
        wr = SendWR(wr_id=wr_id, opcode=OPS[op], num_sge=len(sge), sg=sge,
                    imm_data=inv or socket.htonl(imm), send_flags=bits("IBV_SEND_", flags))
        if to:
            wr.set_wr_ud(self.ah(to["gid"], gid), to["qpn"], to.get("qkey", QKEY))
        elif op == "CMP_SWP":
            wr.set_wr_atomic(rkey, raddr, compare, swap)
        elif op == "FETCH_ADD":
            wr.set_wr_atomic(rkey, raddr, add)
        else:
            wr.set_wr_rdma(rkey, raddr)
        return wr

    def ah(self, gid, index):
        if (gid, index) not in self.ahs:
            self.ahs[gid, index] = AH(self.pd, attr=self.route(gid, index))
        return self.ahs[gid, index]

    def do_mw(self):
        return {"mw": self.keep("mw", MW(self.pd, e.IBV_MW_TYPE_2))}

    def do_bind(self, qp, mw, mr, access, off=0, len=None, wr_id=0):
        region, length = self.span(mr, off, len)
        window = MWBindInfo(region, region.buf + off, length, bits("IBV_ACCESS_", access))
        wr = SendWR(wr_id=wr_id, opcode=e.IBV_WR_BIND_MW, send_flags=e.IBV_SEND_SIGNALED)
        wr.set_bind_wr(self.things["mw"][mw], window)  # counts the key's low byte up
        self.things["qp"][qp].post_send(wr)
        return {"rkey": wr.rkey}

    def do_poll(self, n, timeout_ms=10000):
        got, end = [], time.monotonic() + timeout_ms / 1000
        while True:
            got += [self.completion(wc) for wc in self.cq.poll(n - len(got))[1]]
            if len(got) == n or time.monotonic() >= end:
                return {"wcs": got}
            time.sleep(0.0005)

    def completion(self, wc):
        out = {"wr_id": wc.wr_id, "status": STATUSES[wc.status], "qpn": wc.qp_num,
               "len": wc.byte_len}
        if wc.status == e.IBV_WC_SUCCESS:
            out["opcode"] = OPCODES[wc.opcode]
            if wc.wc_flags & e.IBV_WC_WITH_IMM:
                out["imm"] = socket.ntohl(wc.imm_data)
            if wc.wc_flags & e.IBV_WC_GRH:
                out["grh"], out["src_qp"] = True, wc.src_qp
        return out

    def do_arm(self, solicited=False):
        self.cq.req_notify(solicited)

    def do_event(self, timeout_ms=10000):
        if not readable(self.channel_fd, timeout_ms):
            return {"event": False}
        self.channel.get_cq_event(self.cq)
        self.cq.ack_events(1)
        return {"event": True}

    def do_async(self, timeout_ms=10000):
        if not readable(self.async_fd, timeout_ms):
            return {"event": None}
        event = self.context.get_async_event()
        event.ack()
        return {"event": EVENTS[event.event_type]}

    # --- the wire --------------------------------------------------------------

    def take_wire(self):
        if self.wire:
            return
        wire, end = open("/run/peer.wire", "w"), time.monotonic() + 60
        while True:
            try:
                fcntl.flock(wire, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.wire = wire
                return
            except BlockingIOError:
                if time.monotonic() > end:
                    raise RuntimeError("another session keeps its netem or drops") from None
                time.sleep(0.02)

    def do_netem(self, dir, args):
        """Only RoCEv2 goes through netem, by a detour over an ifb device."""
        hook, ifb = {"in": ("ingress", "ifb0"), "out": ("egress", "ifb1")}[dir]
        if args is not None:
            self.take_wire()
        elif not self.wire:
            return {"packets": 0, "dropped": 0}
        subprocess.run(["tc", "filter", "del", "dev", NETDEV, hook], capture_output=True)
        if args is None:
            shown = subprocess.run(["tc", "-s", "-j", "qdisc", "show", "dev", ifb], capture_output=True)
            subprocess.run(["tc", "qdisc", "del", "dev", ifb, "root"], capture_output=True)
            stats = json.loads(shown.stdout or "[{}]")[0]
            return {"packets": stats.get("packets", 0), "dropped": stats.get("drops", 0)}
        mtu = open(f"/sys/class/net/{NETDEV}/mtu").read().strip()
        sh("[ -e /sys/class/net/ifb0 ] || modprobe ifb numifbs=2\n"
           f"ip link set {ifb} mtu {mtu} up\n"
           f"tc qdisc replace dev {ifb} root netem limit 10000 {args}\n"
           f"tc qdisc show dev {NETDEV} | grep -q clsact || tc qdisc add dev {NETDEV} clsact\n"
           + "".join(f"tc filter add dev {NETDEV} {hook} protocol {protocol} flower ip_proto udp "
                     f"dst_port 4791 action mirred egress redirect dev {ifb}\n"
                     for protocol in ("ip", "ipv6")))

    def do_drop(self, dir, first=0, count=None, opcode=None):
        self.take_wire()
        hook = {"in": "prerouting", "out": "postrouting"}[dir]
        match = "udp dport 4791"
        if opcode is not None:
            match += f" @th,64,8 {opcode}"  # right behind the UDP header
        if first or count is not None:
            last = first + count - 1 if count is not None else 999999999
            match += f" numgen inc mod 1000000000 {first}-{last}"
        sh(f"nft 'table inet peer {{ chain {dir} {{ type filter hook {hook} priority -300; "
           f"{match} drop; }}; }}'")

    def do_undrop(self):
        if self.wire:
            subprocess.run(["nft", "delete table inet peer"], capture_output=True)

    def do_counters(self):
        paths = glob.glob(f"/sys/class/infiniband/{DEVICE}/ports/1/hw_counters/*")
        counters = {}
        for path in paths:
            text = open(path).read().strip()
            if text.isdigit():
                counters[os.path.basename(path)] = int(text)
        return {"counters": counters}

    # --- programs --------------------------------------------------------------

    def do_spawn(self, argv, listen=None):
        output = tempfile.TemporaryFile()
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        job = self.keep("job", (process, output))
        while listen and process.poll() is None and not listening(listen):
            time.sleep(0.02)
        return {"job": job}

    def do_wait(self, job, timeout_ms=30000):
        process, output = self.things["job"].pop(job)
        try:
            status = process.wait(timeout_ms / 1000)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = None
        with output:
            output.seek(0)
            return {"status": status, "output": output.read().decode(errors="replace")}

    def do_run(self, argv, timeout_ms=30000):
        return self.do_wait(self.do_spawn(argv)["job"], timeout_ms)


def listening(port):
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in open(path).readlines()[1:]:
            _, local, _, state = line.split()[:4]
            if state == "0A" and int(local.rsplit(":", 1)[1], 16) == port:
                return True
    return False


def serve(conn):
    """One session, in a process of its own."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    session = Session()
    try:
        with conn, conn.makefile("r") as lines:
            for line in lines:
                conn.sendall(json.dumps(session.handle(line)).encode() + b"\n")
    except ConnectionError:
        pass
    finally:
        session.close()


def main(addr, port=4792):
    listener = socket.create_server((addr, int(port)), backlog=16)
    pid = os.fork()
    if pid:
        with open("/run/peer.pid", "w") as file:
            print(pid, file=file)
        return
    os.setsid()
    log = os.open("/run/peer.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    null = os.open("/dev/null", os.O_RDONLY)
    for fd, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(fd, target)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        conn, _ = listener.accept()
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if os.fork() == 0:
            listener.close()
            try:
                serve(conn)
            finally:
                os._exit(0)
        conn.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
