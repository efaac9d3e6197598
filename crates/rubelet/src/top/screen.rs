//! The terminal that the table is drawn on.
//!
//! Owns the terminal's state: while it is taken there is a second screen without a cursor, and keys come at once and are not shown.
//! Whatever ends the program but SIGKILL gives the terminal back as it was.

use std::io::{self, IsTerminal, Read, Stdout, Write};

use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use tokio::sync::mpsc;

/// The second screen, without the cursor.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
const LEAVE: &[u8] = b"\x1b[?25h\x1b[?1049l";
const HOME: &[u8] = b"\x1b[H";
const CLEAR_LINE: &[u8] = b"\x1b[K";
const CLEAR_BELOW: &[u8] = b"\x1b[J";
const KEYS_HELD: usize = 16;

/// Whether a table can be drawn again and again.
pub(super) fn is_terminal() -> bool {
    let is_dumb = std::env::var_os("TERM").is_none_or(|kind| kind.is_empty() || kind == "dumb");
    io::stdout().is_terminal() && !is_dumb
}

/// The terminal while it is taken. Dropping it gives it back.
pub(super) struct Screen {
    out: Stdout,
    /// How keys were before; `None` where the input is no terminal.
    keys: Option<Termios>,
    is_taken: bool,
}

impl Screen {
    pub(super) fn take() -> io::Result<Self> {
        let mut screen = Self {
            out: io::stdout(),
            keys: None,
            is_taken: false,
        };
        screen.enter()?;
        Ok(screen)
    }

    fn enter(&mut self) -> io::Result<()> {
        self.keys = io::stdin().is_terminal().then(take_keys).transpose()?;
        self.is_taken = true;
        self.out.write_all(ENTER)?;
        self.out.flush()
    }

    fn leave(&mut self) {
        if !std::mem::replace(&mut self.is_taken, false) {
            return;
        }
        // A terminal that is gone needs nothing back.
        let _ = self.out.write_all(LEAVE);
        let _ = self.out.flush();
        if let Some(before) = self.keys.take() {
            let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &before);
        }
    }

    /// Ctrl-Z: the shell gets the terminal until it lets the program go on.
    pub(super) fn stop(&mut self) -> io::Result<()> {
        self.leave();
        kill_process(getpid(), Signal::STOP)?;
        self.enter()
    }

    pub(super) fn has_keys(&self) -> bool {
        self.keys.is_some()
    }

    /// Columns and lines, which change with the window.
    pub(super) fn room(&self) -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            // A serial line does not know its size.
            Ok(_) | Err(_) => (80, 24),
        }
    }

    /// Draws over what was there, so that nothing flickers.
    pub(super) fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        let mut text = HOME.to_vec();
        for (number, line) in lines.iter().enumerate() {
            if number > 0 {
                text.extend_from_slice(b"\r\n");
            }
            text.extend_from_slice(line.as_bytes());
            text.extend_from_slice(CLEAR_LINE);
        }
        text.extend_from_slice(CLEAR_BELOW);
        self.out.write_all(&text)?;
        self.out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Keys come one by one and are not shown; those that send a signal still do.
fn take_keys() -> io::Result<Termios> {
    let before = tcgetattr(io::stdin())?;
    let mut keys = before.clone();
    keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
    keys.special_codes[SpecialCodeIndex::VMIN] = 1;
    keys.special_codes[SpecialCodeIndex::VTIME] = 0;
    tcsetattr(io::stdin(), OptionalActions::Now, &keys)?;
    Ok(before)
}

/// Keys as they are pressed. The thread that waits for them ends with the process.
pub(super) fn keys() -> mpsc::Receiver<u8> {
    let (pressed, keys) = mpsc::channel(KEYS_HELD);
    std::thread::spawn(move || {
        let mut input = io::stdin();
        let mut key = [0];
        while let Ok(1) = input.read(&mut key) {
            if pressed.blocking_send(key[0]).is_err() {
                return;
            }
        }
    });
    keys
}
