//! Cache of compiled machine code. The key covers source, architecture, flags, compiler version and planted fault (a deliberate
//! bug in a kernel, which the checks must find).

use std::io::Write;
use std::path::{Path, PathBuf};

use super::toolkit::Cubin;
use ulplab_core::atomic::write_atomic;
use ulplab_run::run::seal;

/// A folder of cached machine code; `None` caches nothing. The folder may be deleted at any time.
pub struct Cache(Option<PathBuf>);

impl Cache {
    /// Opens the cache in `$XDG_CACHE_HOME`, else in `~/.cache`. Without `$XDG_CACHE_HOME` and `$HOME`, nothing is cached.
    pub fn open() -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let home = |name: &str| set(name).map(PathBuf::from);
        let caches = home("XDG_CACHE_HOME").or_else(|| Some(home("HOME")?.join(".cache")));
        caches.map_or(Self(None), |caches| Self::new(&caches.join("ulplab/cubin")))
    }

    /// Opens the cache in `folder`.
    pub fn new(folder: &Path) -> Self {
        Self(Some(folder.into()))
    }

    /// True if the cache has a folder. Without a folder, [`put`](Self::put) stores nothing.
    pub fn keeps(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the machine code stored under `key`; `None` if an entry is missing or unreadable.
    pub fn get(&self, key: &str) -> Option<Cubin> {
        let folder = self.0.as_ref()?;
        Some(Cubin {
            log: std::fs::read_to_string(folder.join(key).with_extension("log")).ok()?,
            bytes: std::fs::read(folder.join(key).with_extension("cubin")).ok()?,
        })
    }

    /// Stores machine code under a key. Errors are ignored: a missing entry is compiled again.
    pub fn put(&self, key: &str, cubin: &Cubin) {
        let Some(folder) = &self.0 else { return };
        let write = |extension: &str, bytes: &[u8]| {
            write_atomic(&folder.join(key).with_extension(extension), |out| out.write_all(bytes))
        };
        if std::fs::create_dir_all(folder).is_ok() && write("log", cubin.log.as_bytes()).is_ok() {
            let _ = write("cubin", &cubin.bytes);
        }
    }
}

/// Key of machine code in the cache: a hash of the source, the compiler's options and the compiler's version.
pub fn key(source: &blake3::Hash, options: &[String], version: (i32, i32)) -> String {
    let version = format!("{version:?}");
    let head = [&source.as_bytes()[..], version.as_bytes()];
    let parts = head.into_iter().chain(options.iter().map(String::as_bytes));
    seal::of_parts(parts).to_hex().to_string()
}
