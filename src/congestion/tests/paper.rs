//! Against the paper's equations, in floating point, timer by timer.

use super::super::{Bps, CnpEffect, Parameters, ReactionPoint, Tuning};
use super::{LINE, us};
use crate::time::{Duration, Instant};
use proptest::prelude::*;

/// A reaction point as sections 3.1 and 5 of the paper and its figure 7 write it down. Times in nanoseconds, rates in bits a second.
struct Paper {
    rc: f64,
    rt: f64,
    alpha: f64,
    timer_stage: u32,
    byte_stage: u32,
    byte_counter: u64,
    next_raise: u64,
    next_decay: u64,
    p: Parameters,
    line: f64,
}

impl Paper {
    fn new(p: Parameters) -> Self {
        let line = LINE.rate.as_bps() as f64;
        let alpha = f64::from(p.initial_alpha_value) / 1024.0;
        Self {
            rc: line,
            rt: line,
            alpha,
            timer_stage: 0,
            byte_stage: 0,
            byte_counter: 0,
            next_raise: u64::MAX,
            next_decay: u64::MAX,
            p,
            line,
        }
    }

    fn g(&self) -> f64 {
        1.0 - f64::from(self.p.dce_tcp_g) / 1024.0
    }

    fn advance(&mut self, now: u64) {
        while self.next_raise.min(self.next_decay) <= now {
            if self.next_decay <= self.next_raise {
                self.alpha *= 1.0 - self.g();
                self.next_decay += self.p.dce_tcp_rtt.as_nanos() as u64;
            } else {
                self.timer_stage += 1;
                self.raise();
                self.next_raise += self.p.rpg_time_reset.as_nanos() as u64;
            }
        }
    }

    fn raise(&mut self) {
        let f = u32::from(self.p.rpg_threshold);
        if self.timer_stage.max(self.byte_stage) < f {
            // Fast recovery.
        } else if self.timer_stage.min(self.byte_stage) > f {
            self.rt += self.p.rpg_hai_rate.as_bps() as f64;
        } else {
            self.rt += self.p.rpg_ai_rate.as_bps() as f64;
        }
        self.rt = self.rt.min(self.line);
        self.rc = (self.rt + self.rc) / 2.0;
    }

    fn cnp(&mut self, now: u64, is_first: bool) {
        self.advance(now);
        // Ours, the paper has no word on it: after long silence at full rate the next CNP is a first one.
        if is_first {
            self.alpha = f64::from(self.p.initial_alpha_value) / 1024.0;
        }
        self.rt = self.rc;
        self.rc = (self.rc * (1.0 - self.alpha / 2.0)).max(self.p.rpg_min_rate.as_bps() as f64);
        self.alpha = (1.0 - self.g()) * self.alpha + self.g();
        (self.timer_stage, self.byte_stage, self.byte_counter) = (0, 0, 0);
        self.next_raise = now + self.p.rpg_time_reset.as_nanos() as u64;
        self.next_decay = now + self.p.dce_tcp_rtt.as_nanos() as u64;
    }

    fn sent(&mut self, now: u64, bytes: u64) {
        self.advance(now);
        self.byte_counter += bytes;
        while self.byte_counter >= self.p.rpg_byte_reset {
            self.byte_counter -= self.p.rpg_byte_reset;
            self.byte_stage += 1;
            self.raise();
        }
    }
}

prop_compose! {
    fn parameters()(
        threshold in 1u8..=31,
        time_reset in 10u64..500,
        byte_reset in 100_000u64..10_000_000,
        ai in 1u64..400,
        hai in 1u64..4000,
        g in 900u16..1024,
        rtt in 51u64..200,
    ) -> Parameters {
        Parameters {
            rpg_threshold: threshold,
            rpg_time_reset: us(time_reset),
            rpg_byte_reset: byte_reset,
            rpg_ai_rate: Bps::from_mbps(ai),
            rpg_hai_rate: Bps::from_mbps(hai),
            dce_tcp_g: g,
            dce_tcp_rtt: us(rtt),
            ..Parameters::default()
        }
    }
}

/// Time since the step before, and what happens then: so many bytes leave, or a CNP comes.
fn steps() -> impl Strategy<Value = Vec<(u64, Option<u64>)>> {
    let gap = prop_oneof![6 => 0u64..400_000, 1 => 0u64..30_000_000];
    let what = prop_oneof![3 => (0u64..3_000_000).prop_map(Some), 1 => Just(None)];
    prop::collection::vec((gap, what), 1..200)
}

fn close(ours: f64, papers: f64) -> bool {
    (ours - papers).abs() <= papers * 1e-5 + 200.0
}

proptest! {
    #[test]
    fn rate_target_and_alpha_are_the_papers(parameters in parameters(), steps in steps()) {
        let tuning = Tuning::new(parameters, LINE).unwrap();
        let (mut ours, mut paper) = (ReactionPoint::new(), Paper::new(parameters));
        let release_after = tuning.release_after.as_nanos() as u64;
        let mut last_cut = 0;
        let mut now_ns = 1_000_000;
        let mut last_cnp = 0;
        for (gap, what) in steps {
            now_ns += gap;
            if what.is_none() {
                // The paper's notification point sends one in 50 us at most.
                now_ns = now_ns.max(last_cnp + 50_000);
                last_cnp = now_ns;
            }
            let now = Instant::from_ns(now_ns);
            match what {
                Some(bytes) => {
                    ours.handle_sent(now, bytes, &tuning);
                    paper.sent(now_ns, bytes);
                    ours.handle_timeout(now, &tuning);
                }
                None => {
                    ours.handle_timeout(now, &tuning);
                    paper.cnp(now_ns, !ours.is_limited() && now_ns - last_cut >= release_after);
                    prop_assert_eq!(ours.handle_cnp(now, &tuning), CnpEffect::Cut);
                    last_cut = now_ns;
                }
            }
            let (rate, target) = (ours.rate(&tuning).as_bps() as f64, ours.target(&tuning).as_bps() as f64);
            prop_assert!(close(rate, paper.rc), "rate {} is the paper's {}", rate, paper.rc);
            prop_assert!(close(target, paper.rt), "target {} is the paper's {}", target, paper.rt);
            let alpha = ours.alpha(now, &tuning).as_f64();
            prop_assert!((alpha - paper.alpha).abs() < 1e-5, "alpha {} is the paper's {}", alpha, paper.alpha);
        }
    }
}

/// The first CNPs of an incast, worked out by hand from equation 1 with alpha = 1, g = 1/256.
#[test]
fn the_first_cnps_halve_the_rate() {
    let tuning = super::tuned(|p| p.initial_alpha_value = 1023);
    let mut point = ReactionPoint::new();
    let mut rates = Vec::new();
    for n in 0..4 {
        assert_eq!(point.handle_cnp(Instant::ZERO + Duration::from_micros(50 * n), &tuning), CnpEffect::Cut);
        rates.push(point.rate(&tuning).as_bps() / 1_000_000);
    }
    assert_eq!(rates, [20_019, 10_019, 5_014, 2_509]);
}
