//! SIGINT and SIGTERM end the process with exit code 130. Finished work is not lost.

use std::io::Read;
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use ulplab_core::atomic;
use ulplab_core::error::{Error, Exit, Result};

/// Time that running cells have to finish after Ctrl-C. A job scheduler that sends SIGTERM waits longer before it sends SIGKILL.
const GRACE: Duration = Duration::from_millis(700);

/// True while cells (units of work) are running: they should finish before the process ends.
static RUNNING: AtomicBool = AtomicBool::new(false);

/// Set by a signal while cells run: running cells are finished, and no new cell is started.
pub static STOP: AtomicBool = AtomicBool::new(false);

/// The pipe to which the handler writes the number of each signal.
static PIPE: AtomicI32 = AtomicI32::new(-1);

/// Functions to call before a signal ends the process immediately.
static LAST: Mutex<Vec<Box<dyn FnOnce() + Send>>> = Mutex::new(Vec::new());

/// Installs the signal handlers. The process ends at once if no cells run, or at the second signal. Files are written whole or
/// not at all, so no finished work is lost.
pub fn handle() -> Result<()> {
    static ONCE: Once = Once::new();
    let mut outcome = Ok(());
    ONCE.call_once(|| outcome = install());
    outcome.map_err(|error| Error::Setup(format!("cannot handle signals: {error}")))
}

fn install() -> std::io::Result<()> {
    let (mut signals, pipe) = UnixStream::pair()?;
    PIPE.store(pipe.into_raw_fd(), Ordering::SeqCst);
    std::thread::Builder::new().spawn(move || {
        let mut number = [0];
        while signals.read_exact(&mut number).is_ok() {
            received(i32::from(number[0]));
        }
    })?;
    let action = SigAction::new(SigHandler::Handler(wake), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler only calls `write`, which is safe in handlers.
        unsafe { sigaction(signal, &action) }?;
    }
    Ok(())
}

extern "C" fn wake(number: i32) {
    let byte = number as u8;
    // SAFETY: the descriptor is never closed, and the byte lives during the call.
    unsafe { libc::write(PIPE.load(Ordering::SeqCst), (&raw const byte).cast(), 1) };
}

fn received(number: i32) {
    if !RUNNING.swap(false, Ordering::SeqCst) {
        end();
    }
    STOP.store(true, Ordering::SeqCst);
    if number == libc::SIGINT {
        errln!("interrupted: waiting up to a second for the cells at work; press Ctrl-C again to end at once");
        std::thread::spawn(|| {
            std::thread::sleep(GRACE);
            errln!("error: {}", Error::Interrupted);
            end();
        });
    } else {
        errln!("interrupted: waiting for the cells at work; a second signal ends the process at once");
    }
}

/// Registers `work` to be done before a signal ends the process immediately.
pub fn at_end(work: impl FnOnce() + Send + 'static) {
    LAST.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(work));
}

fn end() -> ! {
    let last = std::mem::take(&mut *LAST.lock().unwrap_or_else(PoisonError::into_inner));
    last.into_iter().for_each(|work| work());
    atomic::abandon();
    // `exit` would run handlers that unload libraries such as NVRTC. Other threads that use such a library could then crash.
    // SAFETY: `_exit` may be called from any thread at any time.
    unsafe { libc::_exit(Exit::Interrupted as i32) };
}

/// Runs cells. Returns an error if a signal came while they ran, even if all cells were finished before the signal was handled.
pub fn while_running<T>(cells: impl FnOnce() -> Result<T>) -> Result<T> {
    RUNNING.store(true, Ordering::SeqCst);
    let outcome = cells();
    match RUNNING.swap(false, Ordering::SeqCst) {
        true => outcome,
        false => outcome.and(Err(Error::Interrupted)),
    }
}
