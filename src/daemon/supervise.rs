//! Signals, reload, link changes, watchdog, the end.

use super::clients::Attached;
use super::device::Served;
use super::start::{self, Running, StartError};
use super::worker::{Order, Orders, WorkerError};
use crate::control::worker::Request;
use crate::control::{self, Overview};
use crate::counters::{Counter, SharedCounters};
use crate::io::link::{LinkError, LinkEvent, LinkState, LinkWatcher};
use crate::settings::logging::{self, LogControl};
use crate::settings::{Overrides, Settings};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sd_notify::NotifyState;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{info, warn};

/// Runs the daemon until it is told to end.
pub(super) fn run(overrides: &Overrides) -> Result<(), StartError> {
    let settings = overrides.settings()?;
    let log = logging::init(&settings.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("control")
        .enable_all()
        .build()
        .map_err(StartError::system("start the control plane's runtime"))?;
    runtime.block_on(async {
        let running = start::start(&settings, overrides.config.clone())?;
        Supervisor { overrides, settings, log, attached: Attached::default(), next: AtomicUsize::new(0) }
            .supervise(running)
            .await
    })
}

struct Supervisor<'a> {
    overrides: &'a Overrides,
    settings: Settings,
    log: LogControl,
    attached: Attached,
    /// Which worker gets the next program.
    next: AtomicUsize,
}

/// What happened.
enum Happened {
    EndWanted,
    ReloadWanted,
    Link(LinkChange),
    WorkerEnded(Option<WorkerError>),
    Failed(&'static str, String),
    KeepAlive,
}

/// How long workers may take beyond the drain time to let go of their clients.
const END_GRACE: Duration = Duration::from_secs(2);

impl Supervisor<'_> {
    async fn supervise(mut self, running: Running) -> Result<(), StartError> {
        let Running { overview, facts, orders, mut ended, attach, control, metrics, link, mut served, port } = running;
        let listen = |kind| signal(kind).map_err(StartError::system("listen to signals"));
        let mut terminate = listen(SignalKind::terminate())?;
        let mut interrupt = listen(SignalKind::interrupt())?;
        let mut hangup = listen(SignalKind::hangup())?;
        let mut link = link.map(watch_link).transpose()?;
        let (shutdown, until) = watch::channel(());
        let mut serving = JoinSet::new();
        serving.spawn(named("the control socket", control::serve(control, Arc::clone(&overview), over(until.clone()))));
        if let Some(metrics) = metrics {
            serving.spawn(named("the metrics endpoint", metrics.serve(over(until))));
        }
        let mut watchdog = tokio::time::interval(sd_notify::watchdog_enabled().map_or(KEEP_ALIVE, |limit| limit / 2));
        notify(&[NotifyState::Ready, NotifyState::Status("serving")]);
        info!("ready");
        let outcome = loop {
            let happened = tokio::select! {
                accepted = attach.accept_each(|socket, peer| self.admit(socket, peer.pid(), peer.uid(), &orders, overview.counters())) => {
                    Happened::Failed("the attach socket", accepted.err().map(|e| e.to_string()).unwrap_or_default())
                }
                _ = terminate.recv() => Happened::EndWanted,
                _ = interrupt.recv() => Happened::EndWanted,
                _ = hangup.recv() => Happened::ReloadWanted,
                change = next_link_change(&mut link) => Happened::Link(change),
                Some(end) = ended.recv() => Happened::WorkerEnded(end.err().flatten()),
                Some(Ok((what, Err(error)))) = serving.join_next() => Happened::Failed(what, error),
                _ = watchdog.tick() => Happened::KeepAlive,
            };
            match happened {
                Happened::EndWanted => break Ok(()),
                Happened::ReloadWanted => self.reload(&served, &orders, overview.counters()),
                Happened::Link(Ok((event, state))) => {
                    if event == LinkEvent::Down {
                        facts.note_link_down();
                    }
                    served = self.handle_link(&event, &served, Served::new(&self.settings, Some(&state)), &orders);
                    overview.set_device(served.view(&self.settings, self.overrides.config.clone(), &port));
                }
                Happened::Link(Err(error)) => break Err(error.into()),
                Happened::WorkerEnded(error) => break Err(StartError::WorkerEnded(error)),
                Happened::Failed(what, error) => break Err(StartError::Serving(what, error)),
                Happened::KeepAlive => facts.set_healthy(keep_alive(&overview).await),
            }
        };
        notify(&[NotifyState::Stopping, NotifyState::Status("draining")]);
        drop(attach);
        if outcome.is_ok() {
            drain(&orders, &mut ended, self.settings.shutdown.drain.duration()).await;
        }
        drop(shutdown);
        // What still streams to somebody is cut off.
        serving.shutdown().await;
        info!("ended");
        outcome
    }

    fn admit(&self, socket: OwnedFd, pid: i32, uid: u32, orders: &[Orders], counters: &SharedCounters) {
        let limits = &self.settings.clients;
        let Some(place) = self.attached.take(limits.max_clients) else {
            counters.count(Counter::AttachTooMany);
            warn!(pid, "a program was turned away: clients.max_clients = {} are attached", limits.max_clients);
            return;
        };
        let worker = self.next.fetch_add(1, Ordering::Relaxed) % orders.len().max(1);
        let taken =
            orders.get(worker).is_some_and(|w| w.give(Order::Attach(socket, start::permissions(limits, uid), place)));
        if !taken {
            counters.count(Counter::AttachWorkerBusy);
            warn!(pid, worker, "a program was turned away: its worker does not keep up");
        }
    }

    fn reload(&mut self, served: &Served, orders: &[Orders], counters: &SharedCounters) {
        let now = NotifyState::monotonic_usec_now().unwrap_or(NotifyState::Status("reloading"));
        notify(&[NotifyState::Reloading, now]);
        match self.overrides.settings() {
            Err(error) => {
                counters.count(Counter::ReloadRefused);
                warn!("the settings stay as they are: {error}");
            }
            Ok(new) => {
                counters.count(Counter::ReloadApplied);
                let reload = self.settings.reload(&new);
                self.settings = reload.settings;
                self.log.set_level(self.settings.log.level);
                let policy = start::poll_policy(&self.settings.workers);
                for worker in orders {
                    worker.give(Order::Poll(policy));
                    worker.give(Order::Hold(start::hold_policy(&self.settings.hold)));
                    worker.give(Order::Circuits(start::circuits(&self.settings)));
                    worker.give(Order::Congestion(start::congestion_policy(&self.settings, served).into()));
                }
                info!(applied = ?reload.applied, "settings read again");
                if !reload.needs_restart.is_empty() {
                    warn!(keys = ?reload.needs_restart, "these keys changed and need a restart");
                }
            }
        }
        notify(&[NotifyState::Ready, NotifyState::Status("serving")]);
    }

    /// Tells the workers what a change of the link means to them.
    fn handle_link(&self, event: &LinkEvent, old: &Served, new: Served, orders: &[Orders]) -> Served {
        match event {
            LinkEvent::Up => info!("the link is up"),
            LinkEvent::Down => warn!("the link is down; queue pairs wait for it"),
            LinkEvent::Gone => warn!("the interface is gone; a restart is needed when it is back"),
            other => info!(event = ?other, "the link changed"),
        }
        let status = start::port_status(&self.settings, &new);
        for worker in orders {
            if old.addresses != new.addresses {
                worker.give(Order::Addresses(new.addresses.clone()));
            }
            if start::port_status(&self.settings, old) != status {
                worker.give(Order::Link(status));
                worker.give(Order::Congestion(start::congestion_policy(&self.settings, &new).into()));
            }
        }
        new
    }
}

/// How often the workers are asked whether they are alive if no watchdog says how often.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Asks every worker, and tells systemd if all of them answered.
async fn keep_alive(overview: &Overview) -> bool {
    for worker in overview.workers() {
        if let Err(error) = worker.ask(|reply| Request::Status { reply }).await {
            warn!("{error}");
            return false;
        }
    }
    notify(&[NotifyState::Watchdog]);
    true
}

/// Lets every worker finish what is posted, for at most `limit`.
async fn drain(orders: &[Orders], ended: &mut UnboundedReceiver<Result<(), Option<WorkerError>>>, limit: Duration) {
    for worker in orders {
        worker.give(Order::Drain(limit));
    }
    let all = async {
        for _ in orders {
            ended.recv().await;
        }
    };
    if tokio::time::timeout(limit + END_GRACE, all).await.is_err() {
        warn!("a worker did not end in time");
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!(%error, "cannot talk to systemd");
    }
}

async fn over(mut until: watch::Receiver<()>) {
    // The sender says nothing: that it is gone is the word.
    let _ = until.changed().await;
}

async fn named<E: std::fmt::Display>(
    name: &'static str,
    server: impl Future<Output = Result<(), E>>,
) -> (&'static str, Result<(), String>) {
    (name, server.await.map_err(|e| e.to_string()))
}

/// A change of the link, and what the link is since.
type LinkChange = Result<(LinkEvent, LinkState), LinkError>;

/// Watches the link on a thread of its own, until nobody listens or the watcher fails.
fn watch_link(mut watcher: LinkWatcher) -> Result<UnboundedReceiver<LinkChange>, StartError> {
    let (to, changes) = unbounded_channel();
    let watch = move || loop {
        let change = match watcher.poll_event() {
            Ok(Some(event)) => Ok((event, watcher.state().clone())),
            Ok(None) => {
                let mut fds = [PollFd::new(watcher.as_fd(), PollFlags::POLLIN)];
                // Whatever ends the wait, the next look tells.
                let _ = poll(&mut fds, PollTimeout::NONE);
                continue;
            }
            Err(error) => Err(error),
        };
        let is_over = change.is_err();
        if to.send(change).is_err() || is_over {
            return;
        }
    };
    std::thread::Builder::new().name("link".into()).spawn(watch).map_err(StartError::system("start a thread"))?;
    Ok(changes)
}

async fn next_link_change(link: &mut Option<UnboundedReceiver<LinkChange>>) -> LinkChange {
    match link {
        Some(changes) => match changes.recv().await {
            Some(change) => change,
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}
