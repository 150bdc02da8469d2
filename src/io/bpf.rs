//! Classic BPF programs: which packets a socket sees, and which worker of several gets them.
//!
//! Set by `setsockopt`, so they need no privilege beyond the socket's. Kernel documentation: networking/filter.rst.

use core::net::IpAddr;
use std::io;
use std::os::fd::AsFd;

use libc::sock_filter;

use super::sockopt;
use crate::engine::Worker;
use crate::wire::{ROCE_PORT, UDP_LEN};

/// More own addresses than this are not looked at in the kernel, but one by one after receive.
const MAX_ADDRESSES: usize = 64;
/// Loads relative to the IP header, wherever the link header (and a VLAN tag, which the kernel keeps aside) ends.
const NET: i32 = libc::SKF_NET_OFF;
const UDP: u32 = libc::IPPROTO_UDP as u32;
const ACCEPT: u32 = u32::MAX;
/// Offset of the word in the BTH whose low 24 bits are the destination queue pair.
const DEST_QP: i32 = 4;
const QP_MASK: u32 = 0x00ff_ffff;
/// The general services QP lives on worker 0, whatever its number's low bits say.
const QP1: u32 = 1;

/// Puts `program` on a socket: `option` is `SO_ATTACH_FILTER` or `SO_ATTACH_REUSEPORT_CBPF`.
pub(crate) fn attach(socket: &impl AsFd, option: i32, program: &mut [sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: program.as_mut_ptr(),
    };
    sockopt::set(socket, libc::SOL_SOCKET, option, &program)
}

/// Drops everything: for a socket that only sends, or only holds a port.
pub(crate) fn drop_all() -> Vec<sock_filter> {
    vec![statement(libc::BPF_RET | libc::BPF_K, 0)]
}

/// For an `AF_PACKET` socket: whole UDP datagrams that arrive for us (not those we send) at the RoCE port, at one of
/// `addresses` if there are any, and for this worker.
pub(crate) fn packet_filter(addresses: &[IpAddr], worker: Worker) -> Vec<sock_filter> {
    let mut program = vec![load_word(libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE)];
    require(&mut program, u32::from(libc::PACKET_HOST));
    program.push(load_word(libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL));
    let v4 = ipv4(addresses, worker);
    program.extend([jump_unless(libc::ETH_P_IP as u32, 1), skip(v4.len())]);
    program.extend(v4);
    require(&mut program, libc::ETH_P_IPV6 as u32);
    program.extend(ipv6(addresses, worker));
    program
}

fn ipv4(addresses: &[IpAddr], worker: Worker) -> Vec<sock_filter> {
    let mut program = vec![load_byte(NET + 9)];
    require(&mut program, UDP);
    // More Fragments, or a fragment offset.
    program.extend([load_half(NET + 6), statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0x3fff)]);
    require(&mut program, 0);
    let own = addresses.iter().filter_map(|a| match a {
        IpAddr::V4(v4) => Some([v4.to_bits()]),
        IpAddr::V6(_) => None,
    });
    require_one_of(&mut program, NET + 16, own, addresses);
    // X = the length of the header.
    program.extend([
        load_byte(NET),
        statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0x0f),
        statement(libc::BPF_ALU | libc::BPF_LSH | libc::BPF_K, 2),
        statement(libc::BPF_MISC | libc::BPF_TAX, 0),
        statement(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, (NET + 2) as u32),
    ]);
    require(&mut program, u32::from(ROCE_PORT));
    let dest_qp = statement(libc::BPF_LD | libc::BPF_W | libc::BPF_IND, (NET + UDP_LEN as i32 + DEST_QP) as u32);
    require_worker(&mut program, dest_qp, worker);
    program
}

fn ipv6(addresses: &[IpAddr], worker: Worker) -> Vec<sock_filter> {
    let mut program = vec![load_byte(NET + 6)];
    require(&mut program, UDP);
    let own = addresses.iter().filter_map(|a| match a {
        IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            Some([(bits >> 96) as u32, (bits >> 64) as u32, (bits >> 32) as u32, bits as u32])
        }
        IpAddr::V4(_) => None,
    });
    require_one_of(&mut program, NET + 24, own, addresses);
    program.push(load_half(NET + 42));
    require(&mut program, u32::from(ROCE_PORT));
    require_worker(&mut program, load_word(NET + 40 + UDP_LEN as i32 + DEST_QP), worker);
    program
}

/// For `SO_ATTACH_REUSEPORT_CBPF`, whose packets start at the UDP payload: the index of the socket in its group is the worker.
pub(crate) fn reuseport_program(worker: Worker) -> Vec<sock_filter> {
    let mut program = vec![load_word(DEST_QP)];
    program.extend(worker_of(worker));
    program.push(statement(libc::BPF_RET | libc::BPF_A, 0));
    program
}

/// A = the queue pair's worker, from A = the word with its number.
fn worker_of(worker: Worker) -> [sock_filter; 5] {
    [
        statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, QP_MASK),
        jump(libc::BPF_JEQ, QP1, 2, 0),
        statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, worker.mask()),
        jump(libc::BPF_JGE, u32::from(worker.count()), 0, 1),
        statement(libc::BPF_LD | libc::BPF_IMM, 0),
    ]
}

fn require_worker(program: &mut Vec<sock_filter>, load: sock_filter, worker: Worker) {
    if worker.count() > 1 {
        program.push(load);
        program.extend(worker_of(worker));
        require(program, u32::from(worker.index()));
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, ACCEPT));
}

/// Goes on if A is `value`, drops the packet otherwise.
fn require(program: &mut Vec<sock_filter>, value: u32) {
    program.extend([jump(libc::BPF_JEQ, value, 1, 0), statement(libc::BPF_RET | libc::BPF_K, 0)]);
}

/// Goes on if the `N` words at `offset` are one of `own`; `all` tells whether there is anything to compare with.
fn require_one_of<const N: usize>(
    program: &mut Vec<sock_filter>,
    offset: i32,
    own: impl Iterator<Item = [u32; N]>,
    all: &[IpAddr],
) {
    if all.is_empty() || all.len() > MAX_ADDRESSES {
        return;
    }
    let own: Vec<[u32; N]> = own.collect();
    // Each address: N times (load, compare), then a jump over the addresses that follow and the final drop.
    let block = 2 * N + 1;
    for (i, words) in own.iter().enumerate() {
        for (word, value) in words.iter().enumerate() {
            let to_next = block - 2 * (word + 1);
            program.push(load_word(offset + 4 * word as i32));
            program.push(jump(libc::BPF_JEQ, *value, 0, to_next as u8));
        }
        program.push(skip(block * (own.len() - 1 - i) + 1));
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, 0));
}

fn load_word(offset: i32) -> sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset as u32)
}

fn load_half(offset: i32) -> sock_filter {
    statement(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, offset as u32)
}

fn load_byte(offset: i32) -> sock_filter {
    statement(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, offset as u32)
}

/// Jumps over `count` statements.
fn skip(count: usize) -> sock_filter {
    statement(libc::BPF_JMP | libc::BPF_JA, count as u32)
}

/// Jumps over one statement if A is `value`: what follows is for when it is not.
fn jump_unless(value: u32, over: u8) -> sock_filter {
    jump(libc::BPF_JEQ, value, over, 0)
}

fn jump(condition: u32, value: u32, when: u8, unless: u8) -> sock_filter {
    sock_filter { code: (libc::BPF_JMP | condition | libc::BPF_K) as u16, jt: when, jf: unless, k: value }
}

fn statement(code: u32, value: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k: value }
}
