//! An optical circuit between two daemons: the emulated fabric in a process of its own.

use crate::stage::{Daemon, INTERFACE, LINK_MTU, Pair, v4, v6};
use holdfast::io::namespace::{End, Namespace};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Two ports, and the circuit that joins them.
fn fabric(line: &str) -> String {
    format!(
        "port = [{{ name = \"a\", interface = \"fa\" }}, {{ name = \"b\", interface = \"fb\" }}]\n\
         circuit = [{{ label = \"ab\", ends = [\"a\", \"b\"]{}{line} }}]\n",
        if line.is_empty() { "" } else { ", " }
    )
}

/// A circuit with light. Its process is killed when it is dropped.
pub(crate) struct Circuit {
    process: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    _middle: Namespace,
    _directory: tempfile::TempDir,
}

impl Circuit {
    /// Two daemons with these settings beside the stage's own, and the circuit between them.
    pub(crate) fn between(settings: &str) -> (Pair, Self) {
        Self::like("", settings)
    }

    /// The same over a line of this kind.
    pub(crate) fn like(line: &str, settings: &str) -> (Pair, Self) {
        let middle = Namespace::new().unwrap();
        let ends = [(1, "fa"), (2, "fb")].map(|(n, name)| {
            let namespace = Namespace::new().unwrap();
            let end = End { namespace: &namespace, name: INTERFACE, addresses: &[(v4(n), 24), (v6(n), 64)] };
            Namespace::connect(end, End { namespace: &middle, name, addresses: &[] }, LINK_MTU).unwrap();
            Arc::new(namespace)
        });
        let circuit = Self::start(middle, line);
        let daemons = ends.each_ref().map(|end| Daemon::start(end, INTERFACE, settings));
        (Pair { ends, daemons }, circuit)
    }

    fn start(middle: Namespace, line: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("fabric.toml");
        std::fs::write(&file, fabric(line)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command.arg("fabric").arg(file).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = middle.run(|| command.spawn()).unwrap().unwrap();
        let (commands, answers) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        let mut circuit = Self { process, commands, answers, _middle: middle, _directory: directory };
        assert_eq!(circuit.answer(), "ready");
        circuit
    }

    /// Takes the light away.
    pub(crate) fn dark(&mut self) {
        self.command("dark ab");
    }

    /// Brings it back.
    pub(crate) fn light(&mut self) {
        self.command("light ab");
    }

    /// Takes it away for a while.
    pub(crate) fn blink(&mut self, dark: Duration) {
        self.dark();
        std::thread::sleep(dark);
        self.light();
    }

    /// What it counted.
    pub(crate) fn stats(&mut self) -> serde_json::Value {
        writeln!(self.commands, "stats").unwrap();
        let answer = self.answer();
        serde_json::from_str(answer.strip_prefix("stats ").unwrap()).unwrap()
    }

    fn command(&mut self, line: &str) {
        writeln!(self.commands, "{line}").unwrap();
        assert_eq!(self.answer(), format!("ok {line}"));
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Circuit {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
