//! What can go wrong for a client, and what to do then.

use crate::ipc::protocol::Refusal;
use std::io;
use std::path::PathBuf;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody listens on the socket.
    #[error(
        "no holdfastd listens on {}: start it (`systemctl start holdfastd`, or `holdfastd --interface IF`), \
         or name its socket in HOLDFAST_SOCKET", path.display()
    )]
    NotRunning {
        /// The socket.
        path: PathBuf,
    },
    /// The socket's permissions keep this user out.
    #[error(
        "this user may not connect to {}: join the socket's group (`ls -l` shows it), or ask who runs holdfastd", path.display()
    )]
    NotPermitted {
        /// The socket.
        path: PathBuf,
    },
    /// The daemon does not take this client.
    #[error("holdfastd refused to attach this program: {0}")]
    NotAttached(String),
    /// Something else listens there.
    #[error("what listens on {} is not holdfastd", path.display())]
    NotHoldfast {
        /// The socket.
        path: PathBuf,
    },
    /// The daemon went away. Everything of this context is lost.
    #[error(
        "holdfastd has closed the connection: it was stopped or restarted, or found this program in the wrong; open a new context"
    )]
    DaemonGone,
    /// The daemon does not answer, though its socket is open. What was asked for may still be done: it goes with the context.
    #[error(
        "holdfastd does not answer: it is stopped (SIGSTOP, a debugger, a paused machine) or far behind; look at `systemctl status \
         holdfastd` and try again"
    )]
    DaemonSilent,
    /// The daemon refused a request.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The daemon answered something else than what was asked.
    #[error("holdfastd answered {0}, which is no answer to the request: are its version and this library's the same?")]
    Unexpected(&'static str),
    /// The operating system refused something.
    #[error("could not {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl Error {
    pub(super) fn system(action: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::System { action, source }
    }

    pub(super) fn errno_system<E: Into<io::Error>>(action: &'static str) -> impl Fn(E) -> Self {
        move |source| Self::System { action, source: source.into() }
    }

    /// The error number that verbs return for it.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotRunning { .. } | Self::NotHoldfast { .. } => libc::ENODEV,
            Self::NotPermitted { .. } => libc::EACCES,
            Self::NotAttached(_) => libc::EPROTONOSUPPORT,
            Self::DaemonGone | Self::Unexpected(_) => libc::EIO,
            Self::DaemonSilent => libc::ETIMEDOUT,
            Self::Refused(refusal) => refusal.errno(),
            Self::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}
