//! The asking side, for the `holdfast` command: verbs of the control plane with [`view`] values as answers.

use super::convert::{UnknownValue, Wire};
use super::proto::memory_client::MemoryClient;
use super::proto::paths_client::PathsClient;
use super::proto::queue_pairs_client::QueuePairsClient;
use super::proto::status_client::StatusClient;
use super::proto::watch_paths_response::News;
use super::{proto, view};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;
use thiserror::Error;
use tokio_stream::StreamExt;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

/// How long a call may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the daemon did not answer. Each says what to do.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error(
        "holdfastd is not running: nothing listens on {}; start it (systemctl start holdfastd, or holdfastd --interface IF), \
         or name its socket with --socket", .0.display()
    )]
    NotRunning(PathBuf),
    /// The kernel or the daemon refused us.
    #[error(
        "no permission to ask the daemon on {}; join its group (usermod -aG holdfast USER, then log in again) or ask as root",
        .0.display()
    )]
    Permission(PathBuf),
    /// The socket could not be used for another reason.
    #[error("cannot connect to {}: {source}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The daemon is of another version.
    #[error(
        "the daemon does not understand this command (version {version}): {what}; restart it after an upgrade, or use the \
         command of its version"
    )]
    WrongVersion {
        /// Our version.
        version: &'static str,
        /// What it did not understand, or we did not.
        what: String,
    },
    /// What was asked for does not exist.
    #[error("{0}")]
    NotFound(String),
    /// What was announced has no effect, or is no announcement.
    #[error("refused: {0}")]
    Refused(String),
    /// The daemon failed to answer.
    #[error("the daemon did not answer: {0}")]
    Failed(String),
}

impl From<UnknownValue> for ClientError {
    fn from(unknown: UnknownValue) -> Self {
        Self::WrongVersion { version: env!("CARGO_PKG_VERSION"), what: unknown.to_string() }
    }
}

/// A connection to the daemon.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    path: PathBuf,
}

impl Client {
    /// Connects to the daemon at `path`.
    pub async fn connect(path: &Path) -> Result<Self, ClientError> {
        let owned = path.to_owned();
        let stream = tokio::net::UnixStream::connect(path).await.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ClientError::NotRunning(owned.clone()),
            io::ErrorKind::PermissionDenied => ClientError::Permission(owned.clone()),
            _ => ClientError::Connect { path: owned.clone(), source },
        })?;
        // The connection is made here, where its error can be told; the channel gets it once and never connects again.
        let stream = Mutex::new(Some(hyper_util::rt::TokioIo::new(stream)));
        let connector = tower::service_fn(move |_| {
            let stream = stream.lock().ok().and_then(|mut s| s.take());
            std::future::ready(stream.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionReset)))
        });
        // gRPC wants an authority; over a Unix socket it says nothing.
        let endpoint = Endpoint::from_static("http://localhost").timeout(CALL_TIMEOUT);
        let channel = endpoint
            .connect_with_connector(connector)
            .await
            .map_err(|e| ClientError::Failed(format!("{e} (is {} the socket of holdfastd?)", owned.display())))?;
        Ok(Self { channel, path: owned })
    }

    /// What the daemon is and how it fares.
    pub async fn status(&self) -> Result<view::Status, ClientError> {
        let mut client = StatusClient::new(self.channel.clone());
        let answer = client.get_status(proto::GetStatusRequest {}).await.map_err(|e| self.explain(e))?;
        Ok(Wire::from_wire(answer.into_inner())?)
    }

    /// Queue pairs, at least `limit` of them if there are so many.
    pub async fn queue_pairs(&self, limit: usize) -> Result<Vec<view::QueuePair>, ClientError> {
        let mut client = QueuePairsClient::new(self.channel.clone());
        let answer = client.list_queue_pairs(proto::ListQueuePairsRequest {}).await.map_err(|e| self.explain(e))?;
        self.collect(answer.into_inner(), limit, |page| page.queue_pairs).await
    }

    /// One queue pair.
    pub async fn queue_pair(&self, qpn: u32) -> Result<view::QueuePair, ClientError> {
        let mut client = QueuePairsClient::new(self.channel.clone());
        let answer = client.get_queue_pair(proto::GetQueuePairRequest { qpn }).await.map_err(|e| self.explain(e))?;
        Ok(Wire::from_wire(answer.into_inner().queue_pair)?)
    }

    /// Memory regions, at least `limit` of them if there are so many.
    pub async fn memory_regions(&self, limit: usize) -> Result<Vec<view::MemoryRegion>, ClientError> {
        let mut client = MemoryClient::new(self.channel.clone());
        let answer =
            client.list_memory_regions(proto::ListMemoryRegionsRequest {}).await.map_err(|e| self.explain(e))?;
        self.collect(answer.into_inner(), limit, |page| page.memory_regions).await
    }

    /// All paths.
    pub async fn paths(&self) -> Result<Vec<view::Path>, ClientError> {
        let mut client = PathsClient::new(self.channel.clone());
        let answer = client.list_paths(proto::ListPathsRequest {}).await.map_err(|e| self.explain(e))?;
        self.collect(answer.into_inner(), usize::MAX, |page| page.paths).await
    }

    /// Says what happens to paths: how many they are for now, and whether it was said before.
    pub async fn announce(&self, event: proto::PathEvent) -> Result<(u32, bool), ClientError> {
        let mut client = PathsClient::new(self.channel.clone());
        let request = proto::AnnounceRequest { event: Some(event) };
        let answer = client.announce(request).await.map_err(|e| self.explain(e))?.into_inner();
        Ok((answer.paths, answer.was_known))
    }

    /// Hands `tell` all paths, then what happens to them, until it says no or the daemon ends.
    pub async fn watch_paths(&self, mut tell: impl FnMut(view::Watched) -> bool) -> Result<(), ClientError> {
        let mut client = PathsClient::new(self.channel.clone());
        let answer = client.watch_paths(proto::WatchPathsRequest {}).await.map_err(|e| self.explain(e))?;
        let mut stream = answer.into_inner();
        while let Some(next) = stream.next().await {
            let watched = match next.map_err(|e| self.explain(e))?.news {
                Some(News::Path(path)) => view::Watched::Path(Wire::from_wire(path)?),
                Some(News::Event(news)) => view::Watched::Event(Wire::from_wire(news)?),
                Some(News::Missed(events)) => view::Watched::Missed(events),
                // Of a later version.
                None => continue,
            };
            if !tell(watched) {
                break;
            }
        }
        Ok(())
    }

    async fn collect<M, P, V: Wire<P>>(
        &self,
        mut pages: tonic::Streaming<M>,
        limit: usize,
        entries: impl Fn(M) -> Vec<P>,
    ) -> Result<Vec<V>, ClientError> {
        let mut all = Vec::new();
        while all.len() < limit {
            let Some(page) = pages.next().await else { break };
            let page: Vec<V> = Wire::from_wire(entries(page.map_err(|e| self.explain(e))?))?;
            all.extend(page);
        }
        Ok(all)
    }

    fn explain(&self, status: tonic::Status) -> ClientError {
        let message = status.message().to_owned();
        match status.code() {
            Code::NotFound => ClientError::NotFound(message),
            Code::InvalidArgument | Code::FailedPrecondition => ClientError::Refused(message),
            Code::PermissionDenied if message.contains("announce") => ClientError::Refused(message),
            Code::PermissionDenied => ClientError::Permission(self.path.clone()),
            Code::Unimplemented => {
                ClientError::WrongVersion { version: env!("CARGO_PKG_VERSION"), what: "it has no such call".into() }
            }
            _ => ClientError::Failed(message),
        }
    }
}
