//! Turns on a device that several processes use: any number of them may check kernels at a time, and who takes times is alone.

use std::fs::File;
use std::path::PathBuf;

/// A file that processes lock, in the folder for what lives as long as a user's session.
pub struct Turns(Option<File>);

/// The lock, until it is dropped.
pub struct Turn<'a>(Option<&'a File>);

impl Turns {
    /// Without a folder that can be written, nobody waits for anybody.
    pub fn open() -> Self {
        let folder = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(folder.join("ulplab-gpu-0.lock"));
        Self(file.ok())
    }

    /// Waits until nobody takes times.
    pub fn shared(&self) -> Turn<'_> {
        Turn(self.0.as_ref().filter(|file| file.lock_shared().is_ok()))
    }

    /// Waits until nobody else uses the device.
    pub fn alone(&self) -> Turn<'_> {
        Turn(self.0.as_ref().filter(|file| file.lock().is_ok()))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.0 {
            // The lock ends with the process at the latest.
            let _ = file.unlock();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_is_alone_waits_for_all_others() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Turns(Some(File::create(folder.path().join("lock")).unwrap()));
        let (first, second, third) = (open(), open(), open());
        // Two share it.
        let (a, b) = (first.shared(), second.shared());
        let alone = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _turn = third.alone();
                alone.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!alone.load(Ordering::SeqCst));
            drop(a);
            std::thread::sleep(Duration::from_millis(50));
            assert!(!alone.load(Ordering::SeqCst));
            drop(b);
        });
        assert!(alone.load(Ordering::SeqCst));
        drop(first.alone());
    }

    #[test]
    fn nobody_waits_without_a_file() {
        let none = Turns(None);
        let (_a, _b) = (none.alone(), none.alone());
    }
}
