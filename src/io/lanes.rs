//! Lanes: the UDP sockets that send, one for each source port in use.
//!
//! The source port is a flow's entropy: switches choose a flow's way by it, so a queue pair that moves to another lane moves
//! to another way. The sockets are never connected and set `IP_PMTUDISC_PROBE`: the kernel then sends DF and identification
//! 0 (0, 1, 2, … within a segmented send), and the ICRC, which covers the identification, is right. A connected socket would
//! count its identification up.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use hashbrown::HashMap;
use socket2::{Domain, SockAddr, Socket, Type};

use super::bpf;
use super::sockopt::{self, Direction};

/// A lane: address family and UDP source port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Lane {
    pub(crate) is_ipv6: bool,
    pub(crate) source_port: u16,
}

/// The open lanes, opened when first used. At the limit the one longest unused is closed.
pub(crate) struct Lanes {
    open: HashMap<Lane, Socketed, foldhash::fast::RandomState>,
    limit: usize,
    send_buffer_bytes: usize,
    /// Counts look-ups, to know which lane is longest unused.
    clock: u64,
}

struct Socketed {
    socket: OwnedFd,
    used: u64,
}

impl Lanes {
    pub(crate) fn new(limit: usize, send_buffer_bytes: usize) -> Self {
        let limit = limit.max(1);
        let open = HashMap::with_capacity_and_hasher(limit.min(1024), foldhash::fast::RandomState::default());
        Self { open, limit, send_buffer_bytes, clock: 0 }
    }

    /// The socket of a lane. `EADDRINUSE` where another program holds its port.
    pub(crate) fn socket(&mut self, lane: Lane) -> io::Result<RawFd> {
        self.clock += 1;
        if let Some(found) = self.open.get_mut(&lane) {
            found.used = self.clock;
            return Ok(found.socket.as_raw_fd());
        }
        if self.open.len() >= self.limit
            && let Some(oldest) = self.open.iter().min_by_key(|(_, s)| s.used).map(|(lane, _)| *lane)
        {
            self.open.remove(&oldest);
        }
        let socket = open(lane, self.send_buffer_bytes)?;
        let fd = socket.as_raw_fd();
        self.open.insert(lane, Socketed { socket, used: self.clock });
        Ok(fd)
    }

    /// The socket of a lane, if it is open.
    pub(crate) fn get(&self, lane: Lane) -> Option<BorrowedFd<'_>> {
        self.open.get(&lane).map(|s| s.socket.as_fd())
    }
}

/// Workers and daemons of one host share a lane's port (`SO_REUSEADDR`); nobody receives on it.
fn open(lane: Lane, send_buffer_bytes: usize) -> io::Result<OwnedFd> {
    let domain = if lane.is_ipv6 { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(domain, Type::DGRAM.nonblocking(), None)?;
    socket.set_reuse_address(true)?;
    bpf::attach(&socket, libc::SO_ATTACH_FILTER, &mut bpf::drop_all())?;
    sockopt::set_buffer(&socket, Direction::Send, send_buffer_bytes)?;
    let address = if lane.is_ipv6 {
        socket.set_only_v6(true)?;
        sockopt::set_int(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
        sockopt::set_int(&socket, libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO_SEND, 1)?;
        std::net::SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, lane.source_port))
    } else {
        sockopt::set_int(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
        std::net::SocketAddr::from((std::net::Ipv4Addr::UNSPECIFIED, lane.source_port))
    };
    socket.bind(&SockAddr::from(address))?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::io::namespace::{Namespace, run_test};

    #[test]
    fn at_the_limit_the_lane_longest_unused_is_closed() {
        run_test("io::lanes::tests::at_the_limit_the_lane_longest_unused_is_closed", || {
            let namespace = Namespace::new().unwrap();
            namespace
                .run(|| {
                    let mut lanes = Lanes::new(2, 1 << 16);
                    let [a, b, c] = [0xc000, 0xc001, 0xc002].map(|source_port| Lane { is_ipv6: false, source_port });
                    let first = lanes.socket(a).unwrap();
                    lanes.socket(b).unwrap();
                    assert_eq!(lanes.socket(a).unwrap(), first, "a lane in use stays open");
                    lanes.socket(c).unwrap();
                    assert_eq!([a, b, c].map(|lane| lanes.get(lane).is_some()), [true, false, true]);
                    // The same port in the other family is another lane.
                    lanes.socket(Lane { is_ipv6: true, ..c }).unwrap();
                })
                .unwrap();
        });
    }
}
