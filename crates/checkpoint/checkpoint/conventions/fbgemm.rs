//! Meta's FBGEMM: FP8 with a scale for each output channel. Activations are quantized dynamically.

use super::{Convention, PLAIN, within};
use crate::checkpoint::config::Scheme;
use ulplab_core::formats::Group;

pub const CONVENTION: Convention = Convention {
    name: "FBGEMM",
    methods: &["fbgemm_fp8"],
    writers: &["ModelOpt; compressed-tensors, not packed"],
    schemes: &[|_, _| Ok(Some(Scheme::new("e4m3", 8, Some(Group::Token), Some(&[]))))],
    ignored: |section| within(section, "modules_to_not_convert"),
    doc: "FP8 with one scale for each output channel.",
    ..PLAIN
};
