//! `holdfast pingpong`: the partner of rdma-core's `ibv_rc_pingpong`, `ibv_uc_pingpong` and `ibv_ud_pingpong`.

use super::Outcome;
use crate::ipc::client::{Context, PathMtu, Psn, QpType};
use crate::perf::pingpong::{DEFAULT_PORT, Game, Role, play};
use std::io::{self, Write};
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::path::PathBuf;

/// Play ibv_rc_pingpong, ibv_uc_pingpong or ibv_ud_pingpong with a stock peer
#[derive(clap::Args)]
pub(super) struct Args {
    /// Where the stock program waits; without it, wait here for one
    host: Option<String>,
    #[command(flatten)]
    kind: Kind,
    /// TCP port
    #[arg(long, short, default_value_t = DEFAULT_PORT)]
    port: u16,
    /// Bytes of a message [default: 4096; UD: what one packet carries, at most 4096]
    #[arg(long, short)]
    size: Option<u32>,
    /// Path MTU in bytes (RC, UC)
    #[arg(long, short, default_value_t = 1024)]
    mtu: u32,
    /// Messages each way
    #[arg(long, short = 'n', default_value_t = 1000)]
    iterations: u32,
    /// Receives kept posted
    #[arg(long, short, default_value_t = 500)]
    rx_depth: u32,
    /// Sleep on completion events
    #[arg(long, short)]
    events: bool,
    /// Begin each page of a message with 0, as ibv_*_pingpong -c expects it
    #[arg(long, short)]
    chk: bool,
    /// Which of the device's addresses to use: an index of its GID table
    #[arg(long, short, value_name = "INDEX", default_value_t = 0)]
    gid_idx: u32,
    /// Attach socket of the daemon [default: HOLDFAST_SOCKET, or /run/holdfast/attach.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Kind {
    /// With ibv_rc_pingpong
    #[arg(long)]
    rc: bool,
    /// With ibv_uc_pingpong
    #[arg(long)]
    uc: bool,
    /// With ibv_ud_pingpong
    #[arg(long)]
    ud: bool,
}

impl Args {
    pub(super) fn run(self) -> Outcome {
        let context = match &self.socket {
            Some(path) => Context::connect(path)?,
            None => Context::open()?,
        };
        let kind = match self.kind {
            Kind { uc: true, .. } => QpType::Uc,
            Kind { ud: true, .. } => QpType::Ud,
            Kind { .. } => QpType::Rc,
        };
        let path_mtu = PathMtu::from_bytes(self.mtu)
            .ok_or_else(|| format!("--mtu {}: allowed are 256, 512, 1024, 2048 and 4096", self.mtu))?;
        let link_mtu = context.query_port()?.active_path_mtu().bytes();
        let size = self.size.unwrap_or(if kind == QpType::Ud { link_mtu.min(4096) } else { 4096 });
        if kind == QpType::Ud && size > link_mtu {
            return Err(format!("--size {size}: a datagram carries at most {link_mtu} bytes on this link").into());
        }
        let game = Game {
            kind,
            size,
            iterations: self.iterations,
            receive_depth: self.rx_depth.max(2),
            path_mtu,
            events: self.events,
            pages_begin_with_0: self.chk,
            gid_index: self.gid_idx,
            first_psn: Psn::new(std::process::id().wrapping_mul(0x9e37_79b9)),
        };
        let (role, stream) = match &self.host {
            Some(host) => (
                Role::Client,
                TcpStream::connect((host.as_str(), self.port))
                    .map_err(|e| format!("cannot connect to {host} port {}: {e}", self.port))?,
            ),
            None => {
                let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, self.port))
                    .map_err(|e| format!("cannot listen on port {}: {e}", self.port))?;
                (Role::Server, listener.accept()?.0)
            }
        };
        let score = play(&context, &game, role, &stream)?;
        writeln!(io::stdout().lock(), "{}", String::from(score))?;
        Ok(())
    }
}
