//! The peers of an announcement.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

/// Addresses with the same first bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IpPrefix {
    address: IpAddr,
    bits: u8,
}

/// Why a text is no prefix.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PrefixError {
    /// Neither an address nor a prefix.
    #[error("{0:?} is no address or prefix: write 198.18.3.7, 198.18.0.0/15 or 2001:2::/48")]
    Form(String),
    /// More bits than an address has.
    #[error("{text:?}: an address of this family has {most} bits")]
    Bits {
        /// What was given.
        text: String,
        /// Bits of an address.
        most: u8,
    },
}

impl IpPrefix {
    /// The first `bits` bits of an address; `None` if it has not so many. Bits behind them do not count.
    pub fn new(address: IpAddr, bits: u8) -> Option<Self> {
        let address = match address.to_canonical() {
            IpAddr::V4(a) if bits <= 32 => {
                IpAddr::V4(Ipv4Addr::from(u32::from(a) & u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0)))
            }
            IpAddr::V6(a) if bits <= 128 => {
                IpAddr::V6(Ipv6Addr::from(u128::from(a) & u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)))
            }
            _ => return None,
        };
        Some(Self { address, bits })
    }

    /// One address.
    pub fn host(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self { address, bits: if address.is_ipv4() { 32 } else { 128 } }
    }

    /// How many bits are the same.
    pub const fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether it is one address only.
    pub fn is_host(&self) -> bool {
        self.bits == Self::host(self.address).bits
    }

    /// Whether an address lies within.
    pub fn contains(&self, address: IpAddr) -> bool {
        Self::new(address, self.bits) == Some(*self)
    }
}

impl core::fmt::Display for IpPrefix {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.is_host() { write!(f, "{}", self.address) } else { write!(f, "{}/{}", self.address, self.bits) }
    }
}

impl FromStr for IpPrefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let form = || PrefixError::Form(text.to_owned());
        let (address, bits) = match text.split_once('/') {
            None => return text.parse().map(Self::host).map_err(|_| form()),
            Some((address, bits)) => (address.parse::<IpAddr>(), bits.parse::<u8>()),
        };
        let (address, bits) = (address.map_err(|_| form())?, bits.map_err(|_| form())?);
        let most = if address.to_canonical().is_ipv4() { 32 } else { 128 };
        Self::new(address, bits).ok_or_else(|| PrefixError::Bits { text: text.to_owned(), most })
    }
}
