//! The counters that node_exporter shows of a hardware HCA (`node_infiniband_*`), from ours: a dashboard made for NICs shows
//! a holdfast device as well. Names, labels (`device`, `port`) and help texts are those of node_exporter 1.10; a counter
//! that we do not keep is absent, as it is for a driver that does not.

use crate::counters::Counter::{self, *};

/// A standard counter and what it is the sum of.
pub(super) struct Standard {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) sum_of: &'static [Counter],
}

const fn standard(name: &'static str, help: &'static str, sum_of: &'static [Counter]) -> Standard {
    Standard { name, help, sum_of }
}

#[rustfmt::skip]
pub(super) const STANDARD: &[Standard] = &[
    standard("node_infiniband_port_data_received_bytes_total", "Number of data octets received on all links",
        &[ReceivedBytes]),
    standard("node_infiniband_port_data_transmitted_bytes_total", "Number of data octets transmitted on all links",
        &[TransmittedBytes]),
    standard("node_infiniband_port_packets_received_total", "Number of packets received on all VLs by this port (including errors)",
        &[ReceivedPackets]),
    standard("node_infiniband_port_packets_transmitted_total", "Number of packets transmitted on all VLs from this port (including errors)",
        &[TransmittedPackets]),
    standard("node_infiniband_unicast_packets_received_total", "Number of unicast packets received (including errors)",
        &[ReceivedPackets]),
    standard("node_infiniband_unicast_packets_transmitted_total", "Number of unicast packets transmitted (including errors)",
        &[TransmittedPackets]),
    standard("node_infiniband_port_errors_received_total", "Number of packets containing an error that were received on this port",
        &[DropTruncated, DropMalformed, DropFragment, DropIcrc]),
    standard("node_infiniband_port_discards_received_total", "Number of inbound packets discarded by the port because the port is down or congested",
        &[KernelDropped]),
    standard("node_infiniband_port_discards_transmitted_total", "Number of outbound packets discarded by the port because the port is down or congested",
        &[TransmitTooLarge, TransmitUnreachable, TransmitForbidden, TransmitOther]),
    standard("node_infiniband_port_transmit_wait_total", "Number of ticks during which the port had data to transmit but no data was sent during the entire tick",
        &[TransmitBackpressure]),
    standard("node_infiniband_port_constraint_errors_received_total", "Number of packets received on the switch physical port that are discarded",
        &[DropPkey]),
    standard("node_infiniband_duplicate_requests_packets_total", "The number of received packets. A duplicate request is a request that had been previously executed.",
        &[DuplicateRequests]),
    standard("node_infiniband_implied_nak_seq_errors_total", "The number of time the requested decided an ACK. with a PSN larger than the expected PSN for an RDMA read or response.",
        &[ImpliedNaks]),
    standard("node_infiniband_local_ack_timeout_errors_total", "The number of times QP's ack timer expired for RC, XRC, DCT QPs at the sender side. The QP retry limit was not exceed, therefore it is still recoverable error.",
        &[AckTimeouts]),
    standard("node_infiniband_np_cnp_packets_sent_total", "The number of CNP packets sent by the Notification Point when it noticed congestion experienced in the RoCEv2 IP header (ECN bits). The counters was added in MLNX_OFED 4.1",
        &[CnpsSent]),
    standard("node_infiniband_np_ecn_marked_roce_packets_received_total", "The number of RoCEv2 packets received by the notification point which were marked for experiencing the congestion (ECN bits where '11' on the ingress RoCE traffic) . The counters was added in MLNX_OFED 4.1",
        &[EcnMarkedPackets]),
    standard("node_infiniband_out_of_buffer_drops_total", "The number of drops occurred due to lack of WQE for the associated QPs.",
        &[OutOfBuffer]),
    standard("node_infiniband_out_of_sequence_packets_received_total", "The number of out of sequence packets received.",
        &[OutOfSequencePackets]),
    standard("node_infiniband_packet_sequence_errors_total", "The number of received NAK sequence error packets. The QP retry limit was not exceeded.",
        &[NakSequenceReceived]),
    standard("node_infiniband_rnr_nak_retry_packets_received_total", "The number of received RNR NAK packets. The QP retry limit was not exceeded.",
        &[NakRnrReceived]),
    standard("node_infiniband_req_cqes_errors_total", "The number of times requester detected CQEs completed with errors. The counters was added in MLNX_OFED 4.1",
        &[SendErrors]),
    standard("node_infiniband_req_cqes_flush_errors_total", "The number of times requester detected CQEs completed with flushed errors. The counters was added in MLNX_OFED 4.1",
        &[SendFlushed]),
    standard("node_infiniband_req_remote_access_errors_total", "The number of times requester detected remote access errors. The counters was added in MLNX_OFED 4.1",
        &[NakRemoteAccessReceived]),
    standard("node_infiniband_req_remote_invalid_request_errors_total", "The number of times requester detected remote invalid request errors. The counters was added in MLNX_OFED 4.1",
        &[NakInvalidRequestReceived]),
    standard("node_infiniband_resp_cqes_errors_total", "The number of times responder detected CQEs completed with errors. The counters was added in MLNX_OFED 4.1",
        &[ReceiveErrors]),
    standard("node_infiniband_resp_cqes_flush_errors_total", "The number of times responder detected CQEs completed with flushed errors. The counters was added in MLNX_OFED 4.1",
        &[ReceiveFlushed]),
    standard("node_infiniband_resp_local_length_errors_total", "The number of times responder detected local length errors. The counters was added in MLNX_OFED 4.1",
        &[ReceiveTooShort]),
    standard("node_infiniband_resp_remote_access_errors_total", "The number of times responder detected remote access errors. The counters was added in MLNX_OFED 4.1",
        &[NakRemoteAccessSent]),
    standard("node_infiniband_rp_cnp_packets_handled_total", "The number of CNP packets handled by the Reaction Point HCA to throttle the transmission rate. The counters was added in MLNX_OFED 4.1",
        &[CnpsReceived]),
    standard("node_infiniband_rx_atomic_requests_total", "The number of received ATOMIC request for the associated QPs.",
        &[RequestAtomic]),
    standard("node_infiniband_rx_read_requests_total", "The number of received READ requests for the associated QPs.",
        &[RequestRead]),
    standard("node_infiniband_rx_write_requests_total", "The number of received WRITE requests for the associated QPs.",
        &[RequestWrite]),
    standard("node_infiniband_rx_icrc_encapsulated_errors_total", "The number of RoCE packets with ICRC errors. This counter was added in MLNX_OFED 4.4 and kernel 4.19",
        &[DropIcrc]),
];

pub(super) const STATE: (&str, &str) = (
    "node_infiniband_state_id",
    "State of the InfiniBand port (0: no change, 1: down, 2: init, 3: armed, 4: active, 5: act defer)",
);
pub(super) const PHYSICAL_STATE: (&str, &str) = (
    "node_infiniband_physical_state_id",
    "Physical state of the InfiniBand port (0: no change, 1: sleep, 2: polling, 3: disable, 4: shift, 5: link up, 6: link error recover, 7: phytest)",
);
pub(super) const RATE: (&str, &str) = ("node_infiniband_rate_bytes_per_second", "Maximum signal transfer rate");
pub(super) const LINK_DOWNED: (&str, &str) = (
    "node_infiniband_link_downed_total",
    "Number of times the link failed to recover from an error state and went down",
);
