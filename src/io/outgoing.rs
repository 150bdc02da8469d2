//! Bursts as the kernel wants them: addresses, control messages and pieces, for `sendmsg` and its relatives.

use core::mem;
use core::net::IpAddr;
use core::ptr;
use std::os::fd::RawFd;

use crate::memory::{AccessError, Memory};
use crate::transport::{AddressVector, Burst};
use crate::wire::ROCE_PORT;

use super::lanes::Lane;

/// Messages of one call to the kernel.
pub(crate) const MAX_MESSAGES: usize = 16;
/// Pieces that the kernel takes in one message.
const MAX_PIECES: usize = libc::UIO_MAXIOV as usize;
/// Pieces of all messages of one call; a burst whose pieces would not fit begins the next call.
const TOTAL_PIECES: usize = 4 * MAX_PIECES;
/// Room for packet info, traffic class, hop limit and segment size, 8-byte aligned.
const CONTROL_WORDS: usize = 16;

/// Messages ready to be sent. Used again without allocating; all pointers in it are into itself or into the client memory
/// that the bursts were resolved against, and are used before either can change: see [`Outgoing::headers`].
pub(crate) struct Outgoing {
    fds: Vec<RawFd>,
    lanes: Vec<Lane>,
    names: Vec<Name>,
    controls: Vec<Control>,
    /// Where each message's pieces end.
    ends: Vec<usize>,
    pieces: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
    /// The bytes of a burst in too many pieces.
    flat: Vec<u8>,
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
            ends: Vec::with_capacity(MAX_MESSAGES),
            pieces: Vec::with_capacity(TOTAL_PIECES),
            headers: Vec::with_capacity(MAX_MESSAGES),
            flat: Vec::new(),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.fds.clear();
        self.lanes.clear();
        self.names.clear();
        self.controls.clear();
        self.ends.clear();
        self.pieces.clear();
        self.flat.clear();
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

    /// Adds `burst`; `false` if there is no room for it in this call. An error if memory of it is gone.
    pub(crate) fn push(
        &mut self,
        fd: RawFd,
        lane: Lane,
        interface: u32,
        burst: &Burst,
        memory: &Memory,
    ) -> Result<bool, AccessError> {
        let list = burst.gather();
        let count = list.piece_count();
        // One flat burst a call: its bytes must not move while others are added.
        let is_flat = count > MAX_PIECES;
        let needed = if is_flat { 1 } else { count };
        if self.fds.len() == MAX_MESSAGES
            || self.pieces.len() + needed > TOTAL_PIECES
            || (is_flat && !self.flat.is_empty())
        {
            return Ok(false);
        }
        let start = self.pieces.len();
        if is_flat {
            memory.copy_list(list, &mut self.flat)?;
            self.pieces.push(libc::iovec { iov_base: self.flat.as_mut_ptr().cast(), iov_len: self.flat.len() });
        } else {
            for piece in list.pieces() {
                match memory.slice(list, piece) {
                    Ok(slice) => self.pieces.push(slice.as_iovec()),
                    Err(error) => {
                        self.pieces.truncate(start);
                        return Err(error);
                    }
                }
            }
        }
        self.fds.push(fd);
        self.lanes.push(lane);
        self.ends.push(self.pieces.len());
        self.names.push(Name::of(burst.flow(), interface));
        let segment = (burst.packet_count() > 1).then(|| burst.segment_bytes() as u16);
        self.controls.push(Control::of(burst.flow(), interface, segment));
        Ok(true)
    }

    /// Cuts the first message down to its first packet, sent without segmentation.
    pub(crate) fn keep_first_packet(&mut self, burst: &Burst, interface: u32) {
        let mut left = burst.segment_bytes() as usize;
        let mut kept = 0;
        for piece in &mut self.pieces {
            if left == 0 {
                break;
            }
            piece.iov_len = piece.iov_len.min(left);
            left -= piece.iov_len;
            kept += 1;
        }
        self.fds.truncate(1);
        self.ends.clear();
        self.ends.push(kept);
        self.controls.clear();
        self.controls.push(Control::of(burst.flow(), interface, None));
    }

    /// The message headers. They hold for as long as `self` is not changed and the memory that the bursts were resolved
    /// against is borrowed.
    pub(crate) fn headers(&mut self) -> &mut [libc::mmsghdr] {
        self.headers.clear();
        let mut start = 0;
        for (i, end) in self.ends.iter().enumerate() {
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
            if let Some(pieces) = self.pieces.get_mut(start..*end) {
                message.msg_iov = pieces.as_mut_ptr();
                message.msg_iovlen = pieces.len() as _;
            }
            self.headers.push(header);
            start = *end;
        }
        &mut self.headers
    }
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
