//! A bar on standard error for what takes long.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Commands that end sooner show no bar.
const PATIENCE: Duration = Duration::from_secs(2);

/// Progress through tensors, counted in elements.
pub struct Progress {
    bar: ProgressBar,
    /// When it is to appear; none if it never is or already has.
    from: Option<Instant>,
}

impl Progress {
    /// A bar of `elements`, which appears after two seconds, unless it is `hidden` or standard error is no terminal.
    pub fn new(elements: usize, hidden: bool) -> Self {
        let style = ProgressStyle::with_template("{bar:40} {percent:>3} %  {elapsed} (about {eta} left)  {msg}");
        let bar = ProgressBar::with_draw_target(Some(elements as u64), ProgressDrawTarget::hidden())
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let shown = !hidden && std::io::stderr().is_terminal();
        Self {
            bar,
            from: shown.then(|| Instant::now() + PATIENCE),
        }
    }

    /// Goes on by so many elements of the tensor of that name.
    pub fn advance(&mut self, elements: usize, name: &str) {
        if self.from.is_some_and(|from| Instant::now() >= from) {
            self.from = None;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_message(name.replace(char::is_control, " "));
        self.bar.inc(elements as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
