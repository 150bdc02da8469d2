//! What changes when the settings are read again (SIGHUP).

use super::Settings;

/// The keys that take effect at once. All others need a restart of the daemon.
pub const RELOADABLE: &[&str] = &[
    "workers.poll",
    "workers.spin_max",
    "hold.enabled",
    "hold.detect",
    "hold.hold_max",
    "hold.probe_every",
    "congestion.enabled",
    "congestion.line_rate",
    "congestion.line_rtt",
    "congestion.reacting_peers",
    "congestion.clamp_tgt_rate",
    "congestion.clamp_tgt_rate_after_time_inc",
    "congestion.rpg_time_reset",
    "congestion.rpg_byte_reset",
    "congestion.rpg_threshold",
    "congestion.rpg_max_rate",
    "congestion.rpg_ai_rate",
    "congestion.rpg_hai_rate",
    "congestion.rpg_gd",
    "congestion.rpg_min_dec_fac",
    "congestion.rpg_min_rate",
    "congestion.rate_to_set_on_first_cnp",
    "congestion.dce_tcp_g",
    "congestion.dce_tcp_rtt",
    "congestion.rate_reduce_monitor_period",
    "congestion.initial_alpha_value",
    "congestion.min_time_between_cnps",
    "congestion.cnp_dscp",
    "congestion.burst_time",
    "clients.max_clients",
    "clients.max_queue_pairs",
    "clients.max_memory_regions",
    "clients.max_queue_depth",
    "clients.max_queue_memory",
    "clients.max_registered",
    "log.level",
    "shutdown.drain",
];

/// The difference between the settings in force and those read again.
#[derive(Clone, PartialEq, Debug)]
pub struct Reload {
    /// The settings that are in force from now on: the new values of [`RELOADABLE`] keys, the old ones of all others.
    pub settings: Settings,
    /// Keys that changed and took effect.
    pub applied: Vec<String>,
    /// Keys that changed and wait for a restart.
    pub needs_restart: Vec<String>,
}

impl Settings {
    /// Compares with settings that were read again.
    pub fn reload(&self, new: &Settings) -> Reload {
        let mut reload = Reload { settings: self.clone(), applied: Vec::new(), needs_restart: Vec::new() };
        for ((key, old), (_, value)) in self.leaves().into_iter().zip(new.leaves()) {
            if old == value {
                continue;
            }
            // The value comes from checked settings, so it is allowed.
            match RELOADABLE.contains(&key.as_str()).then(|| reload.settings.with(&key, value)) {
                Some(Ok(settings)) => {
                    reload.settings = settings;
                    reload.applied.push(key);
                }
                Some(Err(_)) | None => reload.needs_restart.push(key),
            }
        }
        if self.circuit != new.circuit {
            reload.settings.circuit.clone_from(&new.circuit);
            reload.applied.push("circuit".into());
        }
        reload
    }
}
