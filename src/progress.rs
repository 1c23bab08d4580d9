//! A bar on standard error for what takes long.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Commands that end sooner show no bar.
const PATIENCE: Duration = Duration::from_secs(2);

/// Progress through tensors, counted in elements.
pub struct Progress {
    bar: ProgressBar,
    start: Instant,
    /// Whether it is to appear at all.
    shown: bool,
}

impl Progress {
    /// A bar of `elements`, which appears after two seconds, unless it is `hidden` or standard error is no terminal.
    pub fn new(elements: usize, hidden: bool) -> Self {
        let style = ProgressStyle::with_template("{bar:40} {percent:>3} %  {elapsed} (about {eta} left)  {msg}");
        let bar = ProgressBar::with_draw_target(Some(elements as u64), ProgressDrawTarget::hidden())
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self {
            bar,
            start: Instant::now(),
            shown: !hidden && std::io::stderr().is_terminal(),
        }
    }

    /// Takes the bar off the terminal while something is printed.
    pub fn apart<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    /// Advances by this many elements of the named tensor.
    pub fn advance(&mut self, elements: usize, name: &str) {
        self.show(self.bar.position() + elements as u64, name);
    }

    /// Shows how much of a tensor is done while `work` goes on, which counts elements; those that it counts twice are counted
    /// once.
    pub fn watch<T: Send>(&mut self, name: &str, elements: usize, work: impl FnOnce(&AtomicUsize) -> T + Send) -> T {
        let (before, done) = (self.bar.position(), AtomicUsize::new(0));
        let result = match self.shown {
            false => work(&done),
            true => std::thread::scope(|scope| {
                let work = scope.spawn(|| work(&done));
                while !work.is_finished() {
                    std::thread::sleep(Duration::from_millis(20));
                    let seen = done.load(Ordering::Relaxed).min(elements);
                    self.show(before + seen as u64, name);
                }
                work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }),
        };
        self.show(before + elements as u64, name);
        result
    }

    fn show(&mut self, position: u64, name: &str) {
        if self.shown && self.bar.is_hidden() && self.start.elapsed() >= PATIENCE {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_message(name.replace(char::is_control, " "));
        self.bar.set_position(position);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
