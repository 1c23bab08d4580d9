//! Operations against their formulas, one by one.

mod attention;
mod grouped_attention;
mod linear;
mod projection;
mod rope;
mod rope_half;
mod short_conv;
mod sigmoid_router;
mod top_k;
