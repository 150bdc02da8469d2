//! What the control plane shows of paths.

use crate::congestion::Bps;
use crate::path;
use serde::Serialize;
use std::net::IpAddr;

/// Where in its life a path is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PathState {
    /// There is light.
    #[default]
    Lit,
    /// Darkness is announced.
    Draining,
    /// Answers are due, and nothing comes.
    Suspect,
    /// Nothing is sent, no timer runs.
    Dark,
    /// There is light again; queue pairs go on one after the other.
    Thawing,
    /// Dark for too long: what waited has failed.
    Lost,
}

/// Who says that a path is dark.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DarkCause {
    /// A controller.
    Announced,
    /// The link.
    Carrier,
    /// The peer's silence.
    Silence,
}

/// What a path rides on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Circuit {
    /// Its name.
    pub label: String,
    /// Bits a second; 0: that of the line.
    pub rate_bps: u64,
    /// Round trip without queues; 0: that of the line.
    pub rtt_ns: u64,
    /// The largest RoCE MTU that it carries; 0: that of the port.
    pub mtu_bytes: u32,
    /// In the dark for longer, what waits fails; 0: as for all paths.
    pub hold_max_ns: u64,
}

/// The path to one peer, of one worker's queue pairs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Path {
    /// The peer's address.
    pub peer: IpAddr,
    /// Whose queue pairs ride it.
    pub worker: u32,
    /// Where in its life it is.
    pub state: PathState,
    /// Who says that it is dark; `None` in the light.
    pub cause: Option<DarkCause>,
    /// For how long it has been in its state.
    pub for_ns: u64,
    /// Queue pairs that ride it.
    pub queue_pairs: u32,
    /// In the dark for longer, what waits fails.
    pub hold_max_ns: u64,
    /// What it rides on, if that is known.
    pub circuit: Option<Circuit>,
    /// How often that was another.
    pub moves: u64,
    /// How often it was dark.
    pub darks: u64,
    /// For how long in all; the present darkness counts once it is over.
    pub dark_ns: u64,
    /// How long the last darkness was.
    pub last_dark_ns: u64,
    /// How often what waited was failed.
    pub lost: u64,
    /// Whether the peer is a holdfast too, as far as is known.
    pub is_holdfast: bool,
}

/// What happened to a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct PathNews {
    /// The peer's address.
    pub peer: IpAddr,
    /// Whose queue pairs ride it.
    pub worker: u32,
    /// Where it is now.
    pub state: PathState,
    /// Who says that it is dark.
    pub cause: Option<DarkCause>,
    /// How long it was dark, where it has light again.
    pub dark_ns: u64,
    /// Queue pairs that failed, where it was dark for too long.
    pub lost_queue_pairs: u32,
    /// By the daemon's wall clock, since 1970.
    pub at_unix_ns: u64,
}

/// What a watch tells.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Watched {
    /// A path as it was when the watch began.
    Path(Path),
    /// What happened to one.
    Event(PathNews),
    /// So many events came faster than they were taken.
    Missed(u64),
}

impl From<path::PathState> for PathState {
    fn from(state: path::PathState) -> Self {
        match state {
            path::PathState::Lit => Self::Lit,
            path::PathState::Draining => Self::Draining,
            path::PathState::Suspect => Self::Suspect,
            path::PathState::Dark => Self::Dark,
            path::PathState::Thawing => Self::Thawing,
            path::PathState::Lost => Self::Lost,
        }
    }
}

impl From<path::DarkCause> for DarkCause {
    fn from(cause: path::DarkCause) -> Self {
        match cause {
            path::DarkCause::Announced => Self::Announced,
            path::DarkCause::Carrier => Self::Carrier,
            path::DarkCause::Silence => Self::Silence,
        }
    }
}

impl From<path::Circuit> for Circuit {
    fn from(circuit: path::Circuit) -> Self {
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            label: circuit.label.to_string(),
            rate_bps: circuit.rate.map_or(0, Bps::as_bps),
            rtt_ns: ns(circuit.rtt),
            mtu_bytes: circuit.mtu.map_or(0, crate::wire::PathMtu::bytes),
            hold_max_ns: circuit.hold_max.map_or(0, ns),
        }
    }
}
