//! Path MTU.

/// The payload that every packet of a message but its last carries (IBTA 9.4.1), as the enumeration that verbs use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, serde::Serialize, serde::Deserialize)]
#[repr(u8)]
pub enum PathMtu {
    /// 256 bytes
    B256 = 1,
    /// 512 bytes
    B512 = 2,
    /// 1 KiB
    #[default]
    B1024 = 3,
    /// 2 KiB
    B2048 = 4,
    /// 4 KiB
    B4096 = 5,
}

impl PathMtu {
    /// Every path MTU, small to large.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// Payload bytes.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// The path MTU of `enum ibv_mtu` (1 to 5).
    pub const fn from_verbs(v: u8) -> Option<Self> {
        match v {
            1 => Some(Self::B256),
            2 => Some(Self::B512),
            3 => Some(Self::B1024),
            4 => Some(Self::B2048),
            5 => Some(Self::B4096),
            _ => None,
        }
    }

    /// The path MTU of exactly `bytes` bytes.
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|m| m.bytes() == bytes)
    }

    /// The largest path MTU whose packets fit a link of `l3_mtu` bytes: payload + 40 IPv6 + 8 UDP + 12 BTH + 28 AtomicETH + 4 ICRC.
    pub fn largest_for(l3_mtu: u32) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|m| m.bytes() + 92 <= l3_mtu)
    }

    /// Packets that a message of `len` bytes takes: at least one (IBTA 9.7.2).
    pub const fn packets(self, len: u32) -> u32 {
        let n = len.div_ceil(self.bytes());
        if n == 0 { 1 } else { n }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts() {
        assert_eq!(PathMtu::ALL.map(PathMtu::bytes), [256, 512, 1024, 2048, 4096]);
        assert_eq!(PathMtu::B1024.packets(0), 1);
        assert_eq!(PathMtu::B1024.packets(1024), 1);
        assert_eq!(PathMtu::B1024.packets(1025), 2);
        assert_eq!(PathMtu::B256.packets(1 << 31), 1 << 23);
        assert_eq!(PathMtu::largest_for(1500), Some(PathMtu::B1024));
        assert_eq!(PathMtu::largest_for(4500), Some(PathMtu::B4096));
        assert_eq!(PathMtu::largest_for(100), None);
        for m in PathMtu::ALL {
            assert_eq!(PathMtu::from_verbs(m as u8), Some(m));
            assert_eq!(PathMtu::from_bytes(m.bytes()), Some(m));
        }
    }
}
