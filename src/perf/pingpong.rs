//! `holdfast pingpong`: the partner of `ibv_rc_pingpong`, `ibv_uc_pingpong` and `ibv_ud_pingpong`.
//!
//! Source: rdma-core, `libibverbs/examples/*_pingpong.c`. Each side keeps receives posted; the client sends first; each message
//! received is answered by one. A side stops when it has sent and received as many as it was told; both must be told the same.
//!
//! Every byte is compared. A stock program sends its first message filled with 0x7b, and from then on, as it receives into
//! the buffer that it sends from, what it received last. Here message `i` has content of its own, in both roles; so what comes
//! back to a client must be that, and what comes to a server what it sent last, or, from one of our kind, which echoes
//! nothing, the content of the same number. Under `-c` pages begin with 0: it is what a stock server then looks for.

use super::handshake::{self, Destination};
use super::{Pattern, PerfError};
use crate::ipc::client::{
    Access, AddressHandle, AddressVector, Completion, CompletionChannel, CompletionQueue, ConnectionOptions, Context,
    Data, Endpoint, Gid, MemoryRegion, PathMtu, Psn, QpCapabilities, QpType, QueuePair, RecvRequest, SendFlags, SendOp,
    SendRequest, UdAddress, WcOpcode, WcStatus,
};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The TCP port of rdma-core's programs.
pub const DEFAULT_PORT: u16 = 18_515;
/// The Q_Key of `ibv_ud_pingpong`.
const QKEY: u32 = 0x1111_1111;
/// The area before a datagram where the receiver finds its GRH.
const GRH_BYTES: u64 = 40;
/// What stock programs fill their first message with.
const FILL: u8 = 0x7b;
const PAGE_BYTES: usize = 4096;
/// 0.54 s, seven times: the peer may be a slow program on a busy machine, and nothing waits for a lost packet but a game.
const ACK_TIMEOUT: u8 = 17;
const RECEIVE: u64 = 1;
const SEND: u64 = 2;

/// What to play.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Game {
    /// RC, UC or UD.
    pub kind: QpType,
    /// Bytes of a message.
    pub size: u32,
    /// Messages each way.
    pub iterations: u32,
    /// Receives kept posted.
    pub receive_depth: u32,
    /// Path MTU (RC, UC).
    pub path_mtu: PathMtu,
    /// Sleep on completion events instead of polling.
    pub events: bool,
    /// Begin each page of a message with 0.
    pub pages_begin_with_0: bool,
    /// Which of the device's addresses to use: an index of its GID table.
    pub gid_index: u32,
    /// First PSN to send.
    pub first_psn: Psn,
}

/// What it came to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Score {
    /// Bytes both ways.
    pub bytes: u64,
    /// From the first message to the last.
    pub elapsed: Duration,
    /// Messages each way.
    pub iterations: u32,
}

/// Which side of the TCP connection this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It connected, and serves the ball.
    Client,
    /// It accepted.
    Server,
}

/// Plays over a connected TCP stream.
///
/// # Errors
/// See [`PerfError`].
pub fn play(context: &Context, game: &Game, role: Role, stream: &TcpStream) -> Result<Score, PerfError> {
    let mut player = Player::new(context, game)?;
    let own = player.destination();
    stream.set_read_timeout(Some(PATIENCE))?;
    match role {
        Role::Client => handshake::client(stream, own, |remote| player.connect(remote))?,
        Role::Server => handshake::server(stream, own, |remote| player.connect(remote))?,
    };
    let score = player.play(role)?;
    // The peer may still be waiting for our last acknowledgement to be seen: stay until it hangs up.
    let mut rest = [0; 16];
    let _ = std::io::Read::read(&mut &*stream, &mut rest);
    Ok(score)
}

const PATIENCE: Duration = Duration::from_secs(30);

struct Player {
    game: Game,
    qp: QueuePair,
    cq: CompletionQueue,
    channel: CompletionChannel,
    /// One buffer to send from, behind one to receive into, which begins with the GRH area.
    memory: MemoryRegion,
    /// A message as it is sent, or must be received.
    content: Vec<u8>,
    /// A message as it was received.
    scratch: Vec<u8>,
    gid: Gid,
    peer: Option<UdAddress>,
    /// The peer sends back what it got last.
    peer_echoes: bool,
    sent: u32,
    received: u32,
    posted_receives: u32,
    send_is_pending: bool,
    serves: bool,
}

impl Player {
    fn new(context: &Context, game: &Game) -> Result<Self, PerfError> {
        let pd = context.allocate_pd()?;
        let channel = context.create_channel()?;
        let cq = context.create_cq(game.receive_depth + 1, Some(&channel))?;
        let caps = QpCapabilities {
            max_send_wr: 1,
            max_recv_wr: game.receive_depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let qp = pd.queue_pair(game.kind, &cq, &cq).capabilities(caps).create()?;
        let size = usize::try_from(game.size).unwrap_or(usize::MAX);
        let memory = pd.allocate(size.saturating_mul(2).saturating_add(GRH_BYTES as usize), Access::LOCAL_WRITE)?;
        let mut player = Self {
            game: *game,
            qp,
            cq,
            channel,
            memory,
            content: vec![0; size],
            scratch: vec![0; size],
            gid: context.query_gid(game.gid_index)?,
            peer: None,
            peer_echoes: false,
            sent: 0,
            received: 0,
            posted_receives: 0,
            send_is_pending: false,
            serves: false,
        };
        match game.kind {
            QpType::Ud | QpType::Gsi => player.qp.activate(QKEY, game.first_psn)?,
            QpType::Rc | QpType::Uc => player.qp.prepare(Access::LOCAL_WRITE)?,
        }
        player.post_receives(game.receive_depth)?;
        if game.events {
            player.cq.arm(false);
        }
        Ok(player)
    }

    fn destination(&self) -> Destination {
        Destination { qpn: self.qp.qpn(), psn: self.game.first_psn, gid: self.gid }
    }

    fn connect(&mut self, remote: Destination) -> Result<(), PerfError> {
        let (source, address) = (self.gid.address(), remote.gid.address());
        if self.game.kind.is_datagram() {
            let vector = AddressVector { source, ..*AddressHandle::to(address).vector() };
            self.peer = Some(AddressHandle::new(vector).queue_pair(remote.qpn, QKEY));
            return Ok(());
        }
        let options = ConnectionOptions {
            source: Some(source),
            path_mtu: self.game.path_mtu,
            timeout: ACK_TIMEOUT,
            access: Access::LOCAL_WRITE,
            max_rd_atomic: 1,
            ..ConnectionOptions::default()
        };
        let endpoint = Endpoint { qpn: remote.qpn, psn: remote.psn.get(), address };
        Ok(self.qp.connect(&endpoint, self.game.first_psn, &options)?)
    }

    fn post_receives(&mut self, n: u32) -> Result<(), PerfError> {
        let room = if self.game.kind.is_datagram() { 0 } else { GRH_BYTES };
        let sges = [self.memory.sge(room..GRH_BYTES + u64::from(self.game.size))];
        for _ in 0..n {
            self.qp.post_recv(&RecvRequest { wr_id: RECEIVE, sges: &sges })?;
            self.posted_receives += 1;
        }
        Ok(())
    }

    fn post_send(&mut self) -> Result<(), PerfError> {
        let (offset, len) = (GRH_BYTES + u64::from(self.game.size), u64::from(self.game.size));
        self.make_content(self.sent.into());
        // It lies inside by construction.
        let _ = self.memory.write(offset, &self.content);
        let sges = [self.memory.sge(offset..offset + len)];
        self.qp.post_send(&SendRequest {
            wr_id: SEND,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            data: Data::Sges(&sges),
            datagram: self.peer,
        })?;
        self.send_is_pending = true;
        Ok(())
    }

    fn play(&mut self, role: Role) -> Result<Score, PerfError> {
        self.serves = role == Role::Client;
        let start = Instant::now();
        if self.serves {
            self.post_send()?;
        }
        let mut last = start;
        while self.sent < self.game.iterations || self.received < self.game.iterations {
            if self.step()? {
                last = Instant::now();
            } else if last.elapsed() > PATIENCE {
                return Err(PerfError::Stalled { seconds: PATIENCE.as_secs() });
            }
        }
        let bytes = 2 * u64::from(self.game.iterations) * u64::from(self.game.size);
        Ok(Score { bytes, elapsed: start.elapsed(), iterations: self.game.iterations })
    }

    fn step(&mut self) -> Result<bool, PerfError> {
        if self.game.events {
            if self.channel.wait(Some(Duration::from_millis(100)))?.is_some() {
                self.cq.arm(false);
            }
        } else {
            std::thread::yield_now();
        }
        let mut batch = [Completion::default(); 16];
        let n = self.cq.poll(&mut batch)?;
        for completion in batch.iter().take(n) {
            self.handle(completion)?;
        }
        Ok(n > 0)
    }

    fn handle(&mut self, completion: &Completion) -> Result<(), PerfError> {
        let is_receive = completion.wr_id == RECEIVE;
        if completion.status != WcStatus::Success {
            let what = if is_receive { "receive" } else { "SEND" };
            return Err(PerfError::Completion { what, status: completion.status, qpn: self.qp.qpn().get() });
        }
        if is_receive {
            self.check(completion)?;
            self.received += 1;
            self.posted_receives -= 1;
            if self.posted_receives <= 1 {
                self.post_receives(self.game.receive_depth - self.posted_receives)?;
            }
        } else {
            self.sent += 1;
            self.send_is_pending = false;
        }
        // Each message received is answered by one, once the one before is out.
        let owed = self.received + u32::from(self.serves);
        if !self.send_is_pending && self.sent < owed.min(self.game.iterations) {
            self.post_send()?;
        }
        Ok(())
    }
}

// What is sent and received.
impl Player {
    /// Compares a message with what it must be.
    fn check(&mut self, completion: &Completion) -> Result<(), PerfError> {
        let message = self.received;
        let headed = if self.game.kind.is_datagram() { GRH_BYTES as u32 } else { 0 };
        let bytes = completion.byte_len.saturating_sub(headed);
        if completion.opcode != WcOpcode::Recv || bytes != self.game.size {
            return Err(PerfError::WrongLength { message, bytes, want: self.game.size });
        }
        // It lies inside by construction.
        let _ = self.memory.read(GRH_BYTES, &mut self.scratch);
        if message == 0 && !self.serves && is_stock_fill(&self.scratch) {
            self.peer_echoes = true;
            return Ok(());
        }
        let want = u64::from(message) - u64::from(self.peer_echoes);
        self.make_content(want);
        if self.content == self.scratch {
            return Ok(());
        }
        let wrong = self.content.iter().zip(&self.scratch).filter(|(want, got)| want != got).count();
        Err(PerfError::WrongBytes { message, wrong })
    }

    fn make_content(&mut self, message: u64) {
        Pattern::of(0, message).fill(&mut self.content);
        if self.game.pages_begin_with_0 {
            self.content.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 0);
        }
    }
}

/// Whether a stock program begins with this message.
fn is_stock_fill(message: &[u8]) -> bool {
    let begins = |page: &[u8]| page.first().is_none_or(|byte| matches!(byte, 0 | &FILL));
    message.chunks(PAGE_BYTES).all(|page| begins(page) && page.iter().skip(1).all(|byte| *byte == FILL))
}

impl From<Score> for String {
    fn from(score: Score) -> Self {
        let seconds = score.elapsed.as_secs_f64();
        format!(
            "{} bytes in {seconds:.2} seconds = {:.2} Mbit/sec\n{} iters in {seconds:.2} seconds = {:.2} usec/iter",
            score.bytes,
            score.bytes as f64 * 8.0 / 1e6 / seconds,
            score.iterations,
            seconds * 1e6 / f64::from(score.iterations.max(1)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_a_stock_program_by_its_first_message() {
        let mut message = vec![FILL; 3 * PAGE_BYTES + 5];
        assert!(is_stock_fill(&message));
        for page in message.chunks_mut(PAGE_BYTES) {
            page[0] = 0;
        }
        assert!(is_stock_fill(&message));
        message[PAGE_BYTES + 1] = 0;
        assert!(!is_stock_fill(&message));
        assert!(is_stock_fill(&[]));
    }

    #[test]
    fn its_own_first_message_is_none_of_theirs_at_any_size() {
        let mut message = [0; 64];
        for size in 1..64 {
            Pattern::of(0, 0).fill(&mut message[..size]);
            assert!(!is_stock_fill(&message[..size]));
        }
    }
}
