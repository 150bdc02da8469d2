//! `[[circuit]]`

use super::SECOND;
use super::units::{self, Rate, Time};
use crate::path::{Circuit, IpPrefix, Label};
use crate::wire::PathMtu;
use serde::{Deserialize, Serialize};

/// `[[circuit]]`: a circuit to some peers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CircuitSettings {
    /// What it is called.
    #[serde(with = "units::text")]
    pub label: Label,
    /// Who is reached over it, as addresses or prefixes; of several that hold a peer the longest counts.
    #[serde(with = "units::texts")]
    pub peers: Vec<IpPrefix>,
    /// Its rate; 0 is that of the line.
    #[serde(default)]
    pub rate: Rate,
    /// Its round trip without queues; 0 is that of the line.
    #[serde(default, deserialize_with = "units::time::<_, 0, SECOND>")]
    pub rtt: Time,
    /// The largest RoCE MTU that it carries.
    #[serde(default, deserialize_with = "units::some_mtu", skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// In the dark for longer, what waits fails; 0 is as for all paths.
    #[serde(default, deserialize_with = "units::time::<_, 0, {86_400 * SECOND}>")]
    pub hold_max: Time,
}

impl CircuitSettings {
    /// The circuit, for each of its peers.
    pub fn circuits(&self) -> impl Iterator<Item = (IpPrefix, Circuit)> {
        let known = |time: Time| Some(time.duration()).filter(|time| !time.is_zero());
        let circuit = Circuit {
            label: self.label,
            rate: Some(self.rate.bps()).filter(|_| self.rate != Rate::default()),
            rtt: self.rtt.duration(),
            mtu: self.mtu.and_then(PathMtu::from_bytes),
            hold_max: known(self.hold_max),
        };
        self.peers.iter().map(move |peers| (*peers, circuit))
    }
}
