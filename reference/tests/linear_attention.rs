//! Linear attention against other implementations, and against its own laws. `fixtures/linear-attention/README.md` says what
//! the fixtures are.

#[path = "linear_attention/errors.rs"]
mod errors;
#[path = "linear_attention/fixtures.rs"]
mod fixtures;
#[path = "linear_attention/gates.rs"]
mod gates;
mod measure;
#[path = "linear_attention/properties.rs"]
mod properties;
#[path = "linear_attention/rounding.rs"]
mod rounding;
#[path = "linear_attention/support.rs"]
mod support;
#[path = "linear_attention/traps.rs"]
mod traps;
