//! The socket where programs attach.

use crate::control::Access;
use crate::counters::{Counter, SharedCounters};
use nix::sys::socket::{UnixCredentials, getsockopt, sockopt::PeerCredentials};
use nix::unistd::{Gid, Uid};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// Why the attach socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Another daemon listens there.
    #[error("another daemon already listens on {}; stop it, or set clients.socket to another path", .0.display())]
    InUse(PathBuf),
    /// Something that is no socket stands at the path.
    #[error("{} exists and is no socket; remove it, or set clients.socket to another path", .0.display())]
    NotASocket(PathBuf),
    /// The kernel refused.
    #[error("cannot {what} {}: {source}; check that the directory exists and the daemon may write there", path.display())]
    Refused {
        /// What was tried.
        what: &'static str,
        /// The socket's path.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Programs that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// A listening attach socket. Dropped, it removes its file.
#[derive(Debug)]
pub(super) struct AttachSocket {
    listener: Socket,
    path: PathBuf,
    access: Access,
    counters: SharedCounters,
}

impl AttachSocket {
    /// Listens at `path` for the programs that `access` admits. The file of a daemon that died is replaced.
    ///
    /// # Errors
    /// See [`AttachError`].
    pub(super) fn bind(path: &Path, access: Access, counters: SharedCounters) -> Result<Self, AttachError> {
        let refused = |what| move |source| AttachError::Refused { what, path: path.to_owned(), source };
        remove_stale(path)?;
        let listener = Socket::new(Domain::UNIX, Type::SEQPACKET, None).map_err(refused("make"))?;
        listener.set_nonblocking(true).map_err(refused("set up"))?;
        listener.bind(&SockAddr::unix(path).map_err(refused("name"))?).map_err(refused("listen on"))?;
        let this = Self { listener, path: path.to_owned(), access, counters };
        // Until its group is set, the file is only the owner's.
        let mode = |mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
        mode(0o600).map_err(refused("set the mode of"))?;
        if let Some(group) = access.group() {
            nix::unistd::chown(path, None, Some(group)).map_err(|e| refused("set the group of")(e.into()))?;
            mode(0o660).map_err(refused("set the mode of"))?;
        }
        this.listener.listen(BACKLOG).map_err(refused("listen on"))?;
        Ok(this)
    }

    /// Gives each program that connects and is admitted to `serve`, until that says to stop. Must run on a tokio runtime.
    ///
    /// # Errors
    /// If the listening socket fails. A program that goes away while it connects is no failure.
    pub(super) async fn accept_each(&self, mut serve: impl FnMut(OwnedFd, UnixCredentials)) -> io::Result<()> {
        // The runtime knows stream sockets; accepting is the same for a SOCK_SEQPACKET one.
        let listener: std::os::unix::net::UnixListener = OwnedFd::from(self.listener.try_clone()?).into();
        let listener = UnixListener::from_std(listener)?;
        loop {
            match listener.accept().await {
                Ok((program, _)) => self.admit(program.into_std()?.into(), &mut serve),
                Err(e) if matches!(e.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => {}
                // Out of descriptors: those that wait keep waiting until some are free.
                Err(e)
                    if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS)) =>
                {
                    self.counters.count(Counter::AttachNoDescriptors);
                    tracing::warn!("no descriptors left for another program: raise LimitNOFILE");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn admit(&self, program: OwnedFd, serve: &mut impl FnMut(OwnedFd, UnixCredentials)) {
        let Ok(peer) = getsockopt(&program, PeerCredentials) else { return };
        if self.access.admits(Uid::from_raw(peer.uid()), Gid::from_raw(peer.gid())) {
            serve(program, peer);
        } else {
            self.counters.count(Counter::AttachNotPermitted);
            tracing::warn!(
                pid = peer.pid(),
                uid = peer.uid(),
                "a program may not attach: its user is not in the group of clients.group"
            );
        }
    }
}

impl Drop for AttachSocket {
    fn drop(&mut self) {
        // If it is gone already, so much the better.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Removes the socket file that a daemon left behind when it died.
fn remove_stale(path: &Path) -> Result<(), AttachError> {
    let refused = |what| move |source| AttachError::Refused { what, path: path.to_owned(), source };
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(AttachError::NotASocket(path.to_owned()));
    }
    let probe = Socket::new(Domain::UNIX, Type::SEQPACKET, None).map_err(refused("look at"))?;
    match probe.connect(&SockAddr::unix(path).map_err(refused("name"))?) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(refused("remove the old"))
        }
        _ => Err(AttachError::InUse(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn replaces_a_dead_daemons_socket_and_refuses_a_living_ones() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("attach.sock");
        let access = Access::for_group("");
        let first = AttachSocket::bind(&path, access, SharedCounters::new()).unwrap();
        assert!(matches!(AttachSocket::bind(&path, access, SharedCounters::new()), Err(AttachError::InUse(_))));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // A daemon that dies closes its listener and leaves the file.
        let dead = dir.path().join("dead.sock");
        std::fs::rename(&path, &dead).unwrap();
        drop(first);
        let _second = AttachSocket::bind(&dead, access, SharedCounters::new()).unwrap();
    }

    #[test]
    fn leaves_alone_what_is_no_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(
            AttachSocket::bind(&path, Access::for_group(""), SharedCounters::new()),
            Err(AttachError::NotASocket(_))
        ));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }
}
