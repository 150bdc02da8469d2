//! The Unix socket of the control plane, and who may speak on it.
//!
//! Two locks hold the door. The file's mode lets the kernel refuse strangers before they are heard; the peer's
//! credentials (`SO_PEERCRED`) decide again, so that a file whose mode somebody changed gives nothing away.

use crate::counters::{Counter, SharedCounters};
use nix::unistd::{Gid, Group, Uid, User, chown, getgrouplist};
use std::ffi::CString;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// Why the control socket could not be opened.
#[derive(Debug, Error)]
pub enum SocketError {
    /// Another daemon listens there.
    #[error("another daemon already listens on {}; stop it, or set control.socket to another path", .0.display())]
    InUse(PathBuf),
    /// Something that is no socket stands at the path.
    #[error("{} exists and is no socket; remove it, or set control.socket to another path", .0.display())]
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

/// Who may speak: root, the daemon's own user, and members of one group; of these, who may announce: the first two, and members of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    own_uid: Uid,
    group: Option<Gid>,
    controllers: Option<Gid>,
}

impl Access {
    /// Access for the members of `group` besides root and this process's user. An empty name means nobody else, and so does
    /// a group that does not exist: that is worth a warning, not a daemon that does not start.
    pub fn for_group(group: &str) -> Self {
        Self { own_uid: Uid::effective(), group: known_group(group, "ask it"), controllers: None }
    }

    /// The same, and members of this group may announce.
    #[must_use]
    pub fn with_controllers(self, group: &str) -> Self {
        Self { controllers: known_group(group, "announce"), ..self }
    }

    /// The group whose members may speak.
    pub fn group(&self) -> Option<Gid> {
        self.group
    }

    /// Whether a peer with these credentials may speak. Asks the name service for the groups of a user that is neither
    /// root nor the daemon's own.
    pub fn admits(&self, uid: Uid, gid: Gid) -> bool {
        self.is_own(uid) || [self.group, self.controllers].into_iter().flatten().any(|group| is_member(uid, gid, group))
    }

    /// Whether such a peer may say what happens to paths.
    pub fn announces(&self, uid: Uid, gid: Gid) -> bool {
        self.is_own(uid) || self.controllers.is_some_and(|group| is_member(uid, gid, group))
    }

    fn is_own(&self, uid: Uid) -> bool {
        uid.is_root() || uid == self.own_uid
    }
}

fn known_group(group: &str, what: &str) -> Option<Gid> {
    let known = if group.is_empty() { None } else { Group::from_name(group).ok().flatten() };
    if known.is_none() && !group.is_empty() {
        tracing::warn!("there is no group {group:?} on this host: only root and the daemon's own user may {what}");
    }
    known.map(|g| g.gid)
}

fn is_member(uid: Uid, gid: Gid, group: Gid) -> bool {
    group == gid || supplementary_groups(uid, gid).contains(&group)
}

fn supplementary_groups(uid: Uid, gid: Gid) -> Vec<Gid> {
    let name = User::from_uid(uid).ok().flatten().and_then(|user| CString::new(user.name).ok());
    name.and_then(|name| getgrouplist(&name, gid).ok()).unwrap_or_default()
}

/// A control socket that listens. Dropped, it removes its file.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    access: Access,
}

impl ControlSocket {
    /// Listens at `path`. The file of a daemon that died is replaced, one of a living daemon is not.
    pub fn bind(path: &Path, access: Access) -> Result<Self, SocketError> {
        let refused = |what| move |source| SocketError::Refused { what, path: path.to_owned(), source };
        remove_stale(path)?;
        let listener = UnixListener::bind(path).map_err(refused("listen on"))?;
        let socket = Self { listener, path: path.to_owned(), access };
        // Until its group is set, the file is only the owner's.
        let mode = |mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
        mode(0o600).map_err(refused("set the mode of"))?;
        if let Some(group) = access.group {
            chown(path, None, Some(group)).map_err(|e| refused("set the group of")(e.into()))?;
            mode(0o660).map_err(refused("set the mode of"))?;
        }
        socket.listener.set_nonblocking(true).map_err(refused("set up"))?;
        Ok(socket)
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A second handle of the listening socket, for the runtime that accepts.
    pub(super) fn listener(&self) -> io::Result<tokio::net::UnixListener> {
        tokio::net::UnixListener::from_std(self.listener.try_clone()?)
    }

    pub(super) fn access(&self) -> Access {
        self.access
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // If it is gone already, so much the better.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Removes the socket file that a daemon left behind when it died.
fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(SocketError::NotASocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)
            .map_err(|source| SocketError::Refused { what: "replace", path: path.to_owned(), source }),
        _ => Err(SocketError::InUse(path.to_owned())),
    }
}

/// Whether the peer of a connection was admitted, for the interceptor of each call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admission {
    pub(super) admitted: bool,
    pub(super) announces: bool,
}

/// An accepted connection with the decision about its peer.
pub(super) struct Connection {
    stream: tokio::net::UnixStream,
    admission: Admission,
}

impl Connection {
    /// Decides about the peer of `stream`. The name service may block, so it is asked on a thread that may.
    pub(super) async fn admit(
        stream: tokio::net::UnixStream,
        access: Access,
        counters: &SharedCounters,
    ) -> io::Result<Self> {
        let peer = stream.peer_cred()?;
        let (uid, gid) = (Uid::from_raw(peer.uid()), Gid::from_raw(peer.gid()));
        let decide = move || Admission { admitted: access.admits(uid, gid), announces: access.announces(uid, gid) };
        let nobody = Admission { admitted: false, announces: false };
        let admission = tokio::task::spawn_blocking(decide).await.unwrap_or(nobody);
        if !admission.admitted {
            counters.count(Counter::ControlRefused);
            tracing::warn!(uid = peer.uid(), pid = peer.pid(), "refused a stranger on the control socket");
        }
        Ok(Self { stream, admission })
    }
}

impl Connected for Connection {
    type ConnectInfo = Admission;
    fn connect_info(&self) -> Admission {
        self.admission
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn own() -> Access {
        Access::for_group("")
    }

    #[test]
    fn root_the_own_user_and_the_group_are_admitted_and_nobody_else() {
        let access = Access {
            own_uid: Uid::from_raw(977),
            group: Some(Gid::from_raw(978)),
            controllers: Some(Gid::from_raw(979)),
        };
        assert!(access.admits(Uid::from_raw(0), Gid::from_raw(5)));
        assert!(access.admits(Uid::from_raw(977), Gid::from_raw(5)));
        assert!(access.admits(Uid::from_raw(4_000_000), Gid::from_raw(978)));
        assert!(!access.admits(Uid::from_raw(4_000_000), Gid::from_raw(5)));
        assert!(access.announces(Uid::from_raw(977), Gid::from_raw(5)));
        assert!(access.announces(Uid::from_raw(4_000_000), Gid::from_raw(979)));
        assert!(access.admits(Uid::from_raw(4_000_000), Gid::from_raw(979)));
        assert!(!access.announces(Uid::from_raw(4_000_000), Gid::from_raw(978)));
        assert!(!Access { group: None, ..access }.admits(Uid::from_raw(4_000_000), Gid::from_raw(978)));
    }

    #[test]
    fn a_group_that_does_not_exist_admits_nobody() {
        assert_eq!(Access::for_group("no-such-group-here"), own());
    }

    #[test]
    fn a_dead_daemons_file_is_replaced_and_a_living_ones_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        drop(UnixListener::bind(&path).unwrap());
        let first = ControlSocket::bind(&path, own()).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(ControlSocket::bind(&path, own()), Err(SocketError::InUse(_))));
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(ControlSocket::bind(&path, own()), Err(SocketError::NotASocket(_))));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        let nowhere = dir.path().join("nowhere/control.sock");
        assert!(matches!(ControlSocket::bind(&nowhere, own()), Err(SocketError::Refused { .. })));
    }
}
