//! The file of a fabric.

use super::event::{FabricError, FabricEvent, PortId};
use super::frame::Mac;
use super::line::{EcnSettings, LineSettings};
use super::schedule::{Occasion, Schedule};
use super::switch::{CircuitSettings, PortSettings, Switch, SwitchSettings};
use crate::settings::units::{size, time};
use crate::settings::{self, SettingsError, Size, Time};
use crate::time::Instant;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, Unexpected};
use std::path::{Path, PathBuf};

/// A file that shows every key.
pub const EXAMPLE: &str = include_str!("../../config/examples/fabric.toml");

/// Longer than any blackout, shorter than any overflow.
const DAY: u64 = 86_400_000_000_000;
const GIB: u64 = 1 << 30;

/// Why a file was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read, or a key or value is not allowed.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Its parts do not go together.
    #[error("{}: {problem}", path.display())]
    Fabric {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: FabricError,
    },
    /// An event says too little or too much.
    #[error("{}: event {number}: {problem}", path.display())]
    Event {
        /// The file.
        path: PathBuf,
        /// Which, from 1.
        number: usize,
        /// What is wrong, and what is allowed.
        problem: &'static str,
    },
    /// Thresholds of marks are upside down.
    #[error("{}: {line}: kmin is greater than kmax: marks begin at kmin and are certain beyond kmax", path.display())]
    Ecn {
        /// The file.
        path: PathBuf,
        /// The circuit's label, or `fallback`.
        line: String,
    },
}

/// A fabric as its file tells it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    #[serde(default)]
    seed: u64,
    #[serde(default = "never", deserialize_with = "time::<_, 0, {365 * DAY}>")]
    duration: Time,
    #[serde(default = "never", deserialize_with = "time::<_, 0, DAY>")]
    notice: Time,
    #[serde(rename = "port")]
    ports: Vec<PortConfig>,
    #[serde(default, rename = "circuit")]
    circuits: Vec<CircuitConfig>,
    fallback: Option<LineConfig>,
    #[serde(default, rename = "event")]
    events: Vec<EventConfig>,
}

/// Where a port is.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PortConfig {
    pub(super) name: String,
    pub(super) interface: String,
    /// Path of a network namespace, or its name under `/run/netns`; this process's own if there is none.
    pub(super) netns: Option<PathBuf>,
    #[serde(default, deserialize_with = "macs")]
    macs: Vec<Mac>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CircuitConfig {
    label: String,
    ends: [String; 2],
    #[serde(default)]
    line: LineConfig,
    #[serde(default = "never", deserialize_with = "time::<_, 0, DAY>")]
    reconfiguration: Time,
    #[serde(default)]
    dark: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LineConfig {
    rate_bps: u64,
    #[serde(deserialize_with = "time::<_, 0, DAY>")]
    delay: Time,
    #[serde(deserialize_with = "size::<_, 0, GIB>")]
    queue: Size,
    #[serde(deserialize_with = "probability")]
    loss: f64,
    #[serde(deserialize_with = "probability")]
    reordering: f64,
    #[serde(deserialize_with = "time::<_, 0, DAY>")]
    reordered_by: Time,
    ecn: Option<EcnConfig>,
}

impl Default for LineConfig {
    fn default() -> Self {
        Self {
            rate_bps: 0,
            delay: never(),
            queue: Size::from_mib(1),
            loss: 0.0,
            reordering: 0.0,
            reordered_by: Time::from_micros(100),
            ecn: None,
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EcnConfig {
    #[serde(deserialize_with = "size::<_, 0, GIB>")]
    kmin: Size,
    #[serde(deserialize_with = "size::<_, 0, GIB>")]
    kmax: Size,
    #[serde(deserialize_with = "probability")]
    pmax: f64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventConfig {
    #[serde(deserialize_with = "time::<_, 0, {365 * DAY}>")]
    at: Time,
    #[serde(default = "never", deserialize_with = "time::<_, 1, DAY>")]
    every: Time,
    times: Option<u64>,
    dark: Option<String>,
    #[serde(default, rename = "for", deserialize_with = "some_time")]
    lasting: Option<Time>,
    light: Option<String>,
    #[serde(rename = "move")]
    moved: Option<String>,
    to: Option<[String; 2]>,
}

const fn never() -> Time {
    Time::from_secs(0)
}

fn some_time<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Time>, D::Error> {
    time::<_, 1, DAY>(d).map(Some)
}

fn probability<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    let value = f64::deserialize(d)?;
    let is_one = (0.0..=1.0).contains(&value);
    is_one
        .then_some(value)
        .ok_or_else(|| D::Error::invalid_value(Unexpected::Float(value), &"a probability, 0.0 to 1.0"))
}

fn macs<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Mac>, D::Error> {
    let refuse =
        |text: &str| D::Error::invalid_value(Unexpected::Str(text), &"an address such as \"02:00:00:00:00:01\"");
    let texts = Vec::<String>::deserialize(d)?;
    texts.iter().map(|text| mac(text).ok_or_else(|| refuse(text))).collect()
}

fn mac(text: &str) -> Option<Mac> {
    let byte = |part: &str| u8::from_str_radix(part, 16).ok().filter(|_| part.len() == 2);
    let bytes: Vec<u8> = text.split(':').map(byte).collect::<Option<_>>()?;
    bytes.try_into().ok()
}

impl LineConfig {
    fn settings(&self) -> LineSettings {
        let ecn = |e: EcnConfig| EcnSettings { kmin: e.kmin.bytes(), kmax: e.kmax.bytes(), pmax: e.pmax };
        LineSettings {
            rate_bps: self.rate_bps,
            delay: self.delay.duration(),
            queue_bytes: self.queue.bytes(),
            loss: self.loss,
            reordering: self.reordering,
            reordered_by: self.reordered_by.duration(),
            ecn: self.ecn.map(ecn),
        }
    }

    fn is_upside_down(&self) -> bool {
        self.ecn.is_some_and(|ecn| ecn.kmin > ecn.kmax)
    }
}

impl Config {
    /// Reads a file, and checks it as a whole.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&settings::read(path)?, path)
    }

    /// Reads `text`, which came from `path`, and checks it as a whole.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let config: Self = settings::parse(text, path)?;
        let lines = config.circuits.iter().map(|c| (c.label.as_str(), &c.line));
        let fallback = config.fallback.iter().map(|line| ("fallback", line));
        if let Some((line, _)) = lines.chain(fallback).find(|(_, line)| line.is_upside_down()) {
            return Err(ConfigError::Ecn { path: path.to_owned(), line: line.to_owned() });
        }
        let refuse = |problem| ConfigError::Fabric { path: path.to_owned(), problem };
        config.switch().map_err(refuse)?;
        for (index, event) in config.events.iter().enumerate() {
            event.check().map_err(|problem| ConfigError::Event {
                path: path.to_owned(),
                number: index + 1,
                problem,
            })?;
            let event = config.event(event).map_err(refuse)?;
            if !config.circuits.iter().any(|circuit| circuit.label == event.circuit()) {
                let known = config.circuits.iter().map(|c| c.label.as_str()).collect::<Vec<_>>().join(", ");
                return Err(refuse(FabricError::NoCircuit { label: event.circuit().to_owned(), known }));
            }
        }
        Ok(config)
    }

    /// The ports.
    pub(super) fn ports(&self) -> &[PortConfig] {
        &self.ports
    }

    /// When a fabric that started then ends by itself, if it does.
    pub fn end(&self, start: Instant) -> Option<Instant> {
        let duration = self.duration.duration();
        (!duration.is_zero()).then(|| start + duration)
    }

    /// The switch, at rest.
    pub fn switch(&self) -> Result<Switch, FabricError> {
        let port = |p: &PortConfig| PortSettings { name: p.name.clone(), macs: p.macs.clone() };
        let circuit = |c: &CircuitConfig| {
            Ok(CircuitSettings {
                label: c.label.clone(),
                ends: self.ends(&c.ends)?,
                line: c.line.settings(),
                reconfiguration: c.reconfiguration.duration(),
                is_dark: c.dark,
            })
        };
        Switch::new(SwitchSettings {
            ports: self.ports.iter().map(port).collect(),
            circuits: self.circuits.iter().map(circuit).collect::<Result<_, _>>()?,
            fallback: self.fallback.as_ref().map(LineConfig::settings),
            notice: self.notice.duration(),
            seed: self.seed,
        })
    }

    /// The schedule of a fabric that starts then.
    pub fn schedule(&self, start: Instant) -> Result<Schedule, FabricError> {
        let occasion = |e: &EventConfig| {
            let every = e.every.duration();
            let times = e.times.or(every.is_zero().then_some(1));
            Ok(Occasion { at: e.at.duration(), every, times, event: self.event(e)? })
        };
        Ok(Schedule::new(start, self.events.iter().map(occasion).collect::<Result<_, FabricError>>()?))
    }

    fn event(&self, event: &EventConfig) -> Result<FabricEvent, FabricError> {
        let EventConfig { dark, light, moved, to, lasting, .. } = event;
        Ok(match (dark, light, moved, to) {
            (Some(circuit), ..) => FabricEvent::Dark { circuit: circuit.clone(), lasting: lasting.map(Time::duration) },
            (_, _, Some(circuit), Some(ends)) => FabricEvent::Move { circuit: circuit.clone(), ends: self.ends(ends)? },
            (_, light, ..) => FabricEvent::Light { circuit: light.clone().unwrap_or_default() },
        })
    }

    fn ends(&self, names: &[String; 2]) -> Result<[PortId; 2], FabricError> {
        let known = || self.ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ");
        let port = |name: &String| {
            let found = self.ports.iter().position(|port| port.name == *name).map(PortId);
            found.ok_or_else(|| FabricError::NoPort { name: name.clone(), known: known() })
        };
        let [a, b] = names;
        Ok([port(a)?, port(b)?])
    }
}

impl EventConfig {
    /// Whether it says one thing, and all of it.
    fn check(&self) -> Result<(), &'static str> {
        let kinds = [&self.dark, &self.light, &self.moved].into_iter().flatten().count();
        match self {
            _ if kinds != 1 => Err("it needs one of dark, light and move, each with a circuit's label"),
            Self { moved, to, .. } if moved.is_some() != to.is_some() => {
                Err("move and to belong together: move = \"LABEL\", to = [\"PORT\", \"PORT\"]")
            }
            Self { dark: None, lasting: Some(_), .. } => {
                Err("\"for\" says how long it is dark: it goes with dark only")
            }
            Self { times: Some(0), .. } => Err("times is 0: leave the event out"),
            Self { times: Some(2..), every, .. } if *every == never() => {
                Err("times needs every: how long from one to the next")
            }
            _ => Ok(()),
        }
    }
}
