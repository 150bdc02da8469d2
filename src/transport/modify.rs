//! States and attributes: what `ibv_modify_qp` may do (IBTA 10.3.1 and 11.2.5.2, tables 91 and 92).

use super::message::Inbound;
use super::rc::{Requester, Responder};
use super::{AddressVector, AttrMask, Context, Event, Failure, ModifyError, Qp, QpAttributes, QpState, QpType};

/// The attributes that a transition must and may have, besides the state; `None` if there is no such transition.
fn transition(kind: QpType, from: QpState, to: QpState) -> Option<(AttrMask, AttrMask)> {
    use AttrMask as A;
    use QpState as S;
    use QpType::{Gsi, Rc, Uc, Ud};
    let none = A::empty();
    // What a path migration would change; RoCE has none, but verbs lists them.
    let migration = A::ALT_PATH | A::PATH_MIG_STATE;
    Some(match (from, to, kind) {
        (_, S::Reset | S::Err, _) => (none, none),
        (S::Reset, S::Init, Rc | Uc) => (A::PKEY_INDEX | A::PORT | A::ACCESS_FLAGS, none),
        (S::Reset, S::Init, Ud) => (A::PKEY_INDEX | A::PORT | A::QKEY, none),
        (S::Reset, S::Init, Gsi) => (A::PKEY_INDEX | A::QKEY, A::PORT),
        (S::Init, S::Init, Rc | Uc) => (none, A::PKEY_INDEX | A::PORT | A::ACCESS_FLAGS),
        (S::Init, S::Init, Ud) => (none, A::PKEY_INDEX | A::PORT | A::QKEY),
        (S::Init, S::Init, Gsi) => (none, A::PKEY_INDEX | A::QKEY),
        (S::Init, S::Rtr, Rc) => (
            A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN | A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER,
            A::ALT_PATH | A::ACCESS_FLAGS | A::PKEY_INDEX,
        ),
        (S::Init, S::Rtr, Uc) => {
            (A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN, A::ALT_PATH | A::ACCESS_FLAGS | A::PKEY_INDEX)
        }
        (S::Init, S::Rtr, Ud | Gsi) => (none, A::PKEY_INDEX | A::QKEY),
        (S::Rtr, S::Rts, Rc) => (
            A::SQ_PSN | A::TIMEOUT | A::RETRY_CNT | A::RNR_RETRY | A::MAX_QP_RD_ATOMIC,
            A::CUR_STATE | A::ACCESS_FLAGS | A::MIN_RNR_TIMER | A::RATE_LIMIT | migration,
        ),
        (S::Rtr, S::Rts, Uc) => (A::SQ_PSN, A::CUR_STATE | A::ACCESS_FLAGS | A::RATE_LIMIT | migration),
        (S::Rtr, S::Rts, Ud | Gsi) => (A::SQ_PSN, A::CUR_STATE | A::QKEY | A::RATE_LIMIT),
        (S::Rts, S::Rts, Rc) | (S::Sqd, S::Rts, Rc) => {
            (none, A::CUR_STATE | A::ACCESS_FLAGS | A::MIN_RNR_TIMER | A::RATE_LIMIT | migration)
        }
        (S::Rts, S::Rts, Uc) | (S::Sqd, S::Rts, Uc) => {
            (none, A::CUR_STATE | A::ACCESS_FLAGS | A::RATE_LIMIT | migration)
        }
        (S::Rts | S::Sqd, S::Rts, Ud | Gsi) => (none, A::CUR_STATE | A::QKEY | A::RATE_LIMIT),
        (S::Rts, S::Sqd, _) => (none, A::EN_SQD_ASYNC_NOTIFY),
        (S::Sqd, S::Sqd, Rc) => (
            none,
            A::PORT
                | A::AV
                | A::TIMEOUT
                | A::RETRY_CNT
                | A::RNR_RETRY
                | A::MAX_QP_RD_ATOMIC
                | A::MAX_DEST_RD_ATOMIC
                | A::ACCESS_FLAGS
                | A::PKEY_INDEX
                | A::MIN_RNR_TIMER
                | migration,
        ),
        (S::Sqd, S::Sqd, Uc) => (none, A::AV | A::ACCESS_FLAGS | A::PKEY_INDEX | migration),
        (S::Sqd, S::Sqd, Ud | Gsi) => (none, A::PKEY_INDEX | A::QKEY),
        (S::Sqe, S::Rts, Uc) => (none, A::CUR_STATE | A::ACCESS_FLAGS),
        (S::Sqe, S::Rts, Ud | Gsi) => (none, A::CUR_STATE | A::QKEY),
        _ => return None,
    })
}

impl Qp {
    /// Sets the attributes that `mask` names and, with [`AttrMask::STATE`], the state. All or nothing.
    pub fn modify(
        &mut self,
        cx: &mut Context<'_>,
        attributes: &QpAttributes,
        mask: AttrMask,
    ) -> Result<(), ModifyError> {
        let (from, to) = self.check_transition(attributes, mask)?;
        check_values(attributes, mask, cx)?;
        self.take(attributes, mask);
        if (from, to) == (QpState::Rts, QpState::Sqd) {
            // It is a wish for this once.
            self.attrs.sqd_notify = mask.contains(AttrMask::EN_SQD_ASYNC_NOTIFY) && attributes.sqd_notify;
        }
        self.attrs.state = to;
        self.enter(cx, from, to);
        Ok(())
    }

    fn check_transition(&self, attributes: &QpAttributes, mask: AttrMask) -> Result<(QpState, QpState), ModifyError> {
        let from = self.state();
        if mask.contains(AttrMask::CUR_STATE) && attributes.current_state != from {
            return Err(ModifyError::CurrentState { claimed: attributes.current_state, actual: from });
        }
        let to = if mask.contains(AttrMask::STATE) { attributes.state } else { from };
        let kind = self.init.kind;
        let (must, may) = transition(kind, from, to).ok_or(ModifyError::Transition { kind, from, to })?;
        let missing = must - mask;
        if !missing.is_empty() {
            return Err(ModifyError::Missing { from, to, missing });
        }
        let unsupported = AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE;
        let forbidden = mask - ((must | may | AttrMask::STATE) - unsupported);
        if !forbidden.is_empty() {
            return Err(ModifyError::Forbidden { from, to, forbidden });
        }
        Ok((from, to))
    }

    fn take(&mut self, new: &QpAttributes, mask: AttrMask) {
        let own = &mut self.attrs;
        macro_rules! take {
            ($($flag:ident: $field:ident),* $(,)?) => {
                $(if mask.contains(AttrMask::$flag) { own.$field = new.$field; })*
            };
        }
        take! {
            EN_SQD_ASYNC_NOTIFY: sqd_notify,
            ACCESS_FLAGS: access,
            PKEY_INDEX: pkey_index,
            PORT: port,
            QKEY: qkey,
            AV: av,
            PATH_MTU: path_mtu,
            TIMEOUT: timeout,
            RETRY_CNT: retry_count,
            RNR_RETRY: rnr_retry,
            RQ_PSN: rq_psn,
            MAX_QP_RD_ATOMIC: max_rd_atomic,
            MIN_RNR_TIMER: min_rnr_timer,
            SQ_PSN: sq_psn,
            MAX_DEST_RD_ATOMIC: max_dest_rd_atomic,
            DEST_QPN: dest_qpn,
            RATE_LIMIT: rate_limit_kbps,
        }
        if mask.contains(AttrMask::AV) {
            // `::ffff:a.b.c.d` is how verbs writes an IPv4 address; packets show the latter.
            own.av.source = own.av.source.to_canonical();
            own.av.destination = own.av.destination.to_canonical();
        }
    }

    fn enter(&mut self, cx: &mut Context<'_>, from: QpState, to: QpState) {
        match (from, to) {
            (_, QpState::Reset) => self.reset(cx),
            (QpState::Err, QpState::Err) => {}
            (_, QpState::Err) => {
                // The client's own wish: nothing more is said to the peer.
                self.resp.silence();
                self.failure.get_or_insert(Failure::Modified);
                self.enter_error(cx);
            }
            (QpState::Init, QpState::Rtr) => {
                self.inbound = Inbound::default();
                self.resp = Responder::new(self.attrs.rq_psn, self.attrs.max_dest_rd_atomic);
            }
            (QpState::Rtr, QpState::Rts) => self.req = Requester::new(&self.attrs, self.sq.tail()),
            (QpState::Rts, QpState::Sqd) => self.req.draining = true,
            (QpState::Sqd, QpState::Sqd) => self.resp.resize(self.attrs.max_dest_rd_atomic),
            (QpState::Sqe, QpState::Rts) => self.failure = None,
            (QpState::Sqd, QpState::Rts) => self.req.draining = false,
            _ => {}
        }
        self.note_drained(cx);
    }

    /// Tells, once, that SQD has drained (IBTA 10.3.1.5).
    pub(super) fn note_drained(&mut self, cx: &mut Context<'_>) {
        if self.req.draining && self.state() == QpState::Sqd && self.sq.head() >= self.req.begun {
            self.req.draining = false;
            if self.attrs.sqd_notify {
                cx.events.push_back(Event::SqDrained(self.qpn));
            }
        }
    }

    /// Back to as it was made: no completion, no word to the peer.
    fn reset(&mut self, cx: &mut Context<'_>) {
        if let Some(taken) = self.inbound.receive.take() {
            self.release_receive(cx, taken);
        }
        self.sq.clear();
        self.rq.clear();
        self.req = Requester::default();
        self.inbound = Inbound::default();
        self.resp = Responder::default();
        self.attrs = QpAttributes::default();
        self.failure = None;
    }
}

fn check_values(new: &QpAttributes, mask: AttrMask, cx: &Context<'_>) -> Result<(), ModifyError> {
    let at_most = |flag: AttrMask, attribute: &'static str, value: u64, max: u64| {
        if mask.contains(flag) && value > max { Err(ModifyError::Value { attribute, value, max }) } else { Ok(()) }
    };
    let reads = u64::from(QpAttributes::MAX_RD_ATOMIC);
    at_most(AttrMask::PKEY_INDEX, "pkey_index", new.pkey_index.into(), (cx.pkeys.len() as u64).saturating_sub(1))?;
    at_most(AttrMask::PORT, "port", u64::from(new.port).wrapping_sub(1), 0)?;
    at_most(AttrMask::PATH_MTU, "path_mtu", new.path_mtu.bytes().into(), cx.limits.port_mtu.bytes().into())?;
    at_most(AttrMask::TIMEOUT, "timeout", new.timeout.into(), 31)?;
    at_most(AttrMask::RETRY_CNT, "retry_count", new.retry_count.into(), 7)?;
    at_most(AttrMask::RNR_RETRY, "rnr_retry", new.rnr_retry.into(), 7)?;
    at_most(AttrMask::MIN_RNR_TIMER, "min_rnr_timer", new.min_rnr_timer.into(), 31)?;
    at_most(AttrMask::MAX_QP_RD_ATOMIC, "max_rd_atomic", new.max_rd_atomic.into(), reads)?;
    at_most(AttrMask::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", new.max_dest_rd_atomic.into(), reads)?;
    if mask.contains(AttrMask::AV) && !new.av.leads_somewhere() {
        return Err(ModifyError::Address);
    }
    Ok(())
}

impl AddressVector {
    /// Whether packets can be sent on it: both addresses of one family, the destination a host's.
    pub fn leads_somewhere(&self) -> bool {
        let (source, destination) = (self.source.to_canonical(), self.destination.to_canonical());
        source.is_ipv4() == destination.is_ipv4()
            && !source.is_unspecified()
            && !destination.is_unspecified()
            && !destination.is_multicast()
    }
}
