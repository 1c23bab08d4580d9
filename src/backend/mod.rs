//! Where a candidate's numbers come from.

pub mod rounding;
