//! Where the numbers of a candidate come from, and what theory says of them.

pub mod checks;
pub mod cuda;
pub mod prefill;
pub mod program;
pub mod rounding;
pub mod theory;
