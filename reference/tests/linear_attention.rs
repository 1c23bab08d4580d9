//! Linear attention against other implementations, and against its own laws. `fixtures/linear-attention/README.md` says what
//! the fixtures are.

mod errors;
mod fixtures;
mod gates;
mod inverse;
mod properties;
mod rounding;
mod support;
mod traps;
