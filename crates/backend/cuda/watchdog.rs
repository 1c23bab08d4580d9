//! Waits for a GPU with a time limit. A kernel whose threads wait for each other forever ends only with its process.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use cudarc::driver::result::DriverError;
use cudarc::driver::sys::CUresult;
use ulplab_core::error::Exit;

/// Time limit of a wait. The slowest correct kernels take a few seconds on the largest cases.
const LONGEST: Duration = Duration::from_secs(60);

/// Enforces a time limit on waits. Holds the description of the running work, for the error message.
#[derive(Default)]
pub struct Watchdog(RefCell<String>);

impl Watchdog {
    /// Sets the description of the work that runs from now on.
    pub fn expect(&self, what: String) {
        self.0.replace(what);
    }

    /// Polls `done` until all work is finished. Ends the process if the time limit is exceeded; the results of finished cases are
    /// already on disk.
    pub fn until(&self, done: impl Fn() -> CUresult) -> Result<(), DriverError> {
        let since = Instant::now();
        loop {
            let (state, waited) = (done(), since.elapsed());
            if state != CUresult::CUDA_ERROR_NOT_READY {
                return state.result();
            }
            if waited > LONGEST {
                self.give_up();
            }
            match waited.as_millis() {
                0 => std::hint::spin_loop(),
                waited => std::thread::sleep(Duration::from_millis(waited.min(200) as u64 / 20)),
            }
        }
    }

    fn give_up(&self) -> ! {
        errln!(
            "error: {}: the kernel has not returned for {} s; do its threads wait for what never comes? Only the end of the process \
             stops it. Cells that were finished before are kept",
            self.0.borrow(),
            LONGEST.as_secs()
        );
        // Exit without destructors: each of them would wait for the hanging kernel. SAFETY: ends the process.
        unsafe { nix::libc::_exit(Exit::Incomplete as i32) }
    }
}
