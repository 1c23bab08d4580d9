//! SIGINT and SIGTERM: the process ends with exit code 130, and nothing that is finished is lost.

use std::sync::atomic::{AtomicBool, Ordering};

use ulplab_core::error::{Error, Exit, Result};

/// Whether cells are running that should be finished first.
static RUNNING: AtomicBool = AtomicBool::new(false);

/// Set by a signal while cells run: these are finished, and no new cell is started.
pub static STOP: AtomicBool = AtomicBool::new(false);

/// Takes the signals from here on. While no cells run, and at the second signal, the process ends at once: files are
/// written whole or not at all, so nothing is lost by it.
pub fn handle() -> Result<()> {
    let handler = ctrlc::set_handler(|| {
        if RUNNING.swap(false, Ordering::SeqCst) {
            STOP.store(true, Ordering::SeqCst);
        } else {
            // Handlers of `exit` take down libraries, such as NVRTC, that other threads are in: some crash.
            // SAFETY: `_exit` may be called from any thread at any time.
            unsafe { nix::libc::_exit(Exit::Interrupted as i32) };
        }
    });
    handler.map_err(|error| Error::Setup(format!("cannot handle signals: {error}")))
}

/// Runs cells. A signal that comes meanwhile is an error even if the last cell was finished before it was seen.
pub fn while_running<T>(cells: impl FnOnce() -> Result<T>) -> Result<T> {
    RUNNING.store(true, Ordering::SeqCst);
    let outcome = cells();
    match RUNNING.swap(false, Ordering::SeqCst) {
        true => outcome,
        false => outcome.and(Err(Error::Interrupted)),
    }
}
