//! Where the numbers of a candidate come from, and what theory says of them.

#[macro_use]
extern crate ulplab_run;

pub mod compositions;
pub mod cuda;
pub mod program;
pub mod recipe;
pub mod rounding;
pub mod stand_in;
