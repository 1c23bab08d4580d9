//! Turns on a device that several processes use: any number of them may check kernels at a time, and who takes times is alone.

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A file that processes lock, in the folder for what lives as long as a user's session.
pub struct Turns {
    file: Option<File>,
    /// Number of turns that this process has.
    held: Mutex<usize>,
}

/// The lock, until it is dropped, and all turns that were taken within it.
pub struct Turn<'a>(Option<&'a Turns>);

impl Turns {
    /// Turns on a card for a purpose. Without a folder that can be written, nobody waits for anybody.
    pub fn open(card: &str, purpose: &str) -> Self {
        let folder = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let file = folder.join(format!("ulplab-{card}.{purpose}.lock"));
        let file = File::options().create(true).truncate(false).write(true).open(file);
        Self::on(file.ok())
    }

    /// By the lock of a file; without one nobody waits.
    pub fn on(file: Option<File>) -> Self {
        let held = Mutex::new(0);
        Self { file, held }
    }

    fn held(&self) -> MutexGuard<'_, usize> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody takes times. It is held while the device works, and not while results are judged: who waits to be alone
    /// would wait for that, too.
    pub fn shared(&self) -> Turn<'_> {
        self.turn(File::lock_shared)
    }

    /// Waits until nobody else uses the device.
    pub fn alone(&self) -> Turn<'_> {
        self.turn(File::lock)
    }

    /// A turn within another is part of it.
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
            // The lock ends with the process at the latest.
            let _ = file.unlock();
        }
    }
}
