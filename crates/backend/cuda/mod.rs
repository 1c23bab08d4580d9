//! Compiles CUDA C++ kernels at run time, runs them on buffers between guard bands, and times them. Each kernel file has a header
//! that describes its kernels.

pub mod cache;
mod compositions;
mod copies;
pub mod cubin;
pub mod device;
pub mod expr;
mod folded;
pub mod graph;
pub mod header;
pub mod matmul;
pub mod plan;
mod repeat;
pub mod run;
pub mod runner;
pub mod session;
pub mod shipped;
pub mod time;
pub mod toolkit;
pub mod turn;
mod units;
mod watchdog;

pub use compositions::{Callable, Composed, Composition, Compositions};
pub use device::Device;
pub use header::{Mutant, Source, Variant};
pub use plan::Plan;
pub use session::Session;
pub use toolkit::Toolkit;
