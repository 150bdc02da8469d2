//! A client process and a daemon process, for real: the client's memory reached by a memfd and by `process_vm_readv`/`writev`.
//!
//! No test harness (`harness = false`): the program plays the daemon, and starts itself again as the client.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    io::{BufRead, BufReader, IoSlice, IoSliceMut, Write},
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
        unix::{
            net::{UnixListener, UnixStream},
            process::CommandExt,
        },
    },
    path::Path,
    process::{Child, Command, ExitCode},
    sync::Arc,
    sync::atomic::Ordering,
    time::Duration,
};

use holdfast::memory::{
    Access, AccessError, AtomicOp, Backing, GatherList, Mapping, Memory, MemoryError, PdId, Process, ProcessMemory,
    Sge, Trust, Unreachable,
};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

const QPN: u32 = 0x11;
const BYTES: usize = 1 << 16;
const ROUNDS: u64 = 50_000;
/// Some user that is neither root nor anybody in particular.
const STRANGER: u32 = 65_534;
/// Nothing here takes long; whoever waits longer is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("play-client") => client(Path::new(&arguments[2])),
        Some("play-stranger") => stranger(&arguments[2]),
        // What test runners ask for.
        Some("--list") => println!("memory_two_processes: test"),
        _ => {
            by_memfd_and_by_process_vm();
            println!("by_memfd_and_by_process_vm ... ok");
            strangers_and_privileged_daemons();
        }
    }
    ExitCode::SUCCESS
}

// ---- the client's side

/// Offers a memfd and a private buffer, counts in the memfd along with the daemon, and compares what it was sent.
fn client(path: &Path) {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // What a client does where Yama restricts tracing. Without Yama the call fails, and is not needed.
    // SAFETY: no pointers.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(std::os::unix::process::parent_id())) };

    // SAFETY: the name is a C string; the result is a new descriptor.
    let memfd = unsafe {
        OwnedFd::from_raw_fd(libc::memfd_create(c"client".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING))
    };
    nix::unistd::ftruncate(&memfd, BYTES as i64).unwrap();
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::fcntl(memfd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) }, 0);
    let shared = Mapping::of_memfd(memfd.try_clone().unwrap(), 0, BYTES as u64).unwrap();
    let pattern: Vec<u8> = (0..BYTES).map(|i| (i * 13) as u8).collect();
    assert!(shared.write(0, &pattern));
    assert!(shared.write(0, &[0; 8]));
    let private = Mapping::anonymous(BYTES).unwrap();
    assert!(private.write(0, &pattern));

    // The address of its first eight bytes, which are aligned.
    let address = std::ptr::from_ref(private.atomic(0).unwrap()).expose_provenance();
    let message = format!("{address:016x}");
    let fds = [memfd.as_raw_fd()];
    sendmsg::<()>(
        stream.as_raw_fd(),
        &[IoSlice::new(message.as_bytes())],
        &[ControlMessage::ScmRights(&fds)],
        MsgFlags::empty(),
        None,
    )
    .unwrap();

    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let mut expect = |word: &str| assert_eq!(lines.next().unwrap().unwrap(), word);
    expect("count");
    for _ in 0..ROUNDS {
        shared.atomic(0).unwrap().fetch_add(1, Ordering::SeqCst);
    }
    (&stream).write_all(b"counted\n").unwrap();
    expect("compare");
    let mut bytes = vec![0; 21];
    assert!(private.read(100, &mut bytes));
    assert_eq!(bytes, b"by process_vm_writev ");
    assert!(shared.read(100, &mut bytes));
    assert_eq!(bytes, b"by the shared mapping");
    assert!(shared.read(0, &mut bytes[..8]));
    assert_eq!(bytes[..8], (2 * ROUNDS).to_ne_bytes());
    (&stream).write_all(b"as sent\n").unwrap();
    expect("never said: the daemon ends this process");
}

/// Plays a daemon of another user: it may not reach the memory of the process that started it.
fn stranger(target: &str) {
    let mut parts = target.split(':').map(|part| part.parse::<u64>().unwrap());
    let (pid, address) = (parts.next().unwrap(), parts.next().unwrap());
    let process = Arc::new(Process::open(i32::try_from(pid).unwrap()).unwrap());
    let mut memory = Memory::new([1; 32]);
    let pd = memory.create_pd(1);
    let refused = memory.register(pd, Backing::Process(ProcessMemory::new(process, address)), 0, 8, ALL).unwrap_err();
    assert!(matches!(refused, MemoryError::Unreachable(Unreachable::NotPermitted)), "{refused}");
    assert!(refused.to_string().contains("ptrace_scope"), "{refused}");
}

// ---- the daemon's side

/// A client that is ended when this goes, also by a failed assertion.
struct Client {
    child: Child,
    stream: UnixStream,
    lines: std::io::Lines<BufReader<UnixStream>>,
}

impl Client {
    fn start(uid: Option<u32>) -> std::io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("play-client").arg(&path);
        if let Some(uid) = uid {
            use std::{fs, os::unix::fs::PermissionsExt};
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
            command.uid(uid);
        }
        let mut child = command.spawn()?;
        let mut poll = [nix::poll::PollFd::new(listener.as_fd(), nix::poll::PollFlags::POLLIN)];
        let timeout = nix::poll::PollTimeout::try_from(PATIENCE).unwrap();
        if nix::poll::poll(&mut poll, timeout)? == 0 {
            child.kill()?;
            panic!("the client does not connect");
        }
        let (stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let lines = BufReader::new(stream.try_clone()?).lines();
        Ok(Self { child, stream, lines })
    }

    /// The memfd and the address that it offers.
    fn offer(&self) -> (OwnedFd, u64) {
        let mut text = [0; 16];
        let mut control = nix::cmsg_space!([std::os::fd::RawFd; 1]);
        let fd = {
            let mut iov = [IoSliceMut::new(&mut text)];
            let message =
                recvmsg::<()>(self.stream.as_raw_fd(), &mut iov, Some(&mut control), MsgFlags::MSG_WAITALL).unwrap();
            match message.cmsgs().unwrap().next() {
                Some(ControlMessageOwned::ScmRights(fds)) => fds[0],
                other => panic!("expected a descriptor, got {other:?}"),
            }
        };
        // SAFETY: the kernel made this descriptor for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        (fd, u64::from_str_radix(std::str::from_utf8(&text).unwrap(), 16).unwrap())
    }

    fn say(&self, word: &str) {
        (&self.stream).write_all(format!("{word}\n").as_bytes()).unwrap();
    }

    fn expect(&mut self, word: &str) {
        assert_eq!(self.lines.next().expect("the client is there").unwrap(), word);
    }

    fn end(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Both fail harmlessly if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(memory: &mut Memory, pd: PdId, rkey: u32, va: u64, len: u32) -> Result<Vec<u8>, AccessError> {
    let mut list = GatherList::default();
    memory.gather_remote(pd, QPN, rkey, va, len, &mut list)?;
    let mut bytes = Vec::new();
    memory.copy_list(&list, &mut bytes).map(|()| bytes)
}

fn by_memfd_and_by_process_vm() {
    let mut client = Client::start(None).unwrap();
    // Started by this process, under its user id: the case that is always permitted.
    let process = Arc::new(Process::of_peer(client.stream.as_fd(), Trust::Vouched).unwrap());
    assert_eq!(process.pid(), i32::try_from(client.child.id()).unwrap());
    let (memfd, address) = client.offer();

    let mut memory = Memory::new([1; 32]);
    let pd = memory.create_pd(1);
    let mapping = Arc::new(Mapping::of_memfd(memfd, 0, BYTES as u64).unwrap());
    let shared = memory.register(pd, Backing::Shared(mapping, 0), 0, BYTES as u64, ALL).unwrap().rkey;
    let backing = Backing::Process(ProcessMemory::new(Arc::clone(&process), address));
    let private = memory.register(pd, backing, 0x5000_0000, BYTES as u64, ALL).unwrap().rkey;

    let pattern: Vec<u8> = (8..BYTES).map(|i| (i * 13) as u8).collect();
    let len = pattern.len() as u32;
    assert_eq!(read(&mut memory, pd, shared, 8, len).unwrap(), pattern);
    assert_eq!(read(&mut memory, pd, private, 0x5000_0008, len).unwrap(), pattern);

    client.say("count");
    for _ in 0..ROUNDS {
        memory.atomic(pd, QPN, shared, 0, AtomicOp::FetchAdd { add: 1 }).unwrap();
    }
    client.expect("counted");

    memory.write_remote(pd, QPN, shared, 100, b"by the shared mapping").unwrap();
    let sges = [(100, 3), (103, 18)].map(|(at, length)| Sge { addr: 0x5000_0000 + at, length, lkey: private });
    memory.scatter(pd, &sges, 0, b"by process_vm_writev ").unwrap();
    memory.flush();
    assert_eq!(memory.poll_write_failure(), None);
    client.say("compare");
    client.expect("as sent");

    // The client dies with a write staged: its process's region is lost, its shared memory is not, and nothing panics.
    memory.write_remote(pd, QPN, private, 0x5000_0000, b"too late").unwrap();
    client.end();
    assert!(!process.is_alive());
    memory.flush();
    let failure = memory.poll_write_failure().expect("the write is lost");
    assert_eq!((failure.key, failure.cause), (private, Unreachable::Exited));
    let gone = AccessError::Unreachable { key: private, cause: Unreachable::Exited };
    assert_eq!(read(&mut memory, pd, private, 0x5000_0000, 8), Err(gone));
    assert_eq!(read(&mut memory, pd, shared, 100, 21).unwrap(), b"by the shared mapping");
    memory.release_owner(1).unwrap();
}

fn strangers_and_privileged_daemons() {
    if !nix::unistd::geteuid().is_root() {
        println!("strangers_and_privileged_daemons ... skipped: only root can start a process under another user id");
        return;
    }
    let word = 0_u64;
    let target = format!("{}:{}", std::process::id(), std::ptr::from_ref(&word).expose_provenance());
    let stranger =
        Command::new(std::env::current_exe().unwrap()).arg("play-stranger").arg(target).uid(STRANGER).status();
    match stranger {
        Err(error) => {
            println!("strangers_and_privileged_daemons ... skipped: user {STRANGER} cannot run this program: {error}");
            return;
        }
        Ok(status) => assert!(status.success(), "the stranger was not refused as it should be"),
    }

    let client = Client::start(Some(STRANGER)).unwrap();
    let privileged = caps::has_cap(None, caps::CapSet::Effective, caps::Capability::CAP_SYS_PTRACE).unwrap();
    if privileged {
        let refused = Process::of_peer(client.stream.as_fd(), Trust::AsTheKernelDoes).unwrap_err();
        assert!(matches!(refused, MemoryError::TooPrivileged { uid: STRANGER }), "{refused}");
        let process = Arc::new(Process::of_peer(client.stream.as_fd(), Trust::Vouched).unwrap());
        let (_, address) = client.offer();
        let mut memory = Memory::new([1; 32]);
        let pd = memory.create_pd(1);
        let backing = Backing::Process(ProcessMemory::new(process, address));
        let rkey = memory.register(pd, backing, 0, BYTES as u64, ALL).unwrap().rkey;
        assert_eq!(read(&mut memory, pd, rkey, 1, 3).unwrap(), [13, 26, 39]);
        println!("strangers_and_privileged_daemons ... ok");
    } else {
        println!(
            "strangers_and_privileged_daemons ... ok (the part for CAP_SYS_PTRACE skipped: this process has it not)"
        );
    }
}
