//! Bursts as the kernel wants them: addresses, control messages and bytes, for `sendmsg` and its relatives.

use core::mem;
use core::net::IpAddr;
use core::ptr;
use std::os::fd::RawFd;

use crate::transport::{AddressVector, Burst};
use crate::wire::ROCE_PORT;

use super::lanes::Lane;

/// Messages of one call to the kernel.
pub(crate) const MAX_MESSAGES: usize = 16;
/// Room for packet info, traffic class, hop limit and segment size, 8-byte aligned.
const CONTROL_WORDS: usize = 16;

/// Messages ready to be sent. Used again without allocating; all pointers in it are into itself or into the bursts, and are
/// used before either can change: see [`Outgoing::headers`].
pub(crate) struct Outgoing {
    fds: Vec<RawFd>,
    lanes: Vec<Lane>,
    names: Vec<Name>,
    controls: Vec<Control>,
    /// The bytes of each message.
    pieces: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
}

// SAFETY: the raw pointers in `pieces` and `headers` are left over from earlier sends and are overwritten before they are
// given to the kernel again, on whatever thread.
unsafe impl Send for Outgoing {}

#[derive(Clone, Copy)]
enum Name {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

#[derive(Clone, Copy)]
struct Control {
    words: [u64; CONTROL_WORDS],
    len_bytes: usize,
}

impl Outgoing {
    pub(crate) fn new() -> Self {
        Self {
            fds: Vec::with_capacity(MAX_MESSAGES),
            lanes: Vec::with_capacity(MAX_MESSAGES),
            names: Vec::with_capacity(MAX_MESSAGES),
            controls: Vec::with_capacity(MAX_MESSAGES),
            pieces: Vec::with_capacity(MAX_MESSAGES),
            headers: Vec::with_capacity(MAX_MESSAGES),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.fds.clear();
        self.lanes.clear();
        self.names.clear();
        self.controls.clear();
        self.pieces.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fds.is_empty()
    }

    pub(crate) fn lane(&self, message: usize) -> Option<Lane> {
        self.lanes.get(message).copied()
    }

    /// The sockets, one a message.
    pub(crate) fn fds(&self) -> &[RawFd] {
        &self.fds
    }

    /// Adds `burst`; `false` if there is no room for it in this call.
    pub(crate) fn push(&mut self, fd: RawFd, lane: Lane, interface: u32, burst: &Burst) -> bool {
        if self.fds.len() == MAX_MESSAGES {
            return false;
        }
        self.fds.push(fd);
        self.lanes.push(lane);
        self.pieces.push(iovec(burst.bytes()));
        self.names.push(Name::of(burst.flow(), interface));
        let segment = (burst.packet_count() > 1).then(|| burst.segment_bytes() as u16);
        self.controls.push(Control::of(burst.flow(), interface, segment));
        true
    }

    /// Cuts the first message down to its first packet, sent without segmentation.
    pub(crate) fn keep_first_packet(&mut self, burst: &Burst, interface: u32) {
        self.fds.truncate(1);
        self.pieces.clear();
        self.pieces.push(iovec(burst.bytes().get(..burst.segment_bytes() as usize).unwrap_or_default()));
        self.controls.clear();
        self.controls.push(Control::of(burst.flow(), interface, None));
    }

    /// The message headers. They hold for as long as neither `self` nor the bursts are changed.
    pub(crate) fn headers(&mut self) -> &mut [libc::mmsghdr] {
        self.headers.clear();
        for (i, piece) in self.pieces.iter_mut().enumerate() {
            // SAFETY: all zeroes is a valid value of this C struct (null pointers, zero lengths).
            let mut header: libc::mmsghdr = unsafe { mem::zeroed() };
            let message = &mut header.msg_hdr;
            if let Some(name) = self.names.get_mut(i) {
                (message.msg_name, message.msg_namelen) = name.as_raw();
            }
            if let Some(control) = self.controls.get_mut(i) {
                message.msg_control = control.words.as_mut_ptr().cast();
                message.msg_controllen = control.len_bytes as _;
            }
            message.msg_iov = piece;
            message.msg_iovlen = 1;
            self.headers.push(header);
        }
        &mut self.headers
    }
}

/// For sends, which only read through it.
fn iovec(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

impl Name {
    fn of(flow: &AddressVector, interface: u32) -> Self {
        match flow.destination.to_canonical() {
            IpAddr::V4(address) => Self::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as _,
                sin_port: ROCE_PORT.to_be(),
                sin_addr: libc::in_addr { s_addr: address.to_bits().to_be() },
                sin_zero: [0; 8],
            }),
            IpAddr::V6(address) => Self::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as _,
                sin6_port: ROCE_PORT.to_be(),
                sin6_flowinfo: (flow.flow_label & 0x000f_ffff).to_be(),
                sin6_addr: libc::in6_addr { s6_addr: address.octets() },
                sin6_scope_id: if address.is_unicast_link_local() { interface } else { 0 },
            }),
        }
    }

    fn as_raw(&mut self) -> (*mut libc::c_void, libc::socklen_t) {
        match self {
            Self::V4(name) => (ptr::from_mut(name).cast(), mem::size_of_val(name) as _),
            Self::V6(name) => (ptr::from_mut(name).cast(), mem::size_of_val(name) as _),
        }
    }
}

impl Control {
    fn of(flow: &AddressVector, interface: u32, segment: Option<u16>) -> Self {
        let mut control = Self { words: [0; CONTROL_WORDS], len_bytes: 0 };
        let (class, hops) = (i32::from(flow.traffic_class), i32::from(flow.hop_limit));
        match flow.source.to_canonical() {
            IpAddr::V4(source) => {
                let source = libc::in_addr { s_addr: source.to_bits().to_be() };
                let info = libc::in_pktinfo {
                    ipi_ifindex: interface as i32,
                    ipi_spec_dst: source,
                    ipi_addr: libc::in_addr { s_addr: 0 },
                };
                control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, info);
                control.push(libc::IPPROTO_IP, libc::IP_TOS, class);
                control.push(libc::IPPROTO_IP, libc::IP_TTL, hops.max(1));
            }
            IpAddr::V6(source) => {
                let source = libc::in6_addr { s6_addr: source.octets() };
                let info = libc::in6_pktinfo { ipi6_addr: source, ipi6_ifindex: interface };
                control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
                control.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class);
                control.push(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, hops.max(1));
            }
        }
        if let Some(segment) = segment {
            control.push(libc::SOL_UDP, libc::UDP_SEGMENT, segment);
        }
        control
    }

    fn push<T: Copy>(&mut self, level: i32, kind: i32, value: T) {
        let size = mem::size_of::<T>();
        // SAFETY: CMSG_LEN and CMSG_SPACE only compute.
        let (len, space) = unsafe { (libc::CMSG_LEN(size as u32) as usize, libc::CMSG_SPACE(size as u32) as usize) };
        debug_assert!(self.len_bytes + space <= mem::size_of_val(&self.words), "room for all that `of` pushes");
        if self.len_bytes + space > mem::size_of_val(&self.words) {
            return;
        }
        let header = libc::cmsghdr { cmsg_len: len as _, cmsg_level: level, cmsg_type: kind };
        // SAFETY: `len_bytes + space` bytes lie within `words` (checked), whose alignment is that of `cmsghdr`, and each
        // `space` is a multiple of it. The value is written right behind the header, where CMSG_DATA is, within `space`.
        unsafe {
            let at = self.words.as_mut_ptr().cast::<u8>().add(self.len_bytes);
            at.cast::<libc::cmsghdr>().write(header);
            at.add(len - size).cast::<T>().write_unaligned(value);
        }
        self.len_bytes += space;
    }
}
