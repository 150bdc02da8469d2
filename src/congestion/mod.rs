//! Congestion control: DCQCN (Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015).
//!
//! A switch whose queue grows marks packets with CE; the receiver answers with congestion notification packets (CNPs); the sender slows
//! down, and finds its way back to what its share is. Sans-I/O, plain data, in integers; every call is O(1) and nothing allocates.
//!
//! A queue pair holds a [`Flow`]. What all queue pairs of a path have in common, parameters and line, is its [`Tuning`], lent to each call:
//!
//! - before it sends: [`Flow::poll_allowance`]; after it: [`Flow::handle_sent`];
//! - a CNP from its peer came: [`Flow::handle_cnp`];
//! - a marked packet came: [`Flow::handle_ce`] says whether to send a CNP;
//! - the light goes and comes: [`Flow::freeze`], [`Flow::thaw`]; or, with a clock that stands still in the dark, [`Tuning::handle_thaw`] for all.
//!
//! It never knows a packet's bytes: who a CNP is from and which bits a mark is are for others to say.
//!
//! | file | what it is for |
//! |---|---|
//! | `flow` | what a queue pair holds: both points and the pacer |
//! | `reaction` | the sender's half: CNPs cut the rate, timer and byte counter raise it |
//! | `notification` | the receiver's half: when a mark is worth a CNP |
//! | `pacer` | when the next burst may leave, and how large |
//! | `alpha` | the estimate of congestion, in fixed point |
//! | `parameters` | what an operator may tune, under NVIDIA's names |
//! | `tuning` | parameters fitted to a line: its rate, its round trip |
//! | `rate` | bits a second, and bytes at a rate |

mod alpha;
mod flow;
mod notification;
mod pacer;
mod parameters;
mod rate;
mod reaction;
mod tuning;

#[cfg(test)]
mod tests;

pub use alpha::Alpha;
pub use flow::Flow;
pub use notification::NotificationPoint;
pub use pacer::{Allowance, Pace, Pacer};
pub use parameters::{BadParameter, Parameters};
pub use rate::Bps;
pub use reaction::{CnpEffect, ReactionPoint};
pub use tuning::{Line, Tuning};
