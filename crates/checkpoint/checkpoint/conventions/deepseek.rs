//! Checkpoints of DeepSeek, and other FP8 checkpoints with the same names of tensors and keys.

use super::{Convention, PLAIN, STATIC};
use crate::checkpoint::config::{Scheme, Section, given};
use ulplab_core::formats::Group;

pub const CONVENTION: Convention = Convention {
    name: "DeepSeek",
    methods: &["fp8", "deepseek_v4_fp8"],
    writers: &["DeepSeek-V3, Qwen3 FP8", "DeepSeek-V4"],
    schemes: &[scheme],
    doc: "`weight_scale_inv` multiplies, whatever its name says: it is amax of the tile / 448. V4 stores `scale` in E8M0 \
          beside `weight`, and its experts in FP4 with blocks of 32 (`expert_dtype`).",
    ..PLAIN
};

fn scheme(section: &Section, module: &str) -> Result<Option<Scheme>, String> {
    let inputs = Some(match section.text("activation_scheme") {
        Some("static") => STATIC,
        _ => &[],
    });
    let of_expert = module.split('.').any(|part| part == "experts");
    if of_expert && section.text("expert_dtype") == Some("fp4") {
        return Ok(Some(Scheme::new("e2m1", 4, Some(Group::block(32)), inputs)));
    }
    let group = given(&section.value, "weight_block_size").map(|value| {
        let size = |at: usize| value.get(at)?.as_u64().filter(|size| *size > 0);
        let two = value.as_array().is_some_and(|sizes| sizes.len() == 2);
        match size(0).zip(size(1)).filter(|_| two) {
            Some((rows, cols)) => Ok(Group::Tile {
                rows: rows as usize,
                cols: cols as usize,
            }),
            None => Err(format!("key 'weight_block_size' is {value}, expected two sizes")),
        }
    });
    Ok(Some(Scheme::new("e4m3", 8, group.transpose()?, inputs)))
}
