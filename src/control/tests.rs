#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::client::{Client, ClientError};
use super::worker::{PAGE_ENTRIES, Request, Requests, WorkerHandle};
use super::*;
use crate::counters::{Counter, Distribution, Publisher, Tally};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A worker thread that owns some queue pairs and memory regions and answers as the daemon's do.
fn worker(index: u32, qpns: Vec<u32>, regions: u32) -> WorkerHandle {
    let mut counters = Publisher::new();
    counters.set(Counter::ReceivedPackets, 100);
    counters.set(Counter::AsleepNs, 1_500_000_000);
    let mut latency = Tally::new(Distribution::CompletionLatency);
    latency.record(1_500);
    counters.set_histogram(&latency);
    let (wake, woken) = channel();
    let (handle, requests) = WorkerHandle::new(index, counters.published(), move || wake.send(()).unwrap_or_default());
    std::thread::spawn(move || answer(index, &qpns, regions, &requests, &woken));
    handle
}

fn answer(index: u32, qpns: &[u32], regions: u32, requests: &Requests, woken: &Receiver<()>) {
    let qp = |qpn| view::QueuePair { qpn, worker: index, state: view::QpState::Rts, ..Default::default() };
    let region = |slot| view::MemoryRegion { slot, worker: index, length_bytes: 4096, ..Default::default() };
    let mut ledger = crate::path::Ledger::default();
    while woken.recv().is_ok() {
        while let Some(request) = requests.poll_request() {
            match request {
                Request::Status { reply } => {
                    let worker = view::Worker { index, queue_pairs: qpns.len() as u32, ..Default::default() };
                    reply.send((worker, vec![view::Client { pid: 7 + index, worker: index, ..Default::default() }]));
                }
                Request::QueuePairs { from, reply } => {
                    let mut rest = qpns.iter().copied().filter(|q| *q >= from);
                    let entries = rest.by_ref().take(PAGE_ENTRIES).map(qp).collect();
                    reply.send(view::Page { entries, next: rest.next() });
                }
                Request::QueuePair { qpn, reply } => reply.send(qpns.contains(&qpn).then(|| qp(qpn))),
                Request::Paths { reply, .. } => reply.send(view::Page { entries: vec![path(index)], next: None }),
                Request::Announce { announcement, reply } => {
                    let event = announcement.event(crate::time::Instant::ZERO);
                    let told = ledger.handle_event(&event).map(|()| 1);
                    if told.is_ok() {
                        requests.tell(dark(index));
                    }
                    reply.send(told);
                }
                Request::MemoryRegions { from, reply } => {
                    let mut rest = (0..regions).filter(|s| *s >= from);
                    let entries = rest.by_ref().take(PAGE_ENTRIES).map(region).collect();
                    reply.send(view::Page { entries, next: rest.next() });
                }
            }
        }
    }
}

fn path(worker: u32) -> view::Path {
    view::Path {
        peer: "198.18.0.2".parse().unwrap(),
        worker,
        state: view::PathState::Lit,
        cause: None,
        for_ns: 1,
        queue_pairs: 1,
        hold_max_ns: 1,
        circuit: Some(view::Circuit { label: "l7".into(), rate_bps: 1, rtt_ns: 2, mtu_bytes: 1024, hold_max_ns: 3 }),
        moves: 1,
        darks: 2,
        dark_ns: 3,
        last_dark_ns: 4,
        lost: 5,
        is_holdfast: true,
    }
}

fn dark(worker: u32) -> view::PathNews {
    view::PathNews {
        peer: "198.18.0.2".parse().unwrap(),
        worker,
        state: view::PathState::Dark,
        cause: Some(view::DarkCause::Announced),
        dark_ns: 0,
        lost_queue_pairs: 0,
        at_unix_ns: 7,
    }
}

fn down(sequence: u64) -> proto::PathEvent {
    let change = Some(proto::path_event::Change::Down(proto::Down {}));
    proto::PathEvent { peers: "198.18.0.0/24".into(), epoch: 1, sequence, change }
}

#[tokio::test]
async fn an_announcement_reaches_all_workers_once_and_in_order() {
    let plane = Plane::start(vec![worker(0, vec![16], 0), worker(1, vec![17], 0)]);
    let client = plane.client().await;
    assert_eq!(client.announce(down(5)).await.unwrap(), (2, false));
    assert_eq!(client.announce(down(5)).await.unwrap(), (0, true));
    let stale = client.announce(down(4)).await.unwrap_err().to_string();
    assert!(stale.starts_with("refused: event 1.4 for 198.18.0.0/24 is stale: 1.5 is known"), "{stale}");
    let nothing = proto::PathEvent { change: None, ..down(6) };
    let malformed = client.announce(nothing).await.unwrap_err().to_string();
    assert!(malformed.starts_with("refused: event.change is missing"), "{malformed}");
}

#[tokio::test]
async fn who_says_it_once_more_after_a_worker_was_gone_is_not_refused() {
    let (gone, requests) = WorkerHandle::new(1, Publisher::new().published(), || {});
    drop(requests);
    let plane = Plane::start(vec![worker(0, vec![16], 0), gone]);
    let client = plane.client().await;
    for _ in 0..2 {
        let error = client.announce(down(5)).await.unwrap_err().to_string();
        assert!(error.contains("worker 1 has ended") && error.contains("say it once more"), "{error}");
    }
}

#[tokio::test]
async fn a_watch_tells_how_it_is_and_what_happens() {
    let plane = Plane::start(vec![worker(0, vec![16], 0)]);
    let (watching, announcing) = (plane.client().await, plane.client().await);
    let (told, mut news) = tokio::sync::mpsc::unbounded_channel();
    let watch = tokio::spawn(async move { watching.watch_paths(|watched| told.send(watched).is_ok()).await });
    assert_eq!(news.recv().await, Some(view::Watched::Path(path(0))));
    assert_eq!(announcing.announce(down(1)).await.unwrap(), (1, false));
    assert_eq!(news.recv().await, Some(view::Watched::Event(dark(0))));
    // More at once than a watcher may be behind.
    watch.abort();
    let mut slow = plane.overview.workers()[0].path_news();
    for sequence in 2..3 + super::worker::NEWS_DEPTH as u64 {
        announcing.announce(down(sequence)).await.unwrap();
    }
    let missed = slow.recv().await.unwrap_err();
    assert_eq!(missed, tokio::sync::broadcast::error::RecvError::Lagged(1));
}

/// A control plane on a socket of its own.
struct Plane {
    dir: tempfile::TempDir,
    stop: tokio::sync::oneshot::Sender<()>,
    served: tokio::task::JoinHandle<Result<(), ServeError>>,
    overview: Arc<Overview>,
}

impl Plane {
    fn start(workers: Vec<WorkerHandle>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let access = Access::for_group("");
        let socket = ControlSocket::bind(&dir.path().join("control.sock"), access).unwrap();
        let device = view::Device { name: "holdfast0".into(), config: Some("a/b".into()), ..Default::default() };
        let overview = Arc::new(Overview::new(device, workers));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let served = tokio::spawn(serve(socket, Arc::clone(&overview), async {
            stopped.await.unwrap_or_default();
        }));
        Self { dir, stop, served, overview }
    }

    async fn client(&self) -> Client {
        Client::connect(&self.dir.path().join("control.sock")).await.unwrap()
    }
}

#[tokio::test]
async fn status_tells_the_device_the_workers_and_the_sum_of_their_counters() {
    let plane = Plane::start(vec![worker(0, vec![16, 18], 0), worker(1, vec![17], 0)]);
    let client = plane.client().await;
    let status = client.status().await.unwrap();
    assert_eq!(status.device, *plane.overview.device());
    assert_eq!(status.workers.iter().map(|w| w.queue_pairs).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(status.clients.iter().map(|c| c.pid).collect::<Vec<_>>(), [7, 8]);
    assert_eq!(status.counters.len(), Counter::COUNT);
    let value = |name| status.counters.iter().find(|c| c.name == name).unwrap().value;
    assert_eq!(value("holdfast_received_packets_total"), 200.0);
    assert_eq!(value("holdfast_worker_asleep_seconds_total"), 3.0);
    assert_eq!((status.completion_latency.count, status.completion_latency.p50_ns), (2, Some(2_000)));

    plane.overview.set_device(view::Device { link_up: true, ..(*plane.overview.device()).clone() });
    assert!(client.status().await.unwrap().device.link_up);
}

#[tokio::test]
async fn a_worker_that_ended_is_part_of_the_status() {
    let (gone, requests) = WorkerHandle::new(1, Publisher::new().published(), || {});
    drop(requests);
    let plane = Plane::start(vec![worker(0, vec![16], 0), gone]);
    let client = plane.client().await;
    let status = client.status().await.unwrap();
    assert_eq!(status.workers.len(), 2);
    assert!(status.workers[1].problem.as_deref().unwrap().contains("worker 1 has ended"));
    // One that is not on a living worker may be on the dead one: that is no "not found".
    assert!(matches!(client.queue_pair(17).await, Err(ClientError::Failed(m)) if m.contains("worker 1")));
    assert!(client.queue_pairs(usize::MAX).await.is_err());
}

#[tokio::test]
async fn long_lists_come_page_by_page_and_whole() {
    let n = 2 * PAGE_ENTRIES as u32 + 1;
    let even: Vec<u32> = (0..n).map(|i| 16 + 2 * i).collect();
    let odd: Vec<u32> = (0..n).map(|i| 17 + 2 * i).collect();
    let plane = Plane::start(vec![worker(0, even.clone(), n), worker(1, odd.clone(), 3)]);
    let client = plane.client().await;
    let listed: Vec<u32> = client.queue_pairs(usize::MAX).await.unwrap().iter().map(|q| q.qpn).collect();
    assert_eq!(listed, [even, odd].concat());
    assert_eq!(client.queue_pairs(1).await.unwrap().len(), PAGE_ENTRIES, "no more pages than needed");
    assert_eq!(client.memory_regions(usize::MAX).await.unwrap().len(), n as usize + 3);
}

#[tokio::test]
async fn one_queue_pair_is_found_on_whichever_worker_has_it() {
    let plane = Plane::start(vec![worker(0, vec![16], 0), worker(1, vec![17], 0)]);
    let client = plane.client().await;
    let qp = client.queue_pair(17).await.unwrap();
    assert_eq!((qp.qpn, qp.worker, qp.state), (17, 1, view::QpState::Rts));
    let missing = client.queue_pair(99).await.unwrap_err();
    assert!(matches!(&missing, ClientError::NotFound(m) if m == "there is no queue pair 99"), "{missing}");
}

#[tokio::test]
async fn the_plane_ends_when_told_and_removes_its_socket() {
    let plane = Plane::start(vec![]);
    let path = plane.dir.path().join("control.sock");
    plane.client().await.status().await.unwrap();
    plane.stop.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(30), plane.served).await.unwrap().unwrap().unwrap();
    assert!(!path.exists());
    let error = Client::connect(&path).await.unwrap_err();
    assert!(matches!(error, ClientError::NotRunning(_)) && error.to_string().contains("systemctl start"), "{error}");
}

#[tokio::test]
async fn something_else_on_the_socket_is_no_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let other = tokio::spawn(async move { drop(listener.accept().await.unwrap()) });
    let asked = async { Client::connect(&path).await?.status().await };
    assert!(matches!(asked.await, Err(ClientError::Failed(_))));
    other.await.unwrap();
}

/// A bare channel, as a program that knows nothing of us would open it.
async fn channel_to(plane: &Plane) -> tonic::transport::Channel {
    let path = plane.dir.path().join("control.sock");
    let connect = tower::service_fn(move |_| {
        let path = path.clone();
        async move { tokio::net::UnixStream::connect(path).await.map(hyper_util::rt::TokioIo::new) }
    });
    tonic::transport::Endpoint::from_static("http://localhost").connect_with_connector(connect).await.unwrap()
}

#[tokio::test]
async fn health_and_reflection_answer_programs_that_have_no_proto_files() {
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

    const SERVICES: [&str; 3] = ["holdfast.v1.Memory", "holdfast.v1.QueuePairs", "holdfast.v1.Status"];
    let plane = Plane::start(vec![]);
    let channel = channel_to(&plane).await;
    for service in SERVICES {
        let request = HealthCheckRequest { service: service.into() };
        let answer = HealthClient::new(channel.clone()).check(request).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service}");
    }
    let question = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let asked = ServerReflectionClient::new(channel).server_reflection_info(tokio_stream::once(question)).await;
    let answer = asked.unwrap().into_inner().message().await.unwrap();
    let Some(ServerReflectionResponse { message_response: Some(MessageResponse::ListServicesResponse(list)), .. }) =
        answer
    else {
        panic!("{answer:?}")
    };
    let names: Vec<&str> = list.service.iter().map(|s| s.name.as_str()).collect();
    assert!(SERVICES.iter().all(|s| names.contains(s)), "{names:?}");
}
