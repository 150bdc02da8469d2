//! Between the numbers of the protocol and the values of the core.

use super::{AddressVectorRecord, QpAttributesRecord, QpCapabilitiesRecord};
use crate::ipc::abi::GID_BY_FAMILY;
use crate::memory::Access;
use crate::transport::{AddressVector, AttrMask, QpAttributes, QpCapabilities, QpState};
use crate::wire::{Gid, PathMtu, Psn, Qpn};
use core::net::IpAddr;

/// A number that names no value of its enumeration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{attribute} is {value}, which verbs give no meaning")]
pub struct InvalidAttribute {
    /// Which attribute.
    pub attribute: &'static str,
    /// What it was.
    pub value: u32,
}

fn state(attribute: &'static str, value: u8) -> Result<QpState, InvalidAttribute> {
    QpState::from_verbs(value).ok_or(InvalidAttribute { attribute, value: value.into() })
}

impl QpAttributesRecord {
    /// The attributes that `mask` selects; the others stay at their defaults. `source` is the address that the record's GID
    /// index stands for.
    ///
    /// # Errors
    /// A selected number that names no value of its enumeration.
    pub fn attributes(&self, mask: AttrMask, source: IpAddr) -> Result<QpAttributes, InvalidAttribute> {
        let mut attributes = QpAttributes::default();
        if mask.contains(AttrMask::STATE) {
            attributes.state = state("qp_state", self.state)?;
        }
        if mask.contains(AttrMask::CUR_STATE) {
            attributes.current_state = state("cur_qp_state", self.current_state)?;
        }
        if mask.contains(AttrMask::PATH_MTU) {
            let invalid = InvalidAttribute { attribute: "path_mtu", value: self.path_mtu.into() };
            attributes.path_mtu = PathMtu::from_verbs(self.path_mtu).ok_or(invalid)?;
        }
        Ok(QpAttributes {
            sqd_notify: self.sqd_notify,
            access: Access::from_bits_retain(self.access),
            pkey_index: self.pkey_index,
            port: self.port,
            qkey: self.qkey,
            av: self.address.vector(source),
            timeout: self.timeout,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            rq_psn: Psn::new(self.rq_psn),
            sq_psn: Psn::new(self.sq_psn),
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            dest_qpn: Qpn::new(self.dest_qpn),
            rate_limit_kbps: self.rate_limit_kbps,
            ..attributes
        })
    }

    /// The record of `attributes`, whose source address has index `gid_index`.
    pub fn of(attributes: &QpAttributes, gid_index: u8) -> Self {
        Self {
            state: attributes.state as u8,
            current_state: attributes.current_state as u8,
            sqd_notify: attributes.sqd_notify,
            access: attributes.access.bits(),
            pkey_index: attributes.pkey_index,
            port: attributes.port,
            qkey: attributes.qkey,
            address: AddressVectorRecord::of(&attributes.av, gid_index),
            path_mtu: attributes.path_mtu as u8,
            timeout: attributes.timeout,
            retry_count: attributes.retry_count,
            rnr_retry: attributes.rnr_retry,
            rq_psn: attributes.rq_psn.get(),
            sq_psn: attributes.sq_psn.get(),
            max_rd_atomic: attributes.max_rd_atomic,
            max_dest_rd_atomic: attributes.max_dest_rd_atomic,
            min_rnr_timer: attributes.min_rnr_timer,
            dest_qpn: attributes.dest_qpn.get(),
            rate_limit_kbps: attributes.rate_limit_kbps,
        }
    }
}

impl AddressVectorRecord {
    /// The address vector from `source`.
    pub fn vector(&self, source: IpAddr) -> AddressVector {
        let hop_limit = if self.hop_limit == 0 { AddressVector::UNSET.hop_limit } else { self.hop_limit };
        AddressVector {
            source,
            destination: Gid(self.gid).address(),
            source_port: self.source_port,
            traffic_class: self.traffic_class,
            hop_limit,
            flow_label: self.flow_label & 0x000f_ffff,
        }
    }

    /// The record of an address vector whose source has index `gid_index`.
    pub fn of(vector: &AddressVector, gid_index: u8) -> Self {
        Self {
            gid: Gid::from(vector.destination).0,
            gid_index,
            traffic_class: vector.traffic_class,
            hop_limit: vector.hop_limit,
            flow_label: vector.flow_label,
            source_port: vector.source_port,
        }
    }

    /// The address of ours that `gid_index` stands for in a table.
    pub fn source(&self, table: &[IpAddr]) -> Option<IpAddr> {
        source(self.gid_index, Gid(self.gid).address(), table)
    }
}

/// The address of ours that `gid_index` stands for when a packet goes to `destination`.
pub(in crate::ipc) fn source(gid_index: u8, destination: IpAddr, table: &[IpAddr]) -> Option<IpAddr> {
    match gid_index {
        GID_BY_FAMILY => table.iter().copied().find(|own| own.is_ipv4() == destination.is_ipv4()),
        index => table.get(usize::from(index)).copied(),
    }
}

impl From<QpCapabilitiesRecord> for QpCapabilities {
    fn from(r: QpCapabilitiesRecord) -> Self {
        Self {
            max_send_wr: r.max_send_wr,
            max_recv_wr: r.max_recv_wr,
            max_send_sge: r.max_send_sge,
            max_recv_sge: r.max_recv_sge,
            max_inline_data: r.max_inline_data,
        }
    }
}

impl From<QpCapabilities> for QpCapabilitiesRecord {
    fn from(c: QpCapabilities) -> Self {
        Self {
            max_send_wr: c.max_send_wr,
            max_recv_wr: c.max_recv_wr,
            max_send_sge: c.max_send_sge,
            max_recv_sge: c.max_recv_sge,
            max_inline_data: c.max_inline_data,
        }
    }
}
