//! Locks of a device that several processes use: any number of processes may check kernels at a time, but a process that times
//! kernels runs alone.

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lock file that several processes share, in the folder of the user's session (`$XDG_RUNTIME_DIR`).
pub struct Turns {
    file: Option<File>,
    /// Number of live guards ([`Turn`]) in this process; the file is unlocked when the last guard is dropped.
    held: Mutex<usize>,
}

/// A guard of the lock. The lock is held until all guards of this process are dropped.
pub struct Turn<'a>(Option<&'a Turns>);

impl Turns {
    /// Opens the lock file of a card; its name contains `purpose`. If the file cannot be opened, the lock has no effect:
    /// processes do not wait for each other.
    pub fn open(card: &str, purpose: &str) -> Self {
        let folder = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let file = folder.join(format!("ulplab-{card}.{purpose}.lock"));
        let file = File::options().create(true).truncate(false).write(true).open(file);
        Self::on(file.ok())
    }

    /// Uses the lock of `file`; without a file, the lock has no effect.
    pub fn on(file: Option<File>) -> Self {
        let held = Mutex::new(0);
        Self { file, held }
    }

    fn held(&self) -> MutexGuard<'_, usize> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a shared lock: waits until no process times kernels. Hold the guard while the device works, and drop it before
    /// outputs are checked on the CPU: otherwise, a process that waits for the exclusive lock also waits for these checks.
    pub fn shared(&self) -> Turn<'_> {
        self.turn(File::lock_shared)
    }

    /// Takes the lock exclusively: waits until no other process uses the device.
    pub fn alone(&self) -> Turn<'_> {
        self.turn(File::lock)
    }

    /// Takes the lock, unless this process already has it, and returns a guard.
    fn turn(&self, lock: impl Fn(&File) -> std::io::Result<()>) -> Turn<'_> {
        let Some(file) = &self.file else { return Turn(None) };
        let mut held = self.held();
        if *held == 0 && lock(file).is_err() {
            return Turn(None);
        }
        *held += 1;
        Turn(Some(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(turns) = self.0 else { return };
        let mut held = turns.held();
        *held -= 1;
        if let Some(file) = turns.file.as_ref().filter(|_| *held == 0) {
            // Ignore errors: the lock ends with the process at the latest.
            let _ = file.unlock();
        }
    }
}
