//! The HTTP endpoint: `/metrics` for Prometheus, `/healthz` for whoever watches the daemon.

use super::Source;
use super::collector::HoldfastCollector;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use prometheus::{Registry, TextEncoder};
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::Semaphore;

/// Scrapers connected at once; the next one waits.
const MAX_CONNECTIONS: usize = 32;
/// How long a connection may take to say what it wants, and may stay idle between two scrapes.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);

/// Why there is no metrics endpoint.
#[derive(Debug, Error)]
pub enum MetricsError {
    /// The address could not be listened on.
    #[error("cannot serve metrics on {address}: {source}; set metrics.listen to another address, or to \"off\"")]
    Listen {
        /// The address of the settings.
        address: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The metrics contradict each other: a defect of this program.
    #[error("cannot register the metrics: {0}")]
    Register(#[from] prometheus::Error),
}

/// A metrics endpoint that listens and does not serve yet.
#[derive(Debug)]
pub struct MetricsServer {
    listener: TcpListener,
    endpoint: Endpoint,
}

#[derive(Clone)]
struct Endpoint {
    registry: Registry,
    source: Arc<dyn Source>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").finish_non_exhaustive()
    }
}

impl MetricsServer {
    /// Listens on `address`, to show what `source` has.
    pub fn bind(address: SocketAddr, source: Arc<dyn Source>) -> Result<Self, MetricsError> {
        let listen = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = listen().map_err(|source| MetricsError::Listen { address, source })?;
        let registry = Registry::new();
        registry.register(Box::new(HoldfastCollector::new(Arc::clone(&source))?))?;
        Ok(Self { listener, endpoint: Endpoint { registry, source } })
    }

    /// The address in use, also where port 0 was asked for.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `shutdown` is ready. Runs on a tokio runtime.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let routes = Router::new()
            .route("/", get(index))
            .route("/metrics", get(metrics))
            .route("/healthz", get(health))
            .with_state(self.endpoint);
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            // The semaphore is never closed.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
            let stream = tokio::select! {
                () = &mut shutdown => return Ok(()),
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        // Out of descriptors, or a peer that left at once: neither ends the endpoint.
                        tracing::warn!("cannot accept a metrics connection: {error}");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                },
            };
            let routes = TowerToHyperService::new(routes.clone());
            tokio::spawn(async move {
                let mut server = auto::Builder::new(hyper_util::rt::TokioExecutor::new()).http1_only();
                server.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
                if let Err(error) = server.serve_connection(TokioIo::new(stream), routes).await {
                    tracing::debug!("metrics connection ended: {error}");
                }
                drop(place);
            });
        }
    }
}

async fn index() -> impl IntoResponse {
    "holdfastd\n\n/metrics  for Prometheus\n/healthz  200 while every worker runs\n"
}

async fn metrics(State(endpoint): State<Endpoint>) -> Response {
    match TextEncoder::new().encode_to_string(&endpoint.registry.gather()) {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn health(State(endpoint): State<Endpoint>) -> Response {
    match endpoint.source.health() {
        Ok(()) => "ok\n".into_response(),
        Err(problem) => (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")).into_response(),
    }
}
