//! What judges: checkpoints, formats, layouts, metrics, parity.

#[path = "checkpoint.rs"]
mod checkpoint;
#[path = "formats.rs"]
mod formats;
#[path = "layouts.rs"]
mod layouts;
#[path = "metrics.rs"]
mod metrics;
#[path = "parity.rs"]
mod parity;
