//! OpenAI's gpt-oss: experts in MXFP4.

use super::{Convention, PLAIN};
use crate::checkpoint::config::Scheme;
use ulplab_core::formats::Group;

pub const CONVENTION: Convention = Convention {
    name: "gpt-oss",
    methods: &["mxfp4"],
    writers: &["gpt-oss"],
    schemes: &[|_, _| Ok(Some(Scheme::new("e2m1", 4, Some(Group::block(32)), Some(&[]))))],
    doc: "Codes are `[experts, rows, K / 32, 16]`, with the first code of a byte in its low half; scales are E8M0 in U8.",
    ..PLAIN
};
