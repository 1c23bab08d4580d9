//! Waiting for a GPU, with an end: nothing stops a kernel whose threads wait for each other for ever, except that its process ends.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use cudarc::driver::result::DriverError;
use cudarc::driver::sys::CUresult;
use ulplab_core::error::Exit;

/// Longest time that a wait may take. The slowest kernels that are right, on the largest cases, take some seconds.
const LONGEST: Duration = Duration::from_secs(60);

/// Knows what is run, and how long it is waited for.
#[derive(Default)]
pub struct Watchdog(RefCell<String>);

impl Watchdog {
    /// Says what runs from here on.
    pub fn expect(&self, what: String) {
        self.0.replace(what);
    }

    /// Asks until all work is done. Work that takes longer than any right kernel ends the process; cells that were finished before are
    /// on disk.
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
        // Every step of a regular exit would wait for the kernel.
        // SAFETY: ends the process.
        unsafe { nix::libc::_exit(Exit::Incomplete as i32) }
    }
}
