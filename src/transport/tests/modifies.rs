//! `ibv_modify_qp`: the table of transitions, and values.

use super::end::{End, Setup};
use crate::transport::*;

const KINDS: [QpType; 4] = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Gsi];

/// What each transition up needs (IBTA table 91, as Linux has it).
fn required(kind: QpType, to: QpState) -> AttrMask {
    use AttrMask as A;
    match (to, kind) {
        (QpState::Init, QpType::Rc | QpType::Uc) => A::PKEY_INDEX | A::PORT | A::ACCESS_FLAGS,
        (QpState::Init, QpType::Ud) => A::PKEY_INDEX | A::PORT | A::QKEY,
        (QpState::Init, QpType::Gsi) => A::PKEY_INDEX | A::QKEY,
        (QpState::Rtr, QpType::Rc) => {
            A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN | A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER
        }
        (QpState::Rtr, QpType::Uc) => A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN,
        (QpState::Rts, QpType::Rc) => A::SQ_PSN | A::TIMEOUT | A::RETRY_CNT | A::RNR_RETRY | A::MAX_QP_RD_ATOMIC,
        (QpState::Rts, _) => A::SQ_PSN,
        _ => A::empty(),
    }
}

fn modify(end: &mut End, attrs: &QpAttributes, mask: AttrMask) -> Result<(), ModifyError> {
    end.with(|qp, cx| qp.modify(cx, attrs, mask))
}

#[test]
fn every_required_attribute_is_missed_and_none_too_many_is_taken() {
    for kind in KINDS {
        let setup = Setup { kind, ..Setup::default() };
        let mut end = End::new(0x11, &setup);
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let from = end.qp.state();
            let attrs = QpAttributes { state: to, ..setup.attrs };
            let must = required(kind, to);
            for missing in must.iter() {
                let refused = modify(&mut end, &attrs, (must | AttrMask::STATE) - missing);
                assert_eq!(refused, Err(ModifyError::Missing { from, to, missing }), "{kind:?}");
            }
            let forbidden = AttrMask::CAP;
            let refused = modify(&mut end, &attrs, must | AttrMask::STATE | forbidden);
            assert_eq!(refused, Err(ModifyError::Forbidden { from, to, forbidden }));
            assert_eq!(end.qp.state(), from);
            modify(&mut end, &attrs, must | AttrMask::STATE).unwrap();
            assert_eq!(end.qp.state(), to);
        }
        // Sending nothing but the present state is allowed.
        modify(&mut end, &QpAttributes::to(QpState::Rts), AttrMask::STATE).unwrap();
    }
}

#[test]
fn who_may_go_where() {
    use QpState as S;
    let all = [S::Reset, S::Init, S::Rtr, S::Rts, S::Sqd, S::Sqe, S::Err];
    let mut allowed = 0;
    for kind in KINDS {
        for from in [S::Reset, S::Init, S::Rtr, S::Rts, S::Sqd, S::Err] {
            for to in all {
                let setup = Setup { kind, ..Setup::default() };
                let mut end = End::new(0x11, &setup);
                for step in [S::Init, S::Rtr, S::Rts, S::Sqd].into_iter().filter(|s| (*s as u8) <= from as u8) {
                    end.go(step, &setup.attrs).unwrap();
                }
                if from == S::Err {
                    end.go(S::Err, &setup.attrs).unwrap();
                }
                assert_eq!(end.qp.state(), from);
                let result = modify(&mut end, &QpAttributes::to(to), AttrMask::STATE);
                match result {
                    Err(ModifyError::Transition { .. }) => assert_eq!(end.qp.state(), from),
                    // It exists, but this one needs more.
                    Err(ModifyError::Missing { .. }) => allowed += 1,
                    Err(e) => panic!("{kind:?} {from:?} {to:?}: {e}"),
                    Ok(()) => {
                        assert_eq!(end.qp.state(), to);
                        allowed += 1;
                    }
                }
            }
        }
    }
    // To RESET and ERR from everywhere; RESET-INIT, INIT-INIT, INIT-RTR, RTR-RTS, RTS-RTS, RTS-SQD, SQD-SQD, SQD-RTS. UD and GSI need nothing
    // for INIT-RTR.
    assert_eq!(allowed, 4 * (6 * 2 + 8));
}

#[test]
fn values_are_checked_and_nothing_changes_if_one_is_wrong() {
    let setup = Setup::default();
    type Spoil = fn(&mut QpAttributes);
    let wrong: [(&str, Spoil); 8] = [
        ("pkey_index", |a| a.pkey_index = 1),
        ("port", |a| a.port = 2),
        ("timeout", |a| a.timeout = 32),
        ("retry_count", |a| a.retry_count = 8),
        ("rnr_retry", |a| a.rnr_retry = 8),
        ("min_rnr_timer", |a| a.min_rnr_timer = 32),
        ("max_rd_atomic", |a| a.max_rd_atomic = 17),
        ("max_dest_rd_atomic", |a| a.max_dest_rd_atomic = 17),
    ];
    for (name, spoil) in wrong {
        let mut attrs = setup.attrs;
        spoil(&mut attrs);
        let mut end = End::new(0x11, &setup);
        let refused = [QpState::Init, QpState::Rtr, QpState::Rts].into_iter().find_map(|s| end.go(s, &attrs).err());
        let Some(ModifyError::Value { attribute, .. }) = refused else { panic!("{name}: {refused:?}") };
        assert_eq!(attribute, name);
    }
    let mut end = End::new(0x11, &setup);
    end.go(QpState::Init, &setup.attrs).unwrap();
    let mut attrs = setup.attrs;
    attrs.av.destination = "fe80::1".parse().unwrap();
    assert_eq!(end.go(QpState::Rtr, &attrs), Err(ModifyError::Address));
    end.limits.port_mtu = crate::wire::PathMtu::B512;
    assert!(matches!(end.go(QpState::Rtr, &setup.attrs), Err(ModifyError::Value { attribute: "path_mtu", .. })));
    assert_eq!(end.qp.state(), QpState::Init);
    assert_eq!(end.qp.attributes().dest_qpn.get(), 0);
}

#[test]
fn the_current_state_must_be_what_is_claimed() {
    let setup = Setup::default();
    let mut end = End::ready(0x11, &setup, &setup.attrs);
    let attrs = QpAttributes { state: QpState::Rts, current_state: QpState::Sqd, ..setup.attrs };
    let refused = modify(&mut end, &attrs, AttrMask::STATE | AttrMask::CUR_STATE);
    assert_eq!(refused, Err(ModifyError::CurrentState { claimed: QpState::Sqd, actual: QpState::Rts }));
}

#[test]
fn in_sqd_the_path_may_change() {
    let setup = Setup::default();
    let mut end = End::ready(0x11, &setup, &setup.attrs);
    end.go(QpState::Sqd, &setup.attrs).unwrap();
    let mut attrs = QpAttributes { state: QpState::Sqd, ..setup.attrs };
    attrs.av.source_port = 0xd000;
    attrs.max_rd_atomic = 9;
    attrs.max_dest_rd_atomic = 16;
    let mask = AttrMask::STATE | AttrMask::AV | AttrMask::MAX_QP_RD_ATOMIC | AttrMask::MAX_DEST_RD_ATOMIC;
    modify(&mut end, &attrs, mask).unwrap();
    end.go(QpState::Rts, &setup.attrs).unwrap();
    let now = end.qp.attributes();
    assert_eq!((now.av.source_port, now.max_rd_atomic, now.max_dest_rd_atomic), (0xd000, 9, 16));
    assert_eq!((now.state, now.current_state), (QpState::Rts, QpState::Rts));
}

#[test]
fn sizes_are_checked_at_creation() {
    let setup = Setup::default();
    let end = End::new(0x11, &setup);
    let init = end.qp.init();
    let mut large = *init;
    large.caps.max_send_sge = 33;
    let refused = Qp::new(end.qp.qpn(), &large).map(drop);
    assert_eq!(refused, Err(QpInitError::Size { size: "max_send_sge", given: 33, max: 32 }));
    let gsi = QpInit { kind: QpType::Gsi, srq: Some(SrqId(0)), ..*init };
    assert_eq!(Qp::new(end.qp.qpn(), &gsi).map(drop), Err(QpInitError::GsiOnSrq));
}

#[test]
fn an_idle_queue_pair_is_small() {
    // 100 000 of them: 2 KiB each at most, without their queues.
    assert!(size_of::<Qp>() <= 1280, "{}", size_of::<Qp>());
}
