//! What judges: formats, layouts, metrics, parity.

#[path = "formats.rs"]
mod formats;
#[path = "layouts.rs"]
mod layouts;
#[path = "metrics.rs"]
mod metrics;
#[path = "parity.rs"]
mod parity;
