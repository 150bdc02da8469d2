//! Three racks (namespaces) on the cables of a fabric, and its process.

use holdfast::io::namespace::{End, Namespace};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Longer than anything takes on a busy machine: whoever waits so long waits in vain.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The interface in each rack.
pub(crate) const INTERFACE: &str = "hf0";
const MTU: u32 = 4500;
const PORT: u16 = 7000;

/// Waits for something that has no descriptor to wait for.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Where the socket of a rack is: 0, 1 or 2.
pub(crate) fn address(rack: u8) -> SocketAddr {
    (ip(rack), PORT).into()
}

fn ip(rack: u8) -> IpAddr {
    IpAddr::from([198, 18, 0, rack + 1])
}

/// The next datagram.
pub(crate) fn receive(socket: &UdpSocket) -> Vec<u8> {
    let mut bytes = [0; 5000];
    let length = socket.recv(&mut bytes).unwrap();
    bytes[..length].to_vec()
}

/// What a fabric with this file says instead of running.
pub(crate) fn refusal(text: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let output = program(&directory, text, &[]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

fn program(directory: &tempfile::TempDir, text: &str, arguments: &[&str]) -> Command {
    let path = directory.path().join("fabric.toml");
    std::fs::write(&path, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    command.arg("fabric").arg(path).args(arguments);
    command
}

/// Racks, cables, and the fabric. Killed when dropped.
pub(crate) struct Stage {
    process: Child,
    commands: Option<ChildStdin>,
    lines: Receiver<String>,
    news: Vec<Value>,
    racks: [Namespace; 3],
    /// Where the fabric's ends are.
    _fabric: Vec<Namespace>,
    _directory: tempfile::TempDir,
}

impl Stage {
    /// A fabric of ports `a`, `b`, `c` in one namespace, and what the text adds to its file.
    pub(crate) fn start(text: &str, arguments: &[&str]) -> Self {
        let fabric = Namespace::new().unwrap();
        let racks = [0, 1, 2].map(|rack| cabled(rack, &fabric));
        let port = |name: char| format!("[[port]]\nname = \"{name}\"\ninterface = \"f{name}\"\n");
        let text: String = "abc".chars().map(port).chain([text.to_owned()]).collect();
        let directory = tempfile::tempdir().unwrap();
        let command = program(&directory, &text, arguments);
        Self::spawn(command, racks, vec![fabric], directory)
    }

    /// The same with a namespace for each port, found by its path.
    pub(crate) fn start_apart(before: &str, text: &str, arguments: &[&str]) -> Self {
        let namespaces: Vec<Namespace> = (0..3).map(|_| Namespace::new().unwrap()).collect();
        let racks = [0, 1, 2].map(|rack| cabled(rack, &namespaces[usize::from(rack)]));
        // Namespaces have a path as long as somebody is in them.
        let mut dwellers: Vec<Child> = namespaces.iter().map(dweller).collect();
        let port = |(name, dweller): (char, &Child)| {
            format!("[[port]]\nname = \"{name}\"\ninterface = \"f{name}\"\nnetns = \"/proc/{}/ns/net\"\n", dweller.id())
        };
        let ports: String = "abc".chars().zip(&dwellers).map(port).collect();
        let directory = tempfile::tempdir().unwrap();
        let command = program(&directory, &(before.to_owned() + &ports + text), arguments);
        let stage = Self::spawn(command, racks, namespaces, directory);
        for dweller in &mut dwellers {
            drop(dweller.stdin.take());
            dweller.wait().unwrap();
        }
        stage
    }

    fn spawn(
        mut command: Command,
        racks: [Namespace; 3],
        fabric: Vec<Namespace>,
        directory: tempfile::TempDir,
    ) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = fabric[0].run(|| command.spawn()).unwrap().unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = channel();
        // It ends with the process, or with the receiver.
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let commands = process.stdin.take();
        let mut stage =
            Self { process, commands, lines, news: Vec::new(), racks, _fabric: fabric, _directory: directory };
        assert_eq!(stage.answer(), "ready");
        stage
    }

    /// The rack at port 0, 1 or 2.
    pub(crate) fn end(&self, rack: usize) -> &Namespace {
        &self.racks[rack]
    }

    /// A socket in each rack.
    pub(crate) fn sockets(&self) -> [UdpSocket; 3] {
        [0, 1, 2].map(|rack| {
            let socket = self.end(usize::from(rack)).run(|| UdpSocket::bind(address(rack)).unwrap()).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        })
    }

    /// Types a line; gives back what answers it.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        writeln!(self.commands.as_mut().unwrap(), "{line}").unwrap();
        self.answer()
    }

    /// The next line that is no news.
    fn answer(&mut self) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap();
            match line.starts_with('{') {
                true => self.news.push(serde_json::from_str(&line).unwrap()),
                false => return line,
            }
        }
    }

    pub(crate) fn stats(&mut self) -> Value {
        let answer = self.ask("stats");
        serde_json::from_str(answer.strip_prefix("stats ").unwrap()).unwrap()
    }

    /// What was announced and read so far.
    pub(crate) fn news(&self) -> &[Value] {
        &self.news
    }

    /// Waits until this was announced.
    pub(crate) fn await_news(&mut self, event: &str) {
        while self.news.last().is_none_or(|news| news["event"] != event) {
            let line = self.lines.recv_timeout(PATIENCE).unwrap();
            self.news.push(serde_json::from_str(&line).unwrap());
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), signal).unwrap();
    }

    /// Ends it by its command.
    pub(crate) fn quit(mut self) {
        assert_eq!(self.ask("quit"), "ok quit");
        self.last_stats();
    }

    /// Waits for its end, of which the counters are the last word.
    pub(crate) fn last_stats(&mut self) -> Value {
        drop(self.commands.take());
        let answer = self.answer();
        assert!(self.process.wait().unwrap().success());
        serde_json::from_str(answer.strip_prefix("stats ").unwrap()).unwrap()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A rack with a cable to the fabric, `fa`, `fb` or `fc` at its other end.
fn cabled(rack: u8, fabric: &Namespace) -> Namespace {
    let namespace = Namespace::new().unwrap();
    let name = ["fa", "fb", "fc"][usize::from(rack)];
    Namespace::connect(
        End { namespace: &namespace, name: INTERFACE, addresses: &[(ip(rack), 24)] },
        End { namespace: fabric, name, addresses: &[] },
        MTU,
    )
    .unwrap();
    namespace
}

/// A process that stays in the namespace until its input ends.
fn dweller(namespace: &Namespace) -> Child {
    namespace.run(|| Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn()).unwrap().unwrap()
}
