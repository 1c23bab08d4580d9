//! Computing without Python's lock, in a process that may fork.
//!
//! Threads do not survive a fork, so the child's first computation would wait for workers that are gone: a child has a pool of its
//! own. A fork while another thread computes would copy locks that nobody releases, so [`before_fork`] waits for all computations to
//! end. State is kept in atomics alone, which nobody can hold while the process forks.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;

use pyo3::prelude::*;
use rayon::ThreadPool;

/// The process that counts, in the upper half, and how many computations run in it, or [`FORKING`].
static RUNNING: AtomicU64 = AtomicU64::new(0);
const FORKING: u32 = u32::MAX;
/// The pause before a thread that must wait looks again.
const PAUSE: Duration = Duration::from_micros(100);

/// The process that imported the module: the global pool of threads is its own.
static FIRST: AtomicU64 = AtomicU64::new(0);
/// The pool of a child.
static OWN: AtomicPtr<Own> = AtomicPtr::new(std::ptr::null_mut());

struct Own {
    process: u32,
    pool: ThreadPool,
}

/// The number of computations that run in this process. A count of the parent says nothing of its child.
fn count_of(state: u64) -> u32 {
    if (state >> 32) as u32 == std::process::id() {
        state as u32
    } else {
        0
    }
}

fn state(count: u32) -> u64 {
    u64::from(std::process::id()) << 32 | u64::from(count)
}

/// Replaces a count by another as soon as `change` gives one.
fn change(change: impl Fn(u32) -> Option<u32>) {
    loop {
        let now = RUNNING.load(Ordering::Acquire);
        let next = change(count_of(now)).map(state);
        match next.map(|next| RUNNING.compare_exchange(now, next, Ordering::AcqRel, Ordering::Acquire)) {
            Some(Ok(_)) => return,
            Some(Err(_)) => {}
            None => std::thread::sleep(PAUSE),
        }
    }
}

/// A computation that is counted until it is dropped.
struct Counted;

impl Counted {
    fn new() -> Self {
        change(|count| (count < FORKING - 1).then(|| count + 1));
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        change(|count| Some(count.saturating_sub(1)));
    }
}

/// The pool of this process; `None` in the process that imported the module, which has the global one.
fn own() -> Option<&'static ThreadPool> {
    let process = std::process::id();
    if FIRST.load(Ordering::Acquire) == u64::from(process) {
        return None;
    }
    loop {
        let found = OWN.load(Ordering::Acquire);
        // SAFETY: a pool that was stored is never freed.
        if let Some(own) = unsafe { found.as_ref() }.filter(|own| own.process == process) {
            return Some(&own.pool);
        }
        // Panics if a thread cannot be started, as rayon's global pool does.
        let pool = rayon::ThreadPoolBuilder::new().build().expect("threads can be started");
        let made = Box::into_raw(Box::new(Own { process, pool }));
        if OWN
            .compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            // SAFETY: another thread was quicker, and nobody has seen this one.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}

/// Computes without Python's lock.
pub fn run<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    py.detach(|| {
        let _counted = Counted::new();
        match own() {
            None => work(),
            Some(pool) => pool.install(work),
        }
    })
}

/// Notes the process that imports the module.
pub fn imported() {
    FIRST.store(std::process::id().into(), Ordering::Release);
}

/// Waits until no thread computes, and lets none begin. The caller holds Python's lock, without which none does.
#[pyfunction]
pub fn before_fork() {
    change(|count| (count == 0).then_some(FORKING));
}

/// Lets threads compute again, in the parent and in the child.
#[pyfunction]
pub fn after_fork() {
    RUNNING.store(state(0), Ordering::Release);
}
