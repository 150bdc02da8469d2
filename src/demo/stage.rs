//! Where the demo plays: namespaces, daemons, sockets; all of it gone when the stage is struck or dropped.

use crate::io::namespace::{self, End, Namespace, NamespaceError};
use crate::ipc::client::{self, Context};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Why there is no stage.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The namespaces could not be joined.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// A daemon did not come up.
    #[error("daemon {name} did not start{}", .status.map_or(" in time".to_owned(), |s| format!(": {s}")))]
    NoDaemon {
        /// Which.
        name: char,
        /// How it ended, if it did.
        status: Option<ExitStatus>,
    },
    /// A daemon ended otherwise than it was told.
    #[error("daemon {name} did not end as it should: {status}")]
    BadEnd {
        /// Which.
        name: char,
        /// How.
        status: String,
    },
    /// The demo inside its namespaces failed.
    #[error("the demo in its own namespaces failed: {0}")]
    Inside(ExitStatus),
    /// The system refused something.
    #[error("cannot {0}: {1}")]
    System(&'static str, #[source] io::Error),
}

impl StageError {
    fn system(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |e| Self::System(what, e)
    }
}

/// Where the demo takes place.
pub(super) enum Setting {
    /// In this process.
    Here(Stage),
    /// It took place in a child process that had namespaces of its own, and went well.
    PlayedInside,
}

/// Two daemons and a network between them.
pub(super) struct Stage {
    network: Option<[Namespace; 2]>,
    daemons: Vec<Daemon>,
    directory: PathBuf,
}

struct Daemon {
    name: char,
    address: IpAddr,
    socket: PathBuf,
    process: Child,
}

/// Room for a RoCE MTU of 4096.
const LINK_MTU: u32 = 4500;
const START_LIMIT: Duration = Duration::from_secs(20);
const END_LIMIT: Duration = Duration::from_secs(10);

impl Stage {
    /// Brings everything up: in namespaces if this process may make them, else in a child process that may, else on loopback.
    pub(super) fn set(inside: bool) -> Result<Setting, StageError> {
        match Namespace::new().and_then(|a| Ok([a, Namespace::new()?])) {
            Ok(network) => Self::on_veth(network).map(Setting::Here),
            Err(_) if !inside && may_isolate() => {
                let program = std::env::current_exe().map_err(StageError::system("find this program"))?;
                let mut command = Command::new(program);
                command.args(std::env::args_os().skip(1)).arg("--inside");
                let status =
                    namespace::isolate(&mut command).status().map_err(StageError::system("run the demo inside"))?;
                if status.success() { Ok(Setting::PlayedInside) } else { Err(StageError::Inside(status)) }
            }
            Err(_) => Self::on_loopback().map(Setting::Here),
        }
    }

    fn on_veth(network: [Namespace; 2]) -> Result<Self, StageError> {
        let [a, b] = &network;
        let (ours, theirs) = (IpAddr::from([198, 18, 0, 1]), IpAddr::from([198, 18, 0, 2]));
        Namespace::connect(
            End { namespace: a, name: "hfa", addresses: &[(ours, 24)] },
            End { namespace: b, name: "hfb", addresses: &[(theirs, 24)] },
            LINK_MTU,
        )?;
        let mut stage = Self { network: None, daemons: Vec::new(), directory: directory()? };
        for (namespace, name, interface, address) in [(a, 'A', "hfa", ours), (b, 'B', "hfb", theirs)] {
            let mut command = stage.command(name)?;
            command.args(["--interface", interface]);
            let process = namespace.run(|| command.spawn())?.map_err(StageError::system("start a daemon"))?;
            stage.add(name, address, process);
        }
        stage.network = Some(network);
        Ok(stage)
    }

    fn on_loopback() -> Result<Self, StageError> {
        let mut stage = Self { network: None, daemons: Vec::new(), directory: directory()? };
        for (name, last) in [('A', 2), ('B', 3)] {
            let address = Ipv4Addr::new(127, 0, 0, last);
            let mut command = stage.command(name)?;
            command.args(["--backend", "udp", "--address", &address.to_string()]);
            let process = command.spawn().map_err(StageError::system("start a daemon"))?;
            stage.add(name, address.into(), process);
        }
        Ok(stage)
    }

    fn command(&self, name: char) -> Result<Command, StageError> {
        let program = std::env::current_exe().map_err(StageError::system("find this program"))?;
        let mut command = Command::new(program);
        let path = |what| self.directory.join(format!("{name}.{what}")).display().to_string();
        command.args(["daemon", "--log-level", "warn"]);
        command.args(["--set", &format!("clients.socket={}", path("attach"))]);
        command.args(["--set", &format!("control.socket={}", path("control"))]);
        command.args(["--set", "clients.group=", "--set", "control.group=", "--set", "metrics.listen=off"]);
        command.stdin(Stdio::null());
        Ok(command)
    }

    fn add(&mut self, name: char, address: IpAddr, process: Child) {
        let socket = self.directory.join(format!("{name}.attach"));
        self.daemons.push(Daemon { name, address, socket, process });
    }

    /// Where we are, for a person.
    pub(super) fn describe(&self) -> String {
        let [a, b] = [0, 1].map(|i| self.daemons.get(i).map_or("?".to_owned(), |d| d.address.to_string()));
        match self.network {
            Some(_) => format!("Two daemons, {a} and {b}, in two network namespaces joined by a veth pair."),
            None => format!(
                "Network namespaces are forbidden here: two daemons on the loopback addresses {a} and {b}, backend udp."
            ),
        }
    }

    /// Attaches to a daemon as soon as it listens.
    pub(super) fn attach(&self, index: usize) -> Result<Context, StageError> {
        let Some(daemon) = self.daemons.get(index) else {
            return Err(StageError::NoDaemon { name: '?', status: None });
        };
        let start = Instant::now();
        loop {
            match Context::connect(&daemon.socket) {
                Ok(context) => return Ok(context),
                Err(client::Error::NotRunning { .. }) if start.elapsed() < START_LIMIT && is_alive(&daemon.process) => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(client::Error::NotRunning { .. }) => {
                    return Err(StageError::NoDaemon { name: daemon.name, status: None });
                }
                Err(error) => return Err(StageError::System("attach to a daemon", io::Error::other(error))),
            }
        }
    }

    /// A TCP listener that [`Self::dial`] reaches. An isolated process has no other loopback interface that is up.
    pub(super) fn listen(&self) -> Result<TcpListener, StageError> {
        let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        match &self.network {
            Some([a, _]) => a.run(bind)?,
            None => bind(),
        }
        .map_err(StageError::system("listen on loopback"))
    }

    /// Connects to a listener of this stage.
    pub(super) fn dial(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let connect = || TcpStream::connect(address);
        match &self.network {
            Some([a, _]) => a.run(connect).map_err(io::Error::other)?,
            None => connect(),
        }
    }

    /// Ends the daemons, and looks whether they end well.
    pub(super) fn strike(mut self) -> Result<(), StageError> {
        for mut daemon in std::mem::take(&mut self.daemons) {
            let status = end(&mut daemon.process);
            if !status.as_ref().is_some_and(ExitStatus::success) {
                let status = status.map_or("it had to be killed".to_owned(), |s| s.to_string());
                return Err(StageError::BadEnd { name: daemon.name, status });
            }
        }
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            end(&mut daemon.process);
        }
        // What a killed daemon left behind goes too.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A directory that only this user can enter.
fn directory() -> Result<PathBuf, StageError> {
    use std::os::unix::fs::DirBuilderExt;
    let path = std::env::temp_dir().join(format!("holdfast-demo-{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&path).map_err(StageError::system("make a directory"))?;
    Ok(path)
}

fn may_isolate() -> bool {
    let mut command = Command::new("/proc/self/exe");
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    namespace::isolate(&mut command).status().is_ok_and(|s| s.success())
}

/// A zombie is not alive; nobody has waited for it yet.
fn is_alive(process: &Child) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Asks a daemon to end, and kills it if it does not in time.
fn end(process: &mut Child) -> Option<ExitStatus> {
    let pid = i32::try_from(process.id()).map(Pid::from_raw).ok()?;
    // It may have ended already: waiting tells.
    let _ = kill(pid, Signal::SIGTERM);
    let start = Instant::now();
    while start.elapsed() < END_LIMIT {
        match process.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            Err(_) => break,
        }
    }
    let _ = process.kill();
    let _ = process.wait();
    None
}
