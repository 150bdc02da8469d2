//! The fabric's thread: packet sockets, a clock, and lines of commands around a [`Switch`].

use super::command::Command;
use super::config::{Config, PortConfig};
use super::event::{Announcement, FabricError, Phase, PortId};
use super::frame::Frame;
use super::schedule::Schedule;
use super::switch::{Stats, Switch};
use crate::io::Tap;
use crate::io::namespace::{Namespace, NamespaceError};
use crate::time::Instant;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// Frames that one port may bring in before others have their turn.
const BUDGET: usize = 64;
/// No command is longer.
const MAX_LINE: usize = 4096;
/// The kernel may fire timers this much late, to bundle them: as little as it can.
const TIMER_SLACK_NS: u64 = 1;

/// Why a fabric cannot run, or ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration does not make a fabric.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A port's network namespace cannot be entered.
    #[error("port \"{port}\": {source}")]
    Namespace {
        /// The port's name.
        port: String,
        /// Why.
        source: NamespaceError,
    },
    /// A port's interface cannot be opened, or failed.
    #[error(
        "port \"{port}\": interface {interface}: {source}; it must exist there (`ip link`), and this takes CAP_NET_RAW"
    )]
    Interface {
        /// The port's name.
        port: String,
        /// Its interface.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Commands, answers or announcements cannot be read or written.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// News of a circuit, as those outside are told: times are of `CLOCK_MONOTONIC`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct News {
    /// What.
    pub event: Phase,
    /// The circuit's label.
    pub circuit: String,
    /// When: of `prepare` the moment to come.
    pub at_ns: u64,
    /// When there will be light again, if that is known.
    pub lit_again_ns: Option<u64>,
    /// The names of the ports that it joins from then on.
    pub ports: [String; 2],
}

/// Whoever wants to know when circuits change. The fabric stands still meanwhile: be quick.
pub trait Announce {
    /// A circuit will be dark (as long before as the fabric's notice), is dark, or has light. An error ends the fabric.
    fn announce(&mut self, news: &News) -> io::Result<()>;
}

/// Tells nobody.
impl Announce for () {
    fn announce(&mut self, _: &News) -> io::Result<()> {
        Ok(())
    }
}

/// What the sockets lost; all else is in [`Stats`].
#[derive(Clone, Copy, Default, Serialize)]
struct SocketCounters {
    /// Frames that came too fast.
    missed: u64,
    /// Frames that the kernel did not take: no room, the interface is down, or its MTU is too small.
    refused: u64,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    stats: Stats,
    sockets: BTreeMap<String, SocketCounters>,
}

/// Runs a fabric until its duration is over or a line says `quit`. The end of `commands` ends nothing.
///
/// Writes a line `ready` when frames pass, one line to answer each command, and the line of `stats` at the end.
pub fn run(
    config: &Config,
    commands: BorrowedFd<'_>,
    answers: &mut dyn Write,
    announce: &mut dyn Announce,
) -> Result<(), RunError> {
    // Only precision depends on it.
    let _ = nix::sys::prctl::set_timerslack(TIMER_SLACK_NS);
    let ports = config.ports().iter().map(Port::open).collect::<Result<_, _>>()?;
    let start = now();
    let mut shell = Shell {
        switch: config.switch()?,
        schedule: config.schedule(start)?,
        ports,
        commands: Some(commands),
        typed: Vec::new(),
        answers,
        announce,
        end: config.end(start),
    };
    shell.answer("ready")?;
    while shell.turn()? {
        shell.wait()?;
    }
    let stats = shell.stats();
    shell.answer(&stats)
}

/// `CLOCK_MONOTONIC`: the same for all processes of the machine.
fn now() -> Instant {
    // This clock cannot fail to be read.
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(core::time::Duration::ZERO, Into::into);
    Instant::ZERO + time
}

struct Port {
    name: String,
    interface: String,
    tap: Tap,
    refused: u64,
}

impl Port {
    fn open(config: &PortConfig) -> Result<Self, RunError> {
        let PortConfig { name, interface, netns, .. } = config;
        let opened = match netns {
            // An absolute path stays what it is.
            Some(netns) => Namespace::open(&Path::new("/run/netns").join(netns))
                .and_then(|namespace| namespace.run(|| Tap::open(interface)))
                .map_err(|source| RunError::Namespace { port: name.clone(), source })?,
            None => Tap::open(interface),
        };
        let refuse = |source| RunError::Interface { port: name.clone(), interface: interface.clone(), source };
        Ok(Self { name: name.clone(), interface: interface.clone(), tap: opened.map_err(refuse)?, refused: 0 })
    }
}

struct Shell<'a> {
    switch: Switch,
    schedule: Schedule,
    ports: Vec<Port>,
    /// `None` when nothing more will come from there.
    commands: Option<BorrowedFd<'a>>,
    /// The beginning of a line.
    typed: Vec<u8>,
    answers: &'a mut dyn Write,
    announce: &'a mut dyn Announce,
    end: Option<Instant>,
}

impl Shell<'_> {
    /// Does all that there is to do now; `false` at the end.
    fn turn(&mut self) -> Result<bool, RunError> {
        let now = now();
        // However late this turn is, light and dark last as long as they should.
        while let Some((due, event)) = self.schedule.poll_event(now) {
            if let Err(error) = self.switch.handle_event(due, event) {
                self.answer(&format!("error {error}"))?;
            }
        }
        self.switch.handle_timeout(now);
        self.receive(now)?;
        self.send(now);
        self.tell()?;
        let goes_on = self.obey(now)?;
        self.tell()?;
        Ok(goes_on && self.end.is_none_or(|end| now < end))
    }

    fn receive(&mut self, now: Instant) -> Result<(), RunError> {
        let Self { switch, ports, .. } = self;
        for (index, Port { tap, name, interface, .. }) in ports.iter_mut().enumerate() {
            let mut sink = |vnet, bytes| switch.handle_frame(now, PortId(index), Frame { bytes, vnet });
            match tap.receive(BUDGET, &mut sink) {
                // What is down today may be up tomorrow.
                Err(source) if source.raw_os_error() != Some(libc::ENETDOWN) => {
                    return Err(RunError::Interface { port: name.clone(), interface: interface.clone(), source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn send(&mut self, now: Instant) {
        while let Some((port, Frame { bytes, vnet })) = self.switch.poll_frame(now) {
            if let Some(port) = self.ports.get_mut(port.0) {
                port.refused += u64::from(port.tap.send(&vnet, &bytes).is_err());
            }
        }
    }

    fn tell(&mut self) -> Result<(), RunError> {
        while let Some(Announcement { phase, circuit, at, lit_again, ends }) = self.switch.poll_announcement() {
            let ports = ends.map(|end| self.switch.port_name(end).to_owned());
            let lit_again_ns = lit_again.map(Instant::as_ns);
            let news = News { event: phase, circuit, at_ns: at.as_ns(), lit_again_ns, ports };
            self.announce.announce(&news).map_err(|source| RunError::Io { what: "announce", source })?;
        }
        Ok(())
    }

    /// Reads what was typed and answers it; `false` after `quit`.
    fn obey(&mut self, now: Instant) -> Result<bool, RunError> {
        let Some(commands) = self.commands else { return Ok(true) };
        if !is_readable(commands) {
            return Ok(true);
        }
        let mut bytes = [0; MAX_LINE];
        match nix::unistd::read(commands, &mut bytes) {
            Ok(0) => self.commands = None,
            Ok(length) => self.typed.extend(bytes.iter().take(length)),
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(errno) => return Err(RunError::Io { what: "read commands", source: errno.into() }),
        }
        while let Some(end) = self.typed.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.typed.drain(..=end).collect();
            if !self.obey_line(now, String::from_utf8_lossy(&line).trim())? {
                return Ok(false);
            }
        }
        if self.typed.len() > MAX_LINE {
            self.typed.clear();
            self.answer("error a line is longer than any command")?;
        }
        Ok(true)
    }

    fn obey_line(&mut self, now: Instant, line: &str) -> Result<bool, RunError> {
        if line.is_empty() {
            return Ok(true);
        }
        let command: Command = match line.parse() {
            Ok(command) => command,
            Err(error) => return self.answer(&format!("error {error}")).map(|()| true),
        };
        let goes_on = command != Command::Quit;
        let answer = if command == Command::Stats {
            self.stats()
        } else {
            let done = command.event(&self.switch).and_then(|event| match event {
                Some(event) => self.switch.handle_event(now, event),
                None => Ok(()),
            });
            done.map_or_else(|error| format!("error {error}"), |()| format!("ok {line}"))
        };
        self.answer(&answer).map(|()| goes_on)
    }

    fn answer(&mut self, line: &str) -> Result<(), RunError> {
        let written = writeln!(self.answers, "{line}").and_then(|()| self.answers.flush());
        written.map_err(|source| RunError::Io { what: "answer", source })
    }

    /// `stats` and all counters as one JSON object.
    fn stats(&mut self) -> String {
        let counters =
            |port: &mut Port| (port.name.clone(), SocketCounters { missed: port.tap.missed(), refused: port.refused });
        let report = Report { stats: self.switch.stats(), sockets: self.ports.iter_mut().map(counters).collect() };
        // Plain structs with string keys: this cannot fail.
        format!("stats {}", serde_json::to_string(&report).unwrap_or_default())
    }

    /// Sleeps until a frame or a command comes, or something is due.
    fn wait(&self) -> Result<(), RunError> {
        let due = [self.switch.poll_timeout(), self.schedule.poll_timeout(), self.end].into_iter().flatten().min();
        let left = due.map(|due| TimeSpec::from_duration(due.since(now())));
        let taps = self.ports.iter().map(|port| port.tap.as_fd());
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds: Vec<PollFd<'_>> = taps.chain(self.commands).map(readable).collect();
        match ppoll(&mut fds, left, None) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(RunError::Io { what: "wait", source: errno.into() }),
        }
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    ppoll(&mut fds, Some(TimeSpec::new(0, 0)), None).is_ok_and(|ready| ready > 0)
}
