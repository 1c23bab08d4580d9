//! Computes without Python's global interpreter lock, in a process that may fork.
//!
//! Threads do not survive a fork: the first computation of a child process would wait forever for workers that do not exist. So a
//! child has its own thread pool. A fork during a computation would copy locks that nobody releases, so [`before_fork`] waits
//! until all computations end. This module keeps its data in atomics, because a lock could be held when the process forks.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;

use pyo3::prelude::*;
use rayon::ThreadPool;

/// Lower 32 bits: number of running computations, or [`FORKING`] while the process forks. Upper 32 bits: id of the process that
/// wrote the number, so that a child process ignores the number of its parent.
static RUNNING: AtomicU64 = AtomicU64::new(0);
const FORKING: u32 = u32::MAX;
/// Time that a waiting thread sleeps before it checks again.
const PAUSE: Duration = Duration::from_micros(100);

/// Id of the process that imported the module. Only this process uses the global thread pool.
static FIRST: AtomicU64 = AtomicU64::new(0);
/// Thread pool of a child process.
static OWN: AtomicPtr<Own> = AtomicPtr::new(std::ptr::null_mut());

struct Own {
    process: u32,
    pool: ThreadPool,
}

/// Returns the number of running computations of this process, from a value of [`RUNNING`]. The result is 0 in a child process if
/// the parent wrote the value.
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

/// Replaces the number of running computations by the result of `change`. Waits while `change` returns `None`.
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

/// Guard of a running computation: [`RUNNING`] counts the computation until the guard is dropped.
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

/// Returns the thread pool of this process; `None` in the process that imported the module, which uses the global pool.
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
        // Panics if no thread can be started, like rayon's global pool.
        let pool = rayon::ThreadPoolBuilder::new().build().expect("threads can be started");
        let made = Box::into_raw(Box::new(Own { process, pool }));
        if OWN
            .compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            // SAFETY: another thread stored its pool first, and this pool was never shared.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}

/// Runs a computation without Python's global interpreter lock.
pub fn run<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    py.detach(|| {
        let _counted = Counted::new();
        match own() {
            None => work(),
            Some(pool) => pool.install(work),
        }
    })
}

/// Records the process that imports the module.
pub fn imported() {
    FIRST.store(std::process::id().into(), Ordering::Release);
}

/// Waits until no thread computes, and prevents new computations. The caller holds Python's lock, which a thread needs to begin a
/// computation.
#[pyfunction]
pub fn before_fork() {
    change(|count| (count == 0).then_some(FORKING));
}

/// Lets threads compute again, in the parent and in the child.
#[pyfunction]
pub fn after_fork() {
    RUNNING.store(state(0), Ordering::Release);
}
