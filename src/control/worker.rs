//! The boundary to a worker thread: requests go in through a bounded channel, answers come back through one-shot replies.
//!
//! The control plane never touches a queue pair. It asks the worker that owns it, and the worker answers between two turns
//! of its loop. Long lists go page by page, so that a controller cannot stall the packet path.

use super::{Announcement, view};
use crate::counters::Published;
use crate::path::PathEventError;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{broadcast, oneshot};

/// Requests that may wait for one worker. More are refused, not queued.
pub const REQUEST_QUEUE_DEPTH: usize = 64;
/// Events of paths that a watcher may be behind. More are missed, and it is told how many.
pub const NEWS_DEPTH: usize = 1024;
/// Entries that a worker puts into one page.
pub const PAGE_ENTRIES: usize = 256;
/// How long the control plane waits for a worker's answer.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The way back to whoever asked.
#[derive(Debug)]
pub struct Reply<T>(oneshot::Sender<T>);

impl<T> Reply<T> {
    /// Answers. Never blocks; an asker who went away is not an error.
    pub fn send(self, answer: T) {
        // The asker timed out or hung up: nobody is left to tell.
        let _ = self.0.send(answer);
    }
}

/// What a worker can be asked.
#[derive(Debug)]
pub enum Request {
    /// Itself and its clients.
    Status {
        /// Where the answer goes.
        reply: Reply<(view::Worker, Vec<view::Client>)>,
    },
    /// Its queue pairs with numbers of at least `from`, at most [`PAGE_ENTRIES`] of them, ascending.
    QueuePairs {
        /// The lowest number wanted.
        from: u32,
        /// Where the answer goes.
        reply: Reply<view::Page<view::QueuePair>>,
    },
    /// One queue pair; `None` if it does not exist.
    QueuePair {
        /// Its number.
        qpn: u32,
        /// Where the answer goes.
        reply: Reply<Option<view::QueuePair>>,
    },
    /// Its paths with numbers of at least `from`, at most [`PAGE_ENTRIES`] of them, ascending.
    Paths {
        /// The lowest number wanted.
        from: u32,
        /// Where the answer goes.
        reply: Reply<view::Page<view::Path>>,
    },
    /// Something happens to paths.
    Announce {
        /// What.
        announcement: Announcement,
        /// How many paths it is for now.
        reply: Reply<Result<u32, PathEventError>>,
    },
    /// Its memory regions in slots from `from` on, at most [`PAGE_ENTRIES`] of them, ascending.
    MemoryRegions {
        /// The lowest slot wanted.
        from: u32,
        /// Where the answer goes.
        reply: Reply<view::Page<view::MemoryRegion>>,
    },
}

/// Why a worker did not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AskError {
    /// Its request queue is full.
    #[error("worker {worker} has {REQUEST_QUEUE_DEPTH} requests waiting; ask again later")]
    Busy {
        /// The worker's index.
        worker: u32,
    },
    /// It has ended.
    #[error("worker {worker} has ended; the daemon is shutting down or restarting it")]
    Gone {
        /// The worker's index.
        worker: u32,
    },
    /// It did not answer in [`ANSWER_TIMEOUT`].
    #[error("worker {worker} did not answer within {} s; it is overloaded or stuck", ANSWER_TIMEOUT.as_secs())]
    Timeout {
        /// The worker's index.
        worker: u32,
    },
}

/// The control plane's end of one worker.
#[derive(Clone)]
pub struct WorkerHandle {
    index: u32,
    requests: crossbeam::channel::Sender<Request>,
    wake: Arc<dyn Fn() + Send + Sync>,
    counters: Arc<Published>,
    news: broadcast::Sender<view::PathNews>,
}

impl std::fmt::Debug for WorkerHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerHandle").field("index", &self.index).finish_non_exhaustive()
    }
}

/// The worker's end: the requests that wait for it, and the way to those who watch.
#[derive(Debug)]
pub struct Requests {
    receiver: crossbeam::channel::Receiver<Request>,
    news: broadcast::Sender<view::PathNews>,
}

impl Requests {
    /// The next request, if one waits. Never blocks: a load and a compare when there is none.
    pub fn poll_request(&self) -> Option<Request> {
        self.receiver.try_recv().ok()
    }

    /// Whether a request waits.
    pub fn is_waiting(&self) -> bool {
        !self.receiver.is_empty()
    }

    /// Tells those who watch what happened to a path.
    pub fn tell(&self, news: view::PathNews) {
        // Nobody watches: nobody is to be told.
        let _ = self.news.send(news);
    }
}

impl WorkerHandle {
    /// Both ends for worker `index`. `wake` is called after each request; it wakes the worker if it sleeps (an eventfd).
    pub fn new(
        index: u32,
        counters: Arc<Published>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> (WorkerHandle, Requests) {
        let (requests, receiver) = crossbeam::channel::bounded(REQUEST_QUEUE_DEPTH);
        let news = broadcast::Sender::new(NEWS_DEPTH);
        let requests_end = Requests { receiver, news: news.clone() };
        (Self { index, requests, wake: Arc::new(wake), counters, news }, requests_end)
    }

    /// The worker's index.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// What happens to its paths from now on.
    pub fn path_news(&self) -> broadcast::Receiver<view::PathNews> {
        self.news.subscribe()
    }

    /// The worker's counters, to be kept.
    pub fn published(&self) -> Arc<Published> {
        Arc::clone(&self.counters)
    }

    /// The worker's counters, to be read at any time without asking.
    pub fn counters(&self) -> &Published {
        &self.counters
    }

    /// Asks, and waits for the answer. `request` puts the reply into a [`Request`].
    pub async fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, AskError> {
        self.ask_within(ANSWER_TIMEOUT, request).await
    }

    async fn ask_within<T>(&self, limit: Duration, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, AskError> {
        let worker = self.index;
        let (reply, answer) = oneshot::channel();
        self.requests.try_send(request(Reply(reply))).map_err(|e| match e {
            crossbeam::channel::TrySendError::Full(_) => AskError::Busy { worker },
            crossbeam::channel::TrySendError::Disconnected(_) => AskError::Gone { worker },
        })?;
        (self.wake)();
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(AskError::Gone { worker }),
            Err(_) => Err(AskError::Timeout { worker }),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::counters::Publisher;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn handle() -> (WorkerHandle, Requests, Arc<AtomicU32>) {
        let woken = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&woken);
        let (handle, requests) = WorkerHandle::new(3, Publisher::new().published(), move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        (handle, requests, woken)
    }

    #[tokio::test]
    async fn a_request_wakes_the_worker_and_brings_the_answer() {
        let (handle, requests, woken) = handle();
        let asked = tokio::spawn(async move { handle.ask(|reply| Request::QueuePair { qpn: 17, reply }).await });
        let request = loop {
            match requests.poll_request() {
                Some(request) => break request,
                None => tokio::task::yield_now().await,
            }
        };
        assert_eq!(woken.load(Ordering::Relaxed), 1);
        let Request::QueuePair { qpn: 17, reply } = request else { panic!("{request:?}") };
        reply.send(Some(view::QueuePair { qpn: 17, ..Default::default() }));
        assert_eq!(asked.await.unwrap().unwrap().unwrap().qpn, 17);
        assert!(requests.poll_request().is_none());
    }

    #[tokio::test]
    async fn a_worker_that_ended_is_told_apart_from_a_busy_one() {
        let (handle, requests, _) = handle();
        for _ in 0..REQUEST_QUEUE_DEPTH {
            let (reply, _) = oneshot::channel();
            handle.requests.try_send(Request::Status { reply: Reply(reply) }).unwrap();
        }
        let ask = || handle.ask(|reply| Request::Status { reply });
        assert_eq!(ask().await.unwrap_err(), AskError::Busy { worker: 3 });
        drop(requests);
        assert_eq!(ask().await.unwrap_err(), AskError::Gone { worker: 3 });
    }

    #[tokio::test]
    async fn a_stuck_worker_is_given_up() {
        let (handle, _requests, _) = handle();
        let asked = handle.ask_within(Duration::ZERO, |reply| Request::QueuePairs { from: 0, reply }).await;
        assert_eq!(asked.unwrap_err(), AskError::Timeout { worker: 3 });
    }
}
