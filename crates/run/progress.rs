//! Progress of long work on standard error: a bar on a terminal, lines in a log.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ulplab_core::text::shown;

/// Time before a bar appears. Shorter commands show no bar.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time between two progress lines where no bar can be shown.
const INTERVAL: Duration = Duration::from_secs(30);

/// Returns a progress bar for `all` units with the given template, on standard error. The bar is invisible if `hidden`, or
/// without a terminal.
pub fn bar(all: Option<usize>, template: &str, hidden: bool) -> ProgressBar {
    let target = match hidden || !std::io::stderr().is_terminal() {
        true => ProgressDrawTarget::hidden(),
        false => ProgressDrawTarget::stderr(),
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(all.map(|all| all as u64), target).with_style(style)
}

/// Prints a line about a bar's progress to standard error twice a minute, where no terminal shows the bar. Dropping this value
/// stops the lines.
pub struct Lines(Option<Sender<()>>);

impl Lines {
    /// Starts to print lines about a bar that counts `units`, unless `hidden` is true or standard error is a terminal.
    pub fn new(bar: &ProgressBar, units: &'static str, hidden: bool) -> Self {
        match hidden || std::io::stderr().is_terminal() {
            true => Self(None),
            false => Self::every(INTERVAL, bar, units, |line| errln!("{line}")),
        }
    }

    /// Starts to call `say` with a progress line once per `interval`.
    pub fn every(
        interval: Duration,
        bar: &ProgressBar,
        units: &'static str,
        say: impl Fn(String) + Send + 'static,
    ) -> Self {
        let (alive, ended) = mpsc::channel();
        let (bar, first, begun) = (bar.clone(), bar.position(), Instant::now());
        std::thread::spawn(move || {
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                say(line(&bar, units, first, begun.elapsed()));
            }
        });
        Self(Some(alive))
    }
}

/// Formats `12 of 40 cells after 60 s, about 140 s left: alice@20000`. `first` units were done before the start: the estimate of
/// the time left leaves them out.
pub fn line(bar: &ProgressBar, units: &str, first: u64, elapsed: Duration) -> String {
    let (done, seconds) = (bar.position(), elapsed.as_secs_f64());
    let (all, left) = match bar.length() {
        None => (String::new(), String::new()),
        Some(all) if done > first => {
            let left = seconds * all.saturating_sub(done) as f64 / (done - first) as f64;
            (format!(" of {all}"), format!(", about {left:.0} s left"))
        }
        Some(all) => (format!(" of {all}"), String::new()),
    };
    let about = shown(&bar.message());
    let about = if about.is_empty() { about } else { format!(": {about}") };
    format!("{done}{all} {units} after {seconds:.0} s{left}{about}")
}

/// Progress through tensors, counted in elements.
pub struct Progress {
    bar: ProgressBar,
    start: Instant,
    /// True if the bar may appear.
    shown: bool,
    lines: Lines,
}

impl Progress {
    /// Makes a bar of `elements`, which appears after two seconds, unless `hidden` is true or standard error is not a terminal.
    pub fn new(elements: usize, hidden: bool) -> Self {
        let template = "{bar:40} {percent:>3} %  {elapsed} (about {eta} left)  {msg}";
        let bar = bar(Some(elements), template, true);
        Self {
            lines: Lines::new(&bar, "elements", hidden),
            bar,
            start: Instant::now(),
            shown: !hidden && std::io::stderr().is_terminal(),
        }
    }

    /// Hides the bar while `print` prints.
    pub fn apart<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    /// Advances the bar by `elements` elements of the tensor `name`.
    pub fn advance(&mut self, elements: usize, name: &str) {
        self.show(self.bar.position() + elements as u64, name);
    }

    /// Runs `work`, and shows its progress through a tensor of `elements` elements. `work` counts finished elements in its
    /// argument; a count above `elements` is shown as `elements`.
    pub fn watch<T: Send>(&mut self, name: &str, elements: usize, work: impl FnOnce(&AtomicUsize) -> T + Send) -> T {
        let (before, done) = (self.bar.position(), AtomicUsize::new(0));
        let result = match self.shown || self.lines.0.is_some() {
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
        self.bar.set_message(shown(name));
        self.bar.set_position(position);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
