//! The log: structured to journald where that reads it, plain lines on standard error elsewhere.

use serde::{Deserialize, Serialize};
use std::io::IsTerminal;
use thiserror::Error;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, reload};

/// What is worth a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// What the daemon cannot do.
    Error,
    /// And what an operator should look at.
    Warn,
    /// And what the daemon is, and how that changes: the port, clients, reloads.
    Info,
    /// And each queue pair's life.
    Debug,
    /// And more than anybody wants to read.
    Trace,
}

impl From<Level> for LevelFilter {
    fn from(level: Level) -> Self {
        match level {
            Level::Error => Self::ERROR,
            Level::Warn => Self::WARN,
            Level::Info => Self::INFO,
            Level::Debug => Self::DEBUG,
            Level::Trace => Self::TRACE,
        }
    }
}

/// Where lines go and what they look like.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// `journal` under systemd, else `text`.
    Auto,
    /// Structured records for journald.
    Journal,
    /// Lines on standard error.
    Text,
}

/// Why the log could not be set up.
#[derive(Debug, Error)]
pub enum LoggingError {
    /// journald does not answer.
    #[error("cannot reach journald: {0}; set log.format = \"text\" where there is no systemd")]
    Journal(#[source] std::io::Error),
    /// Something in this process has set up a log before.
    #[error("the log is already set up in this process")]
    Twice,
}

/// Changes the log while the daemon runs.
#[derive(Clone, Debug)]
pub struct LogControl(reload::Handle<LevelFilter, Registry>);

impl LogControl {
    /// Takes a new level, at a reload.
    pub fn set_level(&self, level: Level) {
        // It fails only when the subscriber is gone, and with it the log.
        let _ = self.0.reload(level);
    }
}

/// Sets up the log of this process.
pub fn init(log: &super::Log) -> Result<LogControl, LoggingError> {
    let (filter, handle) = reload::Layer::new(LevelFilter::from(log.level));
    let output = match log.format {
        Format::Journal => journal()?,
        Format::Auto if under_journald() => journal()?,
        Format::Auto | Format::Text => text(),
    };
    Registry::default().with(output.with_filter(filter)).try_init().map_err(|_| LoggingError::Twice)?;
    Ok(LogControl(handle))
}

type Output = Box<dyn Layer<Registry> + Send + Sync>;

fn journal() -> Result<Output, LoggingError> {
    let layer = tracing_journald::layer().map_err(LoggingError::Journal)?;
    Ok(layer.with_syslog_identifier("holdfastd".into()).boxed())
}

fn text() -> Output {
    let terminal = std::io::stderr().is_terminal();
    tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(terminal).with_target(false).boxed()
}

/// systemd says in `JOURNAL_STREAM` (device:inode) which stream it connected to journald; standard error may have been
/// redirected since, so the two are compared (systemd.exec(5)).
fn under_journald() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let Ok(stat) = nix::sys::stat::fstat(std::io::stderr()) else { return false };
    stream == format!("{}:{}", stat.st_dev, stat.st_ino)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_second_log_in_one_process_is_refused() {
        let log = super::super::Log { level: Level::Error, format: Format::Text };
        // Whichever test of this process comes first sets it up; the second time must be refused.
        let first = init(&log);
        assert!(matches!(init(&log), Err(LoggingError::Twice)));
        if let Ok(control) = first {
            control.set_level(Level::Warn);
            assert_eq!(LevelFilter::current(), LevelFilter::WARN);
        }
    }
}
