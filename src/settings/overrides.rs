//! The command line, which overrides the file.

use super::{Settings, SettingsError};
use clap::Args;
use std::path::PathBuf;

/// The options of `holdfastd` that set something.
#[derive(Clone, PartialEq, Eq, Debug, Default, Args)]
pub struct Overrides {
    /// Read settings from this file [without it: defaults]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Network interface to serve (device.interface)
    #[arg(long, short, value_name = "IF")]
    pub interface: Option<String>,

    /// Address to serve, may be repeated (device.addresses)
    #[arg(long = "address", value_name = "ADDRESS")]
    pub addresses: Vec<String>,

    /// Packet backend: auto, packet or udp (port.backend)
    #[arg(long, value_name = "BACKEND")]
    pub backend: Option<String>,

    /// Number of worker threads (workers.count)
    #[arg(long, value_name = "N")]
    pub workers: Option<u32>,

    /// error, warn, info, debug or trace (log.level)
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,

    /// Set any key, such as --set transport.ack_delay=20us; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

impl Overrides {
    /// The file's settings (or the defaults) with these options over them, checked as a whole.
    pub fn settings(&self) -> Result<Settings, SettingsError> {
        let base = match &self.config {
            Some(path) => Settings::load(path)?,
            None => Settings::default(),
        };
        let settings = self.apply(base)?;
        settings.check()?;
        Ok(settings)
    }

    /// `settings` with these options over them.
    pub(super) fn apply(&self, mut settings: Settings) -> Result<Settings, SettingsError> {
        for (option, key, value) in self.assignments()? {
            settings = settings.with(&key, value).map_err(|problem| SettingsError::Option { option, problem })?;
        }
        Ok(settings)
    }

    /// Each option as (how it was written, key, value).
    fn assignments(&self) -> Result<Vec<(String, String, toml::Value)>, SettingsError> {
        let mut all = Vec::new();
        let mut text = |option: &str, key: &str, value: &Option<String>| {
            if let Some(value) = value {
                all.push((format!("{option} {value}"), key.to_owned(), toml::Value::from(value.as_str())));
            }
        };
        text("--interface", "device.interface", &self.interface);
        text("--backend", "port.backend", &self.backend);
        text("--log-level", "log.level", &self.log_level);
        if !self.addresses.is_empty() {
            let option = format!("--address {}", self.addresses.join(" --address "));
            all.push((option, "device.addresses".into(), toml::Value::from(self.addresses.clone())));
        }
        if let Some(n) = self.workers {
            all.push((format!("--workers {n}"), "workers.count".into(), toml::Value::from(n)));
        }
        for assignment in &self.set {
            let option = format!("--set {assignment}");
            let Some((key, value)) = assignment.split_once('=') else {
                let problem = "expected KEY=VALUE, such as workers.count=2".into();
                return Err(SettingsError::Option { option, problem });
            };
            all.push((option, key.trim().to_owned(), value_of(value.trim())));
        }
        Ok(all)
    }
}

/// A value as TOML (`2`, `[0, 1]`, `"text"`), or else as the bare text that people type (`20us`, `eth0`).
fn value_of(text: &str) -> toml::Value {
    let line = format!("value = {text}");
    match toml::from_str::<toml::Table>(&line) {
        Ok(mut table) if table.len() == 1 => table.remove("value").unwrap_or_else(|| text.into()),
        _ => text.into(),
    }
}
