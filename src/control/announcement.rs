//! What a controller announces, taken from its message and checked.

use super::proto;
use super::proto::path_event::Change;
use super::proto::prepare::When;
use crate::congestion::Bps;
use crate::path::{Circuit, IpPrefix, LabelError, PathChange, PathEvent, PrefixError, Stamp};
use crate::wire::PathMtu;
use std::time::{Duration, Instant, SystemTime};
use thiserror::Error;

/// The longest that a time may be from now, or last: more is a mistake of units.
const LONGEST: Duration = Duration::from_secs(7 * 86_400);

/// An announcement on its way to the workers, whose clocks it does not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announcement {
    /// Its place in the order.
    pub stamp: Stamp,
    /// Whose paths.
    pub peers: IpPrefix,
    /// What happens.
    pub change: Announced,
    /// When the daemon took it.
    pub taken: Instant,
}

/// What happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Announced {
    /// It goes dark.
    Prepare {
        /// So long after the announcement was taken.
        after: Duration,
        /// For about so long; zero if nobody knows.
        expected: Duration,
    },
    /// Whatever needs no clock.
    Now(PathChange),
}

/// Why a message is no announcement: which field, what is wrong with it, and what is allowed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum AnnouncementError {
    /// A field is missing.
    #[error("{field} is missing: {what}")]
    Missing {
        /// Its name.
        field: &'static str,
        /// What belongs there.
        what: &'static str,
    },
    /// Not the peers of anybody.
    #[error("event.peers: {0}")]
    Peers(#[from] PrefixError),
    /// Not the name of a circuit.
    #[error("event.ride.circuit.label: {0}")]
    Label(#[from] LabelError),
    /// Not an MTU.
    #[error("event.ride.circuit.mtu_bytes: {0} is none of 256, 512, 1024, 2048 and 4096 (0: that of the port)")]
    Mtu(u32),
    /// A time too far away to be meant.
    #[error("{field}: {given_ns} ns is more than 7 days; the unit is nanoseconds")]
    TooLong {
        /// Its name.
        field: &'static str,
        /// What was given.
        given_ns: u64,
    },
    /// A time that says nothing.
    #[error("event.hold_max.hold_max_ns: 0 would fail what waits at once; announce at least a millisecond")]
    NoHold,
}

impl Announcement {
    /// Reads a message that was taken now.
    pub(super) fn read(message: proto::AnnounceRequest) -> Result<Self, AnnouncementError> {
        Self::read_at(message, Instant::now(), SystemTime::now())
    }

    fn read_at(message: proto::AnnounceRequest, taken: Instant, wall: SystemTime) -> Result<Self, AnnouncementError> {
        let missing = |field, what| AnnouncementError::Missing { field, what };
        let event = message.event.ok_or(missing("event", "what happens, and to whose paths"))?;
        let change = event.change.ok_or(missing("event.change", "one of prepare, down, up, hold_max and ride"))?;
        let stamp = Stamp { epoch: event.epoch, sequence: event.sequence };
        Ok(Self { stamp, peers: event.peers.parse()?, change: read_change(change, wall)?, taken })
    }

    /// As a worker takes it whose clock shows `now`.
    pub fn event(&self, now: crate::time::Instant) -> PathEvent {
        let change = match self.change {
            Announced::Prepare { after, expected } => {
                PathChange::Prepare { at: now + after.saturating_sub(self.taken.elapsed()), expected }
            }
            Announced::Now(change) => change,
        };
        PathEvent { stamp: self.stamp, peers: self.peers, change }
    }
}

fn read_change(change: Change, wall: SystemTime) -> Result<Announced, AnnouncementError> {
    Ok(Announced::Now(match change {
        Change::Prepare(prepare) => return read_prepare(prepare, wall),
        Change::Down(proto::Down {}) => PathChange::Down,
        Change::Up(proto::Up {}) => PathChange::Up,
        Change::HoldMax(proto::HoldMax { hold_max_ns: 0 }) => return Err(AnnouncementError::NoHold),
        Change::HoldMax(hold) => PathChange::HoldMax(span("event.hold_max.hold_max_ns", hold.hold_max_ns)?),
        Change::Ride(ride) => PathChange::Circuit(ride.circuit.map(read_circuit).transpose()?),
    }))
}

fn read_prepare(prepare: proto::Prepare, wall: SystemTime) -> Result<Announced, AnnouncementError> {
    let what = "when it goes dark: in_ns from now, or at_unix_ns";
    let after = match prepare.when.ok_or(AnnouncementError::Missing { field: "event.prepare.when", what })? {
        When::InNs(ns) => span("event.prepare.in_ns", ns)?,
        When::AtUnixNs(ns) => {
            let since_1970 = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let from_now = Duration::from_nanos(ns).saturating_sub(since_1970);
            span("event.prepare.at_unix_ns", u64::try_from(from_now.as_nanos()).unwrap_or(u64::MAX))?
        }
    };
    Ok(Announced::Prepare { after, expected: span("event.prepare.expected_ns", prepare.expected_ns)? })
}

fn read_circuit(circuit: proto::Circuit) -> Result<Circuit, AnnouncementError> {
    let known = |ns: u64| (ns > 0).then_some(ns);
    let mtu = match circuit.mtu_bytes {
        0 => None,
        bytes => Some(PathMtu::from_bytes(bytes).ok_or(AnnouncementError::Mtu(bytes))?),
    };
    Ok(Circuit {
        label: circuit.label.parse()?,
        rate: known(circuit.rate_bps).map(Bps::from_bps),
        rtt: span("event.ride.circuit.rtt_ns", circuit.rtt_ns)?,
        mtu,
        hold_max: known(circuit.hold_max_ns).map(|ns| span("event.ride.circuit.hold_max_ns", ns)).transpose()?,
    })
}

fn span(field: &'static str, given_ns: u64) -> Result<Duration, AnnouncementError> {
    let span = Duration::from_nanos(given_ns);
    if span > LONGEST { Err(AnnouncementError::TooLong { field, given_ns }) } else { Ok(span) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(change: Option<Change>) -> proto::AnnounceRequest {
        let event = proto::PathEvent { peers: "198.18.0.0/24".into(), epoch: 7, sequence: 9, change };
        proto::AnnounceRequest { event: Some(event) }
    }

    fn prepare(when: Option<When>) -> Change {
        Change::Prepare(proto::Prepare { when, expected_ns: 10_000_000 })
    }

    fn refusal(message: proto::AnnounceRequest) -> String {
        Announcement::read(message).unwrap_err().to_string()
    }

    fn ride(circuit: proto::Circuit) -> proto::AnnounceRequest {
        request(Some(Change::Ride(proto::Ride { circuit: Some(circuit) })))
    }

    #[test]
    fn a_time_on_the_wall_and_one_from_now_are_the_same() {
        let (taken, wall) = (Instant::now(), SystemTime::UNIX_EPOCH + Duration::from_secs(1_000));
        let read = |when| Announcement::read_at(request(Some(prepare(Some(when)))), taken, wall).unwrap();
        let from_now = read(When::InNs(5_000_000));
        assert_eq!(from_now, read(When::AtUnixNs(1_000_005_000_000)));
        let expected = Duration::from_millis(10);
        assert_eq!(from_now.change, Announced::Prepare { after: Duration::from_millis(5), expected });
        // What should have been already is now.
        assert_eq!(read(When::AtUnixNs(1)).change, Announced::Prepare { after: Duration::ZERO, expected });
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(refusal(proto::AnnounceRequest { event: None }).starts_with("event is missing"));
        assert!(refusal(request(None)).starts_with("event.change is missing: one of prepare"));
        assert!(refusal(request(Some(prepare(None)))).starts_with("event.prepare.when is missing"));
        let week = 7 * 86_400 * 1_000_000_000;
        let far = refusal(request(Some(prepare(Some(When::InNs(week + 1))))));
        assert!(far.starts_with("event.prepare.in_ns: 604800000000001 ns is more than 7 days"), "{far}");
        let none = Change::HoldMax(proto::HoldMax { hold_max_ns: 0 });
        assert!(refusal(request(Some(none))).starts_with("event.hold_max.hold_max_ns: 0"));
        let circuit = proto::Circuit { label: "l 7".into(), ..Default::default() };
        assert!(refusal(ride(circuit)).starts_with("event.ride.circuit.label: \"l 7\" is no label"));
        let circuit = proto::Circuit { label: "l7".into(), mtu_bytes: 1500, ..Default::default() };
        assert!(refusal(ride(circuit)).starts_with("event.ride.circuit.mtu_bytes: 1500"));
        let mut nobody = request(Some(Change::Up(proto::Up {})));
        nobody.event.as_mut().unwrap().peers = "everybody".into();
        assert!(refusal(nobody).starts_with("event.peers: \"everybody\" is no address or prefix"));
    }

    proptest! {
        /// Whatever comes is read or refused, and what is read does not overflow a worker's clock.
        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), now: u64) {
            if let Ok(message) = <proto::AnnounceRequest as prost::Message>::decode(&bytes[..])
                && let Ok(announcement) = Announcement::read(message)
            {
                announcement.event(crate::time::Instant::from_ns(now));
            }
        }

        #[test]
        fn every_number_is_read_or_refused(ns: u64, expected_ns: u64, at_wall: bool, rate_bps: u64, mtu_bytes: u32) {
            let when = Some(if at_wall { When::AtUnixNs(ns) } else { When::InNs(ns) });
            let change = Change::Prepare(proto::Prepare { when, expected_ns });
            if let Ok(announcement) = Announcement::read(request(Some(change))) {
                announcement.event(crate::time::Instant::MAX);
            }
            let circuit = proto::Circuit { label: "x".into(), rate_bps, rtt_ns: ns, mtu_bytes, hold_max_ns: expected_ns };
            let _ = Announcement::read(ride(circuit));
        }
    }
}
