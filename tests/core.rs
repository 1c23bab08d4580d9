//! What judges: formats, layouts, metrics, parity.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what was measured is shown with --nocapture"
)]

#[path = "core/accumulator.rs"]
mod accumulator;
#[path = "core/close.rs"]
mod close;
#[path = "formats.rs"]
mod formats;
#[path = "core/input.rs"]
mod input;
#[path = "layouts.rs"]
mod layouts;
#[path = "metrics.rs"]
mod metrics;
#[path = "parity.rs"]
mod parity;
#[path = "core/pattern.rs"]
mod pattern;
#[path = "core/text.rs"]
mod text;
#[path = "core/vacuous.rs"]
mod vacuous;
