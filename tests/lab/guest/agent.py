#!/usr/bin/python3
"""The control channel of a lab VM.

    agent.py serve ADDR PORT        in the VM: runs each command that a client sends
    agent.py call ADDR PORT CMD     outside: runs CMD (sh -c) there; its stdout, stderr
                                    and exit status become this process's own

A connection is one command, ended by a NUL. Frames come back: one byte of kind
(o: stdout, e: stderr, x: exit status), four bytes of length, data. A client that
goes away has its command's process group killed."""
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading


def run(conn):
    with conn:
        command = b""
        while not command.endswith(b"\0"):
            data = conn.recv(65536)
            if not data:
                return
            command += data
        child = subprocess.Popen(["/bin/sh", "-c", command[:-1]], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 start_new_session=True)
        try:
            relay(conn, child)
        except OSError:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def relay(conn, child):
    """Until the command's pipes are dry: what it left in the background with its
    output redirected goes on by itself."""
    watch = selectors.DefaultSelector()
    watch.register(child.stdout, selectors.EVENT_READ, b"o")
    watch.register(child.stderr, selectors.EVENT_READ, b"e")
    watch.register(conn, selectors.EVENT_READ)
    while len(watch.get_map()) > 1:
        for key, _ in watch.select():
            if key.fileobj is conn:
                if not conn.recv(1):
                    raise ConnectionError("the client went away")
                continue
            data = os.read(key.fd, 65536)
            if data:
                conn.sendall(key.data + struct.pack(">I", len(data)) + data)
            else:
                watch.unregister(key.fileobj)
    status = child.wait()
    conn.sendall(b"x" + struct.pack(">Ii", 4, status if status >= 0 else 128 - status))


def serve(addr, port):
    listener = socket.create_server((addr, port), backlog=64)
    while True:
        conn, _ = listener.accept()
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=run, args=(conn,), daemon=True).start()


def call(addr, port, command):
    conn = socket.create_connection((addr, port), timeout=5)
    conn.settimeout(None)
    conn.sendall(command.encode() + b"\0")
    frames = conn.makefile("rb")
    while head := frames.read(5):
        data = frames.read(struct.unpack(">I", head[1:])[0])
        if head[:1] == b"x":
            return struct.unpack(">i", data)[0]
        out = sys.stdout if head[:1] == b"o" else sys.stderr
        out.buffer.write(data)
        out.flush()
    print("agent: the VM hung up", file=sys.stderr)
    return 255


if __name__ == "__main__":
    mode, addr, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    sys.exit(serve(addr, port) if mode == "serve" else call(addr, port, " ".join(sys.argv[4:])))
