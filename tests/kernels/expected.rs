//! Expected outputs and their bounds.

#[path = "expected/drift.rs"]
mod drift;
#[path = "expected/gated_delta.rs"]
mod gated_delta;
#[path = "expected/models.rs"]
mod models;
#[path = "expected/moe.rs"]
mod moe;
#[path = "expected/routing.rs"]
mod routing;
#[path = "expected/top_k.rs"]
mod top_k;
#[path = "expected/varied.rs"]
mod varied;
