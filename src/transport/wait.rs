//! Why a queue pair with work does not send.

/// What a queue pair waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Wait {
    /// The peer had no receive and asked us to wait (RNR NAK).
    Rnr,
    /// Something was lost: what follows waits until it has arrived.
    Loss,
    /// The peer gave no credit for another receive (IBTA 9.7.7.2).
    Credit,
    /// As much is under way as may be: PSNs, READs and atomics, or a fence.
    Window,
    /// All that was posted is sent, or the application has stopped the queue (SQD).
    Application,
}
