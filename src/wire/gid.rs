//! Global identifiers: how verbs names an IP address.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A GID of RoCEv2 (annex A17.4.5): an IPv6 address, or an IPv4 address as `::ffff:a.b.c.d`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The address it stands for. A v4-mapped GID is an IPv4 address.
    pub fn address(self) -> IpAddr {
        IpAddr::V6(Ipv6Addr::from(self.0)).to_canonical()
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(a: Ipv4Addr) -> Self {
        Self(a.to_ipv6_mapped().octets())
    }
}

impl From<IpAddr> for Gid {
    fn from(a: IpAddr) -> Self {
        match a {
            IpAddr::V4(a) => a.into(),
            IpAddr::V6(a) => Self(a.octets()),
        }
    }
}

impl From<Gid> for IpAddr {
    fn from(gid: Gid) -> Self {
        gid.address()
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_is_mapped_and_comes_back() {
        let four: IpAddr = "198.18.0.2".parse().unwrap();
        let gid = Gid::from(four);
        assert_eq!(gid.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 198, 18, 0, 2]);
        assert_eq!(gid.to_string(), "::ffff:198.18.0.2");
        assert_eq!(gid.address(), four);
        let six: IpAddr = "fe80::5054:ff:fe18:1".parse().unwrap();
        assert_eq!(IpAddr::from(Gid::from(six)), six);
    }
}
