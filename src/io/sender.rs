//! The sending half of both socket backends: bursts out by lanes, refusals told apart from full buffers.

use core::net::IpAddr;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};

use crate::transport::Burst;

use super::lanes::{Lane, Lanes};
use super::outgoing::Outgoing;
use super::port::{PortCounters, Refusal, RefusalReason};

/// Refusals kept for whoever asks.
const MAX_REFUSALS: usize = 64;

/// A way to hand messages to the kernel.
pub(crate) trait Submit: Send {
    /// Sends `headers[i]` on `fds[i]`, in order, without blocking, and stops at the first that the kernel does not take:
    /// gives back how many it took, and that one's errno. The kernel no longer reads what the headers point to.
    ///
    /// # Safety
    ///
    /// What the headers point to must be readable for the length of the call.
    unsafe fn submit(&mut self, fds: &[RawFd], headers: &mut [libc::mmsghdr]) -> (usize, Option<i32>);
}

pub(crate) struct Sender {
    lanes: Lanes,
    outgoing: Outgoing,
    submit: Box<dyn Submit>,
    /// Index of the interface that packets leave by; 0 leaves it to the routes.
    interface: u32,
    blocked: Option<Lane>,
    refusals: VecDeque<Refusal>,
    /// The kernel refused to segment, though what it refused fits the MTU.
    segmentation_failed: Option<i32>,
}

impl Sender {
    pub(crate) fn new(lanes: Lanes, submit: Box<dyn Submit>, interface: u32) -> Self {
        Self {
            lanes,
            outgoing: Outgoing::new(),
            submit,
            interface,
            blocked: None,
            refusals: VecDeque::with_capacity(MAX_REFUSALS),
            segmentation_failed: None,
        }
    }

    /// See [`Port::send`](super::Port::send).
    pub(crate) fn send(&mut self, bursts: &[Burst], counters: &mut PortCounters) -> usize {
        self.blocked = None;
        let mut taken = 0;
        while let Some(rest) = bursts.get(taken..)
            && let Some(first) = rest.first()
        {
            let prepared = self.prepare(rest);
            if self.outgoing.is_empty() {
                // Only the first can have failed: what was prepared before another would have been sent first.
                if let Err(failure) = prepared {
                    self.refuse(first, failure, counters);
                }
                taken += 1;
                continue;
            }
            let (done, errno) = self.submit();
            for burst in rest.iter().take(done) {
                counters.sends += 1;
                counters.transmitted_packets += u64::from(burst.packet_count());
                counters.transmitted_bytes += burst.len_bytes() as u64;
            }
            taken += done;
            let Some(errno) = errno else { continue };
            if is_full(errno) {
                counters.backpressure += 1;
                self.blocked = self.outgoing.lane(done);
                break;
            }
            if let Some(refused) = rest.get(done) {
                self.handle_refusal(refused, errno, counters);
                taken += 1;
            }
        }
        taken
    }

    /// Where the last send found a full buffer.
    pub(crate) fn blocked_on(&self) -> Option<BorrowedFd<'_>> {
        self.lanes.get(self.blocked?)
    }

    pub(crate) fn poll_refusal(&mut self) -> Option<Refusal> {
        self.refusals.pop_front()
    }

    /// The errno by which the kernel refused to segment, once.
    pub(crate) fn take_segmentation_failure(&mut self) -> Option<i32> {
        self.segmentation_failed.take()
    }

    /// Makes messages of as many bursts as fit, up to the first that cannot be sent.
    fn prepare(&mut self, bursts: &[Burst]) -> Result<(), (RefusalReason, i32)> {
        self.outgoing.clear();
        for burst in bursts {
            if burst.is_empty() {
                // Nothing to send: taken with whatever stands before it.
                break;
            }
            let lane = lane_of(burst);
            let fd = self.lanes.socket(lane).map_err(|error| {
                let errno = error.raw_os_error().unwrap_or(0);
                (RefusalReason::of_errno(errno), errno)
            })?;
            if !self.outgoing.push(fd, lane, self.interface, burst) {
                break;
            }
        }
        Ok(())
    }

    fn submit(&mut self) -> (usize, Option<i32>) {
        // `fds` and `headers` are both parts of `outgoing`: a copy of the few fds keeps them apart.
        let mut fds = [0; super::outgoing::MAX_MESSAGES];
        let count = self.outgoing.fds().len().min(fds.len());
        for (to, from) in fds.iter_mut().zip(self.outgoing.fds()) {
            *to = *from;
        }
        let headers = self.outgoing.headers();
        // SAFETY: the headers were made just now; `send` borrows the bursts that they point into, and
        // `outgoing` is not touched before the call returns.
        unsafe { self.submit.submit(fds.get(..count).unwrap_or_default(), headers) }
    }

    /// A refused super-packet is tried once more as its first packet alone: that tells an MTU that is too small from a
    /// kernel that does not segment (both are `EINVAL` before Linux 6.13; a device without checksum offload gives `EIO`).
    fn handle_refusal(&mut self, burst: &Burst, errno: i32, counters: &mut PortCounters) {
        let mut failure = (RefusalReason::of_errno(errno), errno);
        let is_segmented = burst.packet_count() > 1;
        if is_segmented && matches!(errno, libc::EINVAL | libc::EIO | libc::EOPNOTSUPP) {
            if self.prepare(core::slice::from_ref(burst)).is_err() || self.outgoing.is_empty() {
                return self.refuse(burst, failure, counters);
            }
            self.outgoing.keep_first_packet(burst, self.interface);
            match self.submit() {
                (_, None) => {
                    // Its other packets carry ICRCs for identifications that only segmentation gives: they are lost.
                    counters.transmitted_packets += 1;
                    counters.transmitted_bytes += u64::from(burst.segment_bytes());
                    self.segmentation_failed = Some(errno);
                }
                (_, Some(single)) => failure = (RefusalReason::of_errno(single), single),
            }
        }
        self.refuse(burst, failure, counters);
    }

    fn refuse(&mut self, burst: &Burst, (reason, errno): (RefusalReason, i32), counters: &mut PortCounters) {
        match reason {
            RefusalReason::TooLarge => counters.refused_too_large += 1,
            RefusalReason::Unreachable => counters.refused_unreachable += 1,
            RefusalReason::Forbidden | RefusalReason::LaneTaken => counters.refused_forbidden += 1,
            RefusalReason::Other => counters.refused_other += 1,
        }
        if self.refusals.len() == MAX_REFUSALS {
            self.refusals.pop_front();
        }
        let flow = burst.flow();
        self.refusals.push_back(Refusal {
            destination: flow.destination.to_canonical(),
            source_port: flow.source_port,
            packet_bytes: burst.segment_bytes() as usize,
            reason,
            errno,
        });
    }
}

fn lane_of(burst: &Burst) -> Lane {
    let flow = burst.flow();
    let is_ipv6 = matches!(flow.destination.to_canonical(), IpAddr::V6(_));
    Lane { is_ipv6, source_port: flow.source_port }
}

/// Whether waiting cures it.
fn is_full(errno: i32) -> bool {
    errno == libc::EAGAIN || errno == libc::ENOBUFS || errno == libc::ENOMEM
}

/// By plain system calls: `sendmmsg` for each run of messages on one socket.
pub(crate) struct Syscalls;

impl Submit for Syscalls {
    unsafe fn submit(&mut self, fds: &[RawFd], headers: &mut [libc::mmsghdr]) -> (usize, Option<i32>) {
        let mut done = 0;
        while let (Some(fd), Some(rest)) = (fds.get(done), headers.get_mut(done..)) {
            let run = fds.iter().skip(done).take_while(|other| *other == fd).count().min(rest.len());
            let Some(run) = rest.get_mut(..run) else { break };
            // SAFETY: the headers are valid (the caller's promise), `run.len()` of them.
            let sent = unsafe { libc::sendmmsg(*fd, run.as_mut_ptr(), run.len() as u32, libc::MSG_DONTWAIT) };
            match usize::try_from(sent) {
                Ok(sent) => done += sent,
                Err(_) => match io::Error::last_os_error().raw_os_error() {
                    Some(libc::EINTR) => {}
                    errno => return (done, Some(errno.unwrap_or(libc::EIO))),
                },
            }
        }
        (done, None)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::io::namespace::{Namespace, run_test};
    use crate::transport::{AddressVector, BurstLimits};
    use std::sync::{Arc, Mutex};

    /// A kernel that takes at most so many bytes in a message, and refuses to segment with this errno.
    struct Kernel {
        mtu: usize,
        errno: i32,
        taken: Arc<Mutex<Vec<usize>>>,
    }

    impl Submit for Kernel {
        unsafe fn submit(&mut self, _: &[RawFd], headers: &mut [libc::mmsghdr]) -> (usize, Option<i32>) {
            for (done, header) in headers.iter().enumerate() {
                // SAFETY: the caller's promise.
                let pieces = unsafe { core::slice::from_raw_parts(header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) };
                let bytes: usize = pieces.iter().map(|piece| piece.iov_len).sum();
                // Packet info, TOS and TTL take 80 bytes; a segment size comes on top.
                if header.msg_hdr.msg_controllen > 80 {
                    return (done, Some(self.errno));
                }
                if bytes > self.mtu {
                    return (done, Some(libc::EMSGSIZE));
                }
                self.taken.lock().unwrap().push(bytes);
            }
            (headers.len(), None)
        }
    }

    fn sent(mtu: usize, errno: i32, packets: u16) -> (PortCounters, Option<i32>, Refusal, Vec<usize>) {
        let taken = Arc::<Mutex<Vec<usize>>>::default();
        let kernel = Kernel { mtu, errno, taken: Arc::clone(&taken) };
        let mut sender = Sender::new(Lanes::new(8, 1 << 16), Box::new(kernel), 0);
        let address = IpAddr::from([198, 18, 0, 1]);
        let flow = AddressVector {
            source: address,
            destination: address,
            source_port: 0xc000,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        let mut burst = Burst::new(BurstLimits::default());
        while burst.packet_count() < packets {
            assert!(burst.push_raw(&flow, &[7; 1000]));
        }
        let mut counters = PortCounters::default();
        let bursts = [burst];
        let count = Namespace::new().unwrap().run(|| sender.send(&bursts, &mut counters)).unwrap();
        assert_eq!(count, 1, "a refused burst counts as taken");
        let taken = taken.lock().unwrap().clone();
        (counters, sender.take_segmentation_failure(), sender.poll_refusal().unwrap(), taken)
    }

    #[test]
    fn a_kernel_that_does_not_segment_is_told_from_a_small_mtu() {
        run_test("io::sender::tests::a_kernel_that_does_not_segment_is_told_from_a_small_mtu", || {
            for errno in [libc::EINVAL, libc::EIO] {
                let (counters, failure, refusal, taken) = sent(1500, errno, 3);
                assert_eq!((failure, refusal.errno, counters.refused_other), (Some(errno), errno, 1));
                assert_eq!((taken, counters.transmitted_packets), (vec![1000], 1), "its first packet is good alone");
                let (counters, failure, refusal, taken) = sent(900, errno, 3);
                assert_eq!((failure, refusal.reason, counters.refused_too_large), (None, RefusalReason::TooLarge, 1));
                assert!(taken.is_empty());
            }
            let (_, failure, refusal, _) = sent(900, libc::EIO, 1);
            assert_eq!((failure, refusal.reason), (None, RefusalReason::TooLarge));
        });
    }
}
