//! Offload features of an interface: the `ethtool -k` and `-K` of one feature.

use core::mem;
use std::io;
use std::os::fd::AsRawFd;

use socket2::{Domain, Socket, Type};

/// `NETIF_F_GSO_UDP_L4`: the device takes UDP super-packets and segments them itself (or passes them on unsegmented).
pub(crate) const UDP_SEGMENTATION: &str = "tx-udp-segmentation";

const GET_STRINGS: u32 = 0x1b;
const GET_SET_INFO: u32 = 0x37;
const GET_FEATURES: u32 = 0x3a;
const SET_FEATURES: u32 = 0x3b;
const FEATURES: u32 = 4;
const NAME_BYTES: usize = 32;
const SIOCETHTOOL: libc::c_ulong = 0x8946;
/// Far more features than any kernel has (6.18: about 64).
const MAX_FEATURES: usize = 1024;

/// Whether `feature` is on at the interface; `None` if this kernel does not know it.
pub(crate) fn is_on(interface: &str, feature: &str) -> io::Result<Option<bool>> {
    let device = Device::open(interface)?;
    let names = device.feature_names()?;
    let Some(index) = names.iter().position(|name| name == feature) else { return Ok(None) };
    let blocks = names.len().div_ceil(32);
    // Each block of 32 features: available, requested, active, never changed.
    let mut words = vec![0u32; 2 + 4 * blocks];
    words[0] = GET_FEATURES;
    words[1] = blocks as u32;
    device.call(&mut words)?;
    let active = words.get(2 + 4 * (index / 32) + 2).copied().unwrap_or(0);
    Ok(Some(active >> (index % 32) & 1 == 1))
}

/// Switches `feature` off at the interface.
pub(crate) fn switch_off(interface: &str, feature: &str) -> io::Result<()> {
    let device = Device::open(interface)?;
    let names = device.feature_names()?;
    let index = names.iter().position(|name| name == feature).ok_or(io::ErrorKind::Unsupported)?;
    let blocks = names.len().div_ceil(32);
    // Each block: which features to change, and to what.
    let mut words = vec![0u32; 2 + 2 * blocks];
    words[0] = SET_FEATURES;
    words[1] = blocks as u32;
    if let Some(valid) = words.get_mut(2 + 2 * (index / 32)) {
        *valid = 1 << (index % 32);
    }
    device.call(&mut words)
}

struct Device {
    socket: Socket,
    name: [libc::c_char; libc::IFNAMSIZ],
}

impl Device {
    fn open(interface: &str) -> io::Result<Self> {
        let mut name = [0; libc::IFNAMSIZ];
        if interface.len() >= name.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, from) in name.iter_mut().zip(interface.bytes()) {
            *to = from as libc::c_char;
        }
        Ok(Self { socket: Socket::new(Domain::IPV4, Type::DGRAM, None)?, name })
    }

    fn feature_names(&self) -> io::Result<Vec<String>> {
        let mut info = [GET_SET_INFO, 0, 1 << FEATURES, 0, 0];
        self.call(&mut info)?;
        let count = (info[4] as usize).min(MAX_FEATURES);
        let mut words = vec![0u32; 3 + count * NAME_BYTES / 4];
        (words[0], words[1], words[2]) = (GET_STRINGS, FEATURES, count as u32);
        self.call(&mut words)?;
        let bytes: Vec<u8> = words.iter().skip(3).flat_map(|word| word.to_ne_bytes()).collect();
        let text =
            |name: &[u8]| String::from_utf8_lossy(name.split(|b| *b == 0).next().unwrap_or_default()).into_owned();
        Ok(bytes.chunks(NAME_BYTES).map(text).collect())
    }

    /// `words` is the command's struct with its variable part, large enough for the answer: the kernel writes no more than
    /// the count in its second or third word says.
    fn call(&self, words: &mut [u32]) -> io::Result<()> {
        // SAFETY: all zeroes is a valid value of this C struct.
        let mut request: libc::ifreq = unsafe { mem::zeroed() };
        request.ifr_name = self.name;
        request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        // SAFETY: the request names an interface and points to a buffer of the size that its command demands.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
