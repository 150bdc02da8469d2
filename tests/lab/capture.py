#!/usr/bin/python3
"""Judges a capture of RoCEv2 traffic (classic pcap, Ethernet): the ICRC of every packet,
computed here independently of the code under test, and what tshark calls malformed. What
comes from the lab's bridge, where holdfast is, must be without fault.

    capture.py FILE"""
import struct
import subprocess
import sys
import zlib

# The MAC address of the lab's bridge.
HOLDFAST = bytes.fromhex("5254001800ff")
# tshark tries these on any payload, finds them, and calls ordinary bytes malformed.
GUESSES = ("rpcordma", "smb_direct", "smc", "nvme-rdma", "lnet", "iser", "infiniband_sdp", "infiniband.eoib",
           "fcoib", "ipoib", "drbd")


def frames(path):
    with open(path, "rb") as file:
        magic, = struct.unpack("<I", file.read(24)[:4])
        assert magic in (0xA1B2C3D4, 0xA1B23C4D), f"{path}: no little-endian pcap"
        while len(head := file.read(16)) == 16:
            yield file.read(struct.unpack("<8xI4x", head)[0])


def icrc_good(frame):
    """None if the frame is not RoCEv2."""
    kind, ip = struct.unpack(">H", frame[12:14])[0], bytearray(frame[14:])
    if kind == 0x0800 and ip[9] == 17:
        udp = (ip[0] & 15) * 4
        del ip[struct.unpack(">H", ip[2:4])[0]:]  # Ethernet padding
        masked = [1, 8, 10, 11]
    elif kind == 0x86DD and ip[6] == 17:
        udp = 40
        del ip[udp + struct.unpack(">H", ip[4:6])[0]:]
        ip[0] |= 0x0F
        masked = [1, 2, 3, 7]
    else:
        return None
    if ip[udp + 2:udp + 4] != b"\x12\xb7":
        return None
    for at in masked + [udp + 6, udp + 7, udp + 12]:
        ip[at] = 0xFF
    return zlib.crc32(b"\xff" * 8 + ip[:-4]) == int.from_bytes(ip[-4:], "little")


def malformed(path):
    """The source and a description of each packet that tshark calls malformed, not counting those where it took the
    first bytes of a SEND's payload for an EtherType (there is no --disable-protocol for that) and went on from there."""
    quiet = [word for name in GUESSES for word in ("--disable-protocol", name)]
    fields = [word for name in ("eth.src", "frame.number", "frame.protocols") for word in ("-e", name)]
    lines = subprocess.run(["tshark", "-r", path, *quiet, "-Y", "_ws.malformed", "-T", "fields", *fields], text=True,
                           check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.splitlines()
    return [(bytes.fromhex(line.split("\t")[0].replace(":", "")), line) for line in lines
            if ":infiniband:ethertype" not in line]


def main(path):
    icrcs = {True: [], False: [], None: []}
    for frame in frames(path):
        icrcs[icrc_good(frame)].append(frame[6:12])
    odd = malformed(path)
    fails = False
    for name, is_from in (("holdfast", lambda source: source == HOLDFAST), ("rxe", lambda source: source != HOLDFAST)):
        good, bad = (sum(map(is_from, icrcs[verdict])) for verdict in (True, False))
        lines = [line for source, line in odd if is_from(source)]
        print(f"{good + bad} RoCEv2 packets of {name}: {bad} with a bad ICRC, {len(lines)} malformed")
        print("".join(line + "\n" for line in lines[:10]), end="")
        # Without any good ones nothing was shown. rxe's faults are told, but are its own: its retransmission after
        # loss is known to send packets that it did not mean to.
        fails |= not good or name == "holdfast" and bool(bad or lines)
    return int(fails)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
