//! DCQCN at a simulated bottleneck: fair shares, short queues, long circuits, the dark. All figures are those of one seed, and always the same.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// A test is a crate of its own: what is `pub` in it is so among its files.
#![allow(unreachable_pub)]

mod simulator;

use holdfast::congestion::Bps;
use holdfast::time::Duration;
use simulator::{Report, Setup};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const KB: u64 = 1000;
const TEN_KM: Duration = Duration::from_micros(50);
const HUNDRED_KM: Duration = Duration::from_micros(500);

/// `flows` that begin together, and what they do in the second half of 200 ms.
fn settled(flows: usize, circuit: Duration) -> (Report, Duration, Duration) {
    let setup = Setup { circuit, ..Setup::new(flows, ms(200)) };
    (setup.run(), ms(100), ms(200))
}

#[test]
fn flows_converge_to_fair_shares() {
    for (flows, least) in [(2, 0.99), (10, 0.99), (64, 0.99)] {
        let (report, from, to) = settled(flows, Duration::from_nanos(50));
        let jain = report.jain(0..flows, from, to);
        assert!(jain > least, "{flows} flows: Jain's index is {jain}");
        let used = report.utilization(from, to);
        assert!(used > 0.97, "{flows} flows use {used} of the circuit");
    }
}

#[test]
fn ten_metres_and_ten_kilometres_are_stable() {
    for circuit in [Duration::from_nanos(50), TEN_KM] {
        for flows in [2, 10, 20] {
            let (report, from, to) = settled(flows, circuit);
            let (swing, queue) = (report.swing(from, to), report.peak_queue(from, to));
            let (median, used) = (report.queue_quantile(0.5, from, to), report.utilization(from, to));
            assert!(median < 200 * KB, "{flows} flows over {circuit:?}: half the time a queue of {median} bytes");
            assert!(
                swing < if circuit == TEN_KM { 0.15 } else { 0.05 },
                "{flows} flows over {circuit:?}: rates swing by {swing}"
            );
            assert!(queue < 300 * KB, "{flows} flows over {circuit:?}: a queue of {queue} bytes");
            assert!(used > 0.85, "{flows} flows over {circuit:?} use {used} of the circuit");
        }
    }
}

/// Where the reaction points are not told of the round trip they react to each cut and raise several times over.
#[test]
fn knowing_the_round_trip_steadies_a_hundred_kilometres() {
    let told = Setup { circuit: HUNDRED_KM, ..Setup::new(10, ms(200)) };
    let untold = Setup { told_rtt: Some(Duration::ZERO), ..told.clone() };
    let figures = |setup: &Setup| {
        let report = setup.run();
        (report.swing(ms(100), ms(200)), report.utilization(ms(100), ms(200)), report.peak_queue(ms(100), ms(200)))
    };
    let (told, untold) = (figures(&told), figures(&untold));
    assert!(told.0 * 2.0 < untold.0 && told.1 > untold.1 && told.2 < untold.2, "told {told:?}, untold {untold:?}");
}

#[test]
fn who_joins_gets_a_share_and_who_leaves_gives_it_back() {
    let flows = vec![(ms(0), ms(500)), (ms(50), ms(300)), (ms(50), ms(300))];
    let report = Setup { flows, ..Setup::new(3, ms(500)) }.run();
    let alone = report.throughput(0, ms(25), ms(50));
    assert!(alone > 39e9, "alone it sends {alone} b/s");
    let jain = report.jain(0..3, ms(200), ms(300));
    assert!(jain > 0.95, "three flows: Jain's index is {jain}");
    let (used, queue) = (report.utilization(ms(200), ms(300)), report.peak_queue(ms(200), ms(300)));
    assert!(used > 0.97 && queue < 300 * KB, "three flows use {used}, queue {queue} bytes");
    let again = report.throughput(0, ms(400), ms(500));
    assert!(again > 39e9, "alone again it sends {again} b/s");
    assert_eq!(report.delivered(1, ms(310), ms(500)), 0);
}

#[test]
fn a_20_to_1_incast_keeps_the_queue_bounded() {
    let setup = Setup::new(20, ms(50));
    let report = setup.run();
    // Twenty whole windows if nobody slowed down.
    let windows = 20 * setup.window_bytes;
    let peak = report.peak_queue(ms(0), ms(50));
    assert!(peak < windows / 3, "the queue peaks at {peak} bytes");
    let later = report.peak_queue(ms(10), ms(50));
    assert!(later < 300 * KB, "after 10 ms there is still a queue of {later} bytes");
    assert!(report.utilization(ms(10), ms(50)) > 0.97);

    let mut cautious = setup;
    cautious.parameters.rate_to_set_on_first_cnp = Bps::from_gbps(2);
    let lower = cautious.run().peak_queue(ms(0), ms(50));
    assert!(lower * 2 < peak, "with rate_to_set_on_first_cnp the queue peaks at {lower} bytes, without at {peak}");
}

#[test]
fn a_thaw_is_no_burst() {
    for (flows, circuit) in [(10, Duration::from_nanos(50)), (20, TEN_KM)] {
        let frozen = Setup { circuit, dark: Some((ms(100), ms(200))), ..Setup::new(flows, ms(250)) };
        let report = frozen.run();
        let rates = |at: Duration| report.between(ms(0), at).last().unwrap().rates.clone();
        assert_eq!(rates(ms(101)), rates(ms(200)), "in the dark no rate changes");
        let (before, after) = (report.peak_queue(ms(50), ms(100)), report.peak_queue(ms(200), ms(250)));
        assert!(after < before * 3 / 2, "a queue of {before} bytes before the dark, {after} after");
        let used = report.utilization(ms(201), ms(250));
        assert!(used > 0.85, "after the thaw they use {used} of the circuit");

        // The same with timers that run on in the dark: everybody is at full rate when the light returns.
        let running = Setup { freezes: false, ..frozen }.run();
        let burst = running.peak_queue(ms(200), ms(210));
        assert!(burst > 10 * after, "unfrozen the queue was {burst} bytes only: this test shows nothing");
    }
}

#[test]
fn the_same_setup_gives_the_same_result() {
    let once = || Setup::new(10, ms(20)).run();
    let (a, b) = (once(), once());
    assert_eq!(a.cnps, b.cnps);
    assert!(a.samples.iter().zip(&b.samples).all(|(a, b)| a.delivered == b.delivered && a.rates == b.rates));
}
