//! Loss, reordering and duplication, made by netem in the VM: on its way in, which is what holdfast sends, on its way out,
//! and both.

use crate::end::{End, Setup, both_ways};
use crate::lab::{Family, Lab, Session, lab};
use holdfast::ipc::client::SendOp;

const SEED: u64 = 46;
const SOURCE: u64 = 0;
const TARGET: u64 = 1 << 20;
const RECEIVE: u64 = 2 << 20;
const COPY: u64 = 3 << 20;
const COUNTER: u64 = (4 << 20) - 8;
const ROUNDS: u64 = 12;
const LEN: u32 = 65_536;

/// WRITE, SEND, READ and FETCH_AND_ADD at once, again and again, each round with other bytes.
fn mixed_work(a: &mut End, b: &mut End) {
    a.side.fill(SEED, SOURCE, 2 * u64::from(LEN), 0);
    b.side.set_word(COUNTER, 0);
    for round in 0..ROUNDS {
        let shift = round * 13;
        b.receive(RECEIVE + shift, LEN);
        a.post(b.write_to(TARGET + shift), SOURCE + shift, LEN);
        a.post(SendOp::Send, SOURCE + shift, LEN);
        a.post(b.read_from(TARGET + shift), COPY + shift, LEN);
        a.post(b.add_to(COUNTER, 1), COPY - 8, 8);
        a.sent(4);
        assert_eq!(a.side.word(COPY - 8), round, "a FETCH_AND_ADD was not done exactly once");
        b.received_send(LEN, SEED, shift);
        b.side.check(SEED, TARGET + shift, LEN.into(), shift);
        a.side.check(SEED, COPY + shift, LEN.into(), shift);
    }
    assert_eq!(b.side.word(COUNTER), ROUNDS);
}

/// The weather, and its end also when the test fails: a session that closes takes its netem along.
struct Weather {
    session: Session,
    directions: &'static [&'static str],
    loses: bool,
}

impl Weather {
    fn begin(lab: &Lab, directions: &'static [&'static str], arguments: &str) -> Self {
        let mut session = lab.session();
        for direction in directions {
            session.netem(direction, arguments);
        }
        Self { session, directions, loses: arguments.contains("loss") }
    }

    fn end(mut self) {
        for direction in self.directions {
            let (passed, dropped) = self.session.calm(direction);
            println!("  {direction}: {passed} packets passed, {dropped} dropped");
            assert!(passed > 500 && (dropped > 0) == self.loses, "the weather was not what it should be");
        }
    }
}

fn weather(what: &str, arguments: &str) {
    let Some(lab) = lab() else { return };
    const WAYS: [(&str, &[&str], Family); 3] = [
        ("of holdfast's packets", &["in"], Family::V4),
        ("of rxe's", &["out"], Family::V6),
        ("of both", &["in", "out"], Family::V4),
    ];
    for (whose, directions, family) in WAYS {
        let weather = Weather::begin(&lab, directions, arguments);
        let setup = Setup { family, timeout: 15, ..Setup::default() };
        both_ways(&lab, &format!("{what} {whose}"), &setup, mixed_work);
        weather.end();
    }
}

#[test]
fn loss() {
    weather("1 % loss", "loss 1%");
}

#[test]
fn reordering() {
    weather("reordering", "delay 2ms reorder 25% 50%");
}

#[test]
fn duplication() {
    weather("5 % duplication", "duplicate 5%");
}
