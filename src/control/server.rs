//! The gRPC services, with reflection and health, on the control socket.

use super::convert::Wire;
use super::overview::Overview;
use super::proto::memory_server::{Memory, MemoryServer};
use super::proto::paths_server::PathsServer;
use super::proto::queue_pairs_server::{QueuePairs, QueuePairsServer};
use super::proto::status_server::{Status, StatusServer};
use super::socket::{Admission, Connection, ControlSocket};
use super::worker::{AskError, Reply, Request, WorkerHandle};
use super::{proto, view};
use crate::counters::FAMILIES;
use futures::future::join_all;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::service::InterceptorLayer;
use tonic::transport::Server;
use tonic::{Code, Response};

/// Calls that one connection may have under way.
const CALLS_PER_CONNECTION: usize = 16;
/// Pages of a list that wait for a slow reader; the worker is asked for no more.
const PAGES_AHEAD: usize = 2;
/// The longest that a call without a list may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the control plane ended.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The runtime would not take the listening socket.
    #[error("cannot accept on the control socket: {0}")]
    Accept(#[from] std::io::Error),
    /// The descriptors in the binary are damaged.
    #[error("cannot offer gRPC reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The server failed.
    #[error("the control plane failed: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// Serves the control plane on `socket` until `shutdown` is ready. Runs on a tokio runtime of one or two threads.
pub async fn serve(
    socket: ControlSocket,
    overview: Arc<Overview>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<StatusServer<Services>>().await;
    health.set_serving::<QueuePairsServer<Services>>().await;
    health.set_serving::<MemoryServer<Services>>().await;
    health.set_serving::<PathsServer<Services>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?;

    let access = socket.access();
    let connections = UnixListenerStream::new(socket.listener()?).then({
        let counters = overview.counters().clone();
        move |stream| {
            let counters = counters.clone();
            async move { Connection::admit(stream?, access, &counters).await }
        }
    });
    let services = Services { overview };
    Server::builder()
        .concurrency_limit_per_connection(CALLS_PER_CONNECTION)
        .timeout(CALL_TIMEOUT)
        .layer(InterceptorLayer::new(admitted_only))
        .add_service(StatusServer::new(services.clone()))
        .add_service(QueuePairsServer::new(services.clone()))
        .add_service(MemoryServer::new(services.clone()))
        .add_service(PathsServer::new(services))
        .add_service(health_service)
        .add_service(reflection)
        .serve_with_incoming_shutdown(connections, shutdown)
        .await?;
    Ok(())
}

fn admitted_only(call: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
    match call.extensions().get::<Admission>() {
        Some(Admission { admitted: true, .. }) => Ok(call),
        _ => Err(tonic::Status::permission_denied("only root, the daemon's user and members of its group may ask")),
    }
}

impl From<AskError> for tonic::Status {
    fn from(error: AskError) -> Self {
        let code = match error {
            AskError::Busy { .. } => Code::ResourceExhausted,
            AskError::Gone { .. } => Code::Unavailable,
            AskError::Timeout { .. } => Code::DeadlineExceeded,
        };
        Self::new(code, error.to_string())
    }
}

#[derive(Clone, Debug)]
pub(super) struct Services {
    pub(super) overview: Arc<Overview>,
}

#[tonic::async_trait]
impl Status for Services {
    async fn get_status(
        &self,
        _: tonic::Request<proto::GetStatusRequest>,
    ) -> Result<Response<proto::GetStatusResponse>, tonic::Status> {
        let overview = &self.overview;
        let mut status = view::Status {
            device: view::Device::clone(&overview.device()),
            uptime_ns: u64::try_from(overview.uptime().as_nanos()).unwrap_or(u64::MAX),
            workers: Vec::new(),
            clients: Vec::new(),
            counters: counters(overview),
            completion_latency: overview.completion_latency(),
        };
        let answers = overview
            .workers()
            .iter()
            .map(|w| async move { (w.index(), w.ask(|reply| Request::Status { reply }).await) });
        for (index, answer) in join_all(answers).await {
            match answer {
                Ok((worker, clients)) => {
                    status.workers.push(worker);
                    status.clients.extend(clients);
                }
                // A status that fails because something is wrong would be of no use.
                Err(e) => {
                    let problem = Some(e.to_string());
                    status.workers.push(view::Worker { index, problem, ..Default::default() });
                }
            }
        }
        Ok(Response::new(status.to_wire()))
    }
}

/// All counters of all workers, by the table.
fn counters(overview: &Overview) -> Vec<view::CounterValue> {
    let one = |family: &crate::counters::Family, member: &crate::counters::Counter| view::CounterValue {
        name: family.name.into(),
        label: family.label.unwrap_or_default().into(),
        label_value: member.label_value().into(),
        value: overview.total(*member) as f64 / family.unit(),
    };
    FAMILIES.iter().flat_map(|family| family.members.iter().map(move |member| one(family, member))).collect()
}

pub(super) type Pages<T> = ReceiverStream<Result<T, tonic::Status>>;

#[tonic::async_trait]
impl QueuePairs for Services {
    type ListQueuePairsStream = Pages<proto::ListQueuePairsResponse>;

    async fn list_queue_pairs(
        &self,
        _: tonic::Request<proto::ListQueuePairsRequest>,
    ) -> Result<Response<Self::ListQueuePairsStream>, tonic::Status> {
        let pages = self.pages(
            |from, reply| Request::QueuePairs { from, reply },
            |entries: Vec<view::QueuePair>| proto::ListQueuePairsResponse { queue_pairs: entries.to_wire() },
        );
        Ok(Response::new(pages))
    }

    async fn get_queue_pair(
        &self,
        call: tonic::Request<proto::GetQueuePairRequest>,
    ) -> Result<Response<proto::GetQueuePairResponse>, tonic::Status> {
        let qpn = call.into_inner().qpn;
        let workers = self.overview.workers().iter();
        let answers = join_all(workers.map(|w| w.ask(|reply| Request::QueuePair { qpn, reply }))).await;
        let mut failure = None;
        for answer in answers {
            match answer {
                Ok(Some(qp)) => return Ok(Response::new(proto::GetQueuePairResponse { queue_pair: qp.to_wire() })),
                Ok(None) => {}
                Err(e) => failure = Some(e),
            }
        }
        // A worker that did not answer may be the one that has it.
        Err(failure.map_or_else(|| tonic::Status::not_found(format!("there is no queue pair {qpn}")), Into::into))
    }
}

#[tonic::async_trait]
impl Memory for Services {
    type ListMemoryRegionsStream = Pages<proto::ListMemoryRegionsResponse>;

    async fn list_memory_regions(
        &self,
        _: tonic::Request<proto::ListMemoryRegionsRequest>,
    ) -> Result<Response<Self::ListMemoryRegionsStream>, tonic::Status> {
        let pages = self.pages(
            |from, reply| Request::MemoryRegions { from, reply },
            |entries: Vec<view::MemoryRegion>| proto::ListMemoryRegionsResponse { memory_regions: entries.to_wire() },
        );
        Ok(Response::new(pages))
    }
}

impl Services {
    /// Streams a long list: asks one worker after the other for one page after the other, as fast as the reader takes them.
    pub(super) fn pages<T, M>(
        &self,
        request: impl Fn(u32, Reply<view::Page<T>>) -> Request + Send + Sync + 'static,
        message: impl Fn(Vec<T>) -> M + Send + Sync + 'static,
    ) -> Pages<M>
    where
        T: Send + 'static,
        M: Send + 'static,
    {
        let (pages, stream) = mpsc::channel(PAGES_AHEAD);
        let overview = Arc::clone(&self.overview);
        tokio::spawn(async move {
            for worker in overview.workers() {
                let mut from = Some(0);
                while let Some(start) = from {
                    let page = next_page(worker, start, &request).await;
                    from = page.as_ref().ok().and_then(|p| p.next);
                    let page = page.map(|p| message(p.entries)).map_err(tonic::Status::from);
                    let failed = page.is_err();
                    if pages.send(page).await.is_err() || failed {
                        return; // The reader went away, or knows that the list ends here.
                    }
                }
            }
        });
        ReceiverStream::new(stream)
    }
}

async fn next_page<T>(
    worker: &WorkerHandle,
    start: u32,
    request: impl Fn(u32, Reply<view::Page<T>>) -> Request,
) -> Result<view::Page<T>, AskError> {
    let mut page = worker.ask(|reply| request(start, reply)).await?;
    // A page that leads nowhere would be asked for for ever.
    page.next = page.next.filter(|next| *next > start);
    Ok(page)
}
