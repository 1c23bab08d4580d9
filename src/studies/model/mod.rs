//! A whole model, rounded at its sites and compared with itself.

pub mod probe;
