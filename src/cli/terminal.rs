//! A terminal that is drawn anew again and again, and given back as it was.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::Duration;

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// What was typed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Key {
    /// q, ctrl-C, or the terminal went away.
    Quit,
    Other,
}

/// The terminal's other screen. Dropped, it brings back the first one and the terminal's ways.
pub(super) struct Screen {
    before: Termios,
}

impl Screen {
    /// Opens it if both input and output are a terminal.
    pub(super) fn open() -> io::Result<Option<Self>> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Ok(None);
        }
        let before = tcgetattr(io::stdin())?;
        let mut own = before.clone();
        // Keys come one by one, unseen; ctrl-C comes as a key, so that the terminal is given back.
        own.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG);
        tcsetattr(io::stdin(), SetArg::TCSANOW, &own)?;
        let screen = Self { before };
        write!(io::stdout(), "{ENTER}")?;
        Ok(Some(screen))
    }

    /// Draws the lines that `picture` gives for the number of rows there are; long ones are cut.
    pub(super) fn draw(&mut self, picture: impl FnOnce(usize) -> Vec<String>) -> io::Result<()> {
        let (columns, rows) = match terminal_size::terminal_size() {
            Some((terminal_size::Width(w), terminal_size::Height(h))) if w > 0 && h > 0 => {
                (usize::from(w), usize::from(h))
            }
            _ => (80, 24),
        };
        let mut frame = String::from(HOME);
        for (i, line) in picture(rows).into_iter().enumerate() {
            if i > 0 {
                frame.push_str("\r\n");
            }
            frame.extend(line.chars().take(columns));
            frame.push_str(CLEAR_LINE);
        }
        frame.push_str(CLEAR_BELOW);
        let mut out = io::stdout().lock();
        out.write_all(frame.as_bytes())?;
        out.flush()
    }

    /// Waits so long for a key.
    pub(super) fn key(&mut self, limit: Duration) -> io::Result<Option<Key>> {
        let stdin = io::stdin();
        let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)], limit) {
            // A signal: the window's size changed, perhaps.
            Ok(0) | Err(Errno::EINTR) => return Ok(None),
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
        // Not by `Stdin`: what its buffer holds back, the next poll would not see.
        let mut typed = [0; 64];
        let n = nix::unistd::read(stdin.as_fd(), &mut typed)?;
        let quit = n == 0 || typed.iter().take(n).any(|key| matches!(key, b'q' | b'Q' | 3));
        Ok(Some(if quit { Key::Quit } else { Key::Other }))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal is gone there is nothing to give back.
        let _ = write!(io::stdout(), "{LEAVE}").and_then(|()| io::stdout().flush());
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.before);
    }
}
