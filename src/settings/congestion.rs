//! `[congestion]`

use super::units::{self, Rate, Size, Time};
use super::{SECOND, US};
use crate::congestion::{BadParameter, Line, Parameters, Tuning};
use crate::path::IpPrefix;
use serde::{Deserialize, Serialize};

const TB: u64 = 1_000_000_000_000;

/// `[congestion]`: DCQCN, its parameters under NVIDIA's names; what each means says [`Parameters`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)]
pub struct Congestion {
    /// Whether marks and CNPs mean anything.
    pub enabled: bool,
    /// Rate of the line; 0 is what the link says.
    pub line_rate: Rate,
    /// Round trip of the line without queues.
    #[serde(deserialize_with = "units::time::<_, 0, SECOND>")]
    pub line_rtt: Time,
    /// Stock peers that react to CNPs and send them.
    #[serde(with = "units::texts")]
    pub reacting_peers: Vec<IpPrefix>,
    pub clamp_tgt_rate: bool,
    pub clamp_tgt_rate_after_time_inc: bool,
    #[serde(deserialize_with = "units::time::<_, US, {131_071 * US}>")]
    pub rpg_time_reset: Time,
    #[serde(deserialize_with = "units::size::<_, 0, TB>")]
    pub rpg_byte_reset: Size,
    #[serde(deserialize_with = "units::number::<_, 1, 31>")]
    pub rpg_threshold: u32,
    pub rpg_max_rate: Rate,
    pub rpg_ai_rate: Rate,
    pub rpg_hai_rate: Rate,
    #[serde(deserialize_with = "units::number::<_, 10, 15>")]
    pub rpg_gd: u32,
    #[serde(deserialize_with = "units::number::<_, 1, 100>")]
    pub rpg_min_dec_fac: u32,
    pub rpg_min_rate: Rate,
    pub rate_to_set_on_first_cnp: Rate,
    #[serde(deserialize_with = "units::number::<_, 0, 1023>")]
    pub dce_tcp_g: u32,
    #[serde(deserialize_with = "units::time::<_, US, {131_071 * US}>")]
    pub dce_tcp_rtt: Time,
    #[serde(deserialize_with = "units::time::<_, 0, {131_071 * US}>")]
    pub rate_reduce_monitor_period: Time,
    #[serde(deserialize_with = "units::number::<_, 1, 1023>")]
    pub initial_alpha_value: u32,
    #[serde(deserialize_with = "units::time::<_, 0, {131_071 * US}>")]
    pub min_time_between_cnps: Time,
    #[serde(deserialize_with = "units::number::<_, 0, 63>")]
    pub cnp_dscp: u32,
    #[serde(deserialize_with = "units::time::<_, US, {1_000 * US}>")]
    pub burst_time: Time,
}

impl Default for Congestion {
    fn default() -> Self {
        let p = Parameters::default();
        Self {
            enabled: true,
            line_rate: Rate::default(),
            line_rtt: Time::from_secs(0),
            reacting_peers: Vec::new(),
            clamp_tgt_rate: p.clamp_tgt_rate,
            clamp_tgt_rate_after_time_inc: p.clamp_tgt_rate_after_time_inc,
            rpg_time_reset: p.rpg_time_reset.into(),
            rpg_byte_reset: Size::from_bytes(p.rpg_byte_reset),
            rpg_threshold: p.rpg_threshold.into(),
            rpg_max_rate: p.rpg_max_rate.into(),
            rpg_ai_rate: p.rpg_ai_rate.into(),
            rpg_hai_rate: p.rpg_hai_rate.into(),
            rpg_gd: p.rpg_gd.into(),
            rpg_min_dec_fac: p.rpg_min_dec_fac.into(),
            rpg_min_rate: p.rpg_min_rate.into(),
            rate_to_set_on_first_cnp: p.rate_to_set_on_first_cnp.into(),
            dce_tcp_g: p.dce_tcp_g.into(),
            dce_tcp_rtt: p.dce_tcp_rtt.into(),
            rate_reduce_monitor_period: p.rate_reduce_monitor_period.into(),
            initial_alpha_value: p.initial_alpha_value.into(),
            min_time_between_cnps: p.min_time_between_cnps.into(),
            cnp_dscp: p.cnp_dscp.into(),
            burst_time: p.burst_time.into(),
        }
    }
}

impl Congestion {
    /// The parameters, not yet checked.
    fn parameters(&self) -> Parameters {
        // Each number was read between bounds that fit.
        let small = |number: u32| u8::try_from(number).unwrap_or(u8::MAX);
        let middle = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
        Parameters {
            clamp_tgt_rate: self.clamp_tgt_rate,
            clamp_tgt_rate_after_time_inc: self.clamp_tgt_rate_after_time_inc,
            rpg_time_reset: self.rpg_time_reset.duration(),
            rpg_byte_reset: self.rpg_byte_reset.bytes(),
            rpg_threshold: small(self.rpg_threshold),
            rpg_max_rate: self.rpg_max_rate.bps(),
            rpg_ai_rate: self.rpg_ai_rate.bps(),
            rpg_hai_rate: self.rpg_hai_rate.bps(),
            rpg_gd: small(self.rpg_gd),
            rpg_min_dec_fac: small(self.rpg_min_dec_fac),
            rpg_min_rate: self.rpg_min_rate.bps(),
            rate_to_set_on_first_cnp: self.rate_to_set_on_first_cnp.bps(),
            dce_tcp_g: middle(self.dce_tcp_g),
            dce_tcp_rtt: self.dce_tcp_rtt.duration(),
            rate_reduce_monitor_period: self.rate_reduce_monitor_period.duration(),
            initial_alpha_value: middle(self.initial_alpha_value),
            min_time_between_cnps: self.min_time_between_cnps.duration(),
            cnp_dscp: small(self.cnp_dscp),
            burst_time: self.burst_time.duration(),
            ..Parameters::default()
        }
    }

    /// The parameters for a line of `link` bits a second, if the settings do not say another rate; of neither anything is known: that of
    /// fast adapters.
    ///
    /// # Errors
    /// What is wrong with them, with the key's name.
    pub fn tuning(&self, link_mbps: u32) -> Result<Tuning, BadParameter> {
        let unknown = Line::default();
        let port = if link_mbps > 0 { Rate::from_mbps(link_mbps.into()).bps() } else { unknown.rate };
        let rate = if self.line_rate == Rate::default() { port } else { self.line_rate.bps() };
        let line = Line { rate, rtt: self.line_rtt.duration(), is_narrow: rate < port, ..unknown };
        Tuning::new(self.parameters(), line)
    }
}
