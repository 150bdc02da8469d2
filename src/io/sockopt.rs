//! Socket options that the libraries do not know.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};

/// Sets one option. `T` must be the type that the kernel documents for it.
pub(crate) fn set<T: Copy>(socket: &impl AsFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    // SAFETY: the pointer and length describe `value`, which the kernel only reads.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            core::ptr::from_ref(value).cast(),
            mem::size_of::<T>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Switches an option on (or to a number).
pub(crate) fn set_int(socket: &impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    set(socket, level, name, &value)
}

/// Reads one option that is an array of `N` 32-bit words, or fewer.
pub(crate) fn get_words<const N: usize>(socket: &impl AsFd, level: i32, name: i32) -> io::Result<[u32; N]> {
    let mut words = [0u32; N];
    let mut length = mem::size_of_val(&words) as libc::socklen_t;
    // SAFETY: pointer and length describe `words`, for which every bit pattern is a value.
    let result = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), level, name, words.as_mut_ptr().cast(), &raw mut length)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(words) }
}

/// Makes the receive (or send) buffer `bytes` large, beyond the sysctl limit where privilege allows, and says how large the
/// kernel made it. The kernel doubles what it is given, for its own bookkeeping.
pub(crate) fn set_buffer(socket: &impl AsFd, direction: Direction, bytes: usize) -> io::Result<usize> {
    let (force, plain) = match direction {
        Direction::Receive => (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
        Direction::Send => (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
    };
    let wanted = i32::try_from(bytes / 2).unwrap_or(i32::MAX / 2);
    if set_int(socket, libc::SOL_SOCKET, force, wanted).is_err() {
        set_int(socket, libc::SOL_SOCKET, plain, wanted)?;
    }
    let [actual] = get_words(socket, libc::SOL_SOCKET, plain)?;
    Ok(actual as usize)
}

/// Which buffer of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Receive,
    Send,
}
