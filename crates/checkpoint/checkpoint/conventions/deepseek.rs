//! DeepSeek, and FP8 checkpoints that follow it.

use super::{Convention, PLAIN, STATIC};
use crate::checkpoint::config::{Scheme, Section};
use ulplab_core::formats::Group;

pub const CONVENTION: Convention = Convention {
    name: "DeepSeek",
    methods: &["fp8", "deepseek_v4_fp8"],
    writers: &["DeepSeek-V3, Qwen3 FP8", "DeepSeek-V4"],
    scheme,
    doc: "`weight_scale_inv` multiplies, whatever its name says: it is amax of the tile / 448. V4 stores `scale` in E8M0 \
          beside `weight`, and its experts in FP4 with blocks of 32 (`expert_dtype`).",
    ..PLAIN
};

fn scheme(section: &Section, module: &str) -> Result<Option<Scheme>, String> {
    let inputs: &[&str] = match section.text("activation_scheme") {
        Some("static") => STATIC,
        _ => &[],
    };
    let of_expert = module.split('.').any(|part| part == "experts");
    if of_expert && section.text("expert_dtype") == Some("fp4") {
        return Ok(Some(Scheme {
            element: "e2m1",
            bits: 4,
            group: Some(Group::block(32)),
            inputs: Some(inputs),
            ..Scheme::default()
        }));
    }
    let sizes = section.value.get("weight_block_size").filter(|sizes| !sizes.is_null());
    let group = match sizes {
        None => None,
        Some(value) => match value.as_array().map(Vec::as_slice) {
            Some([rows, cols]) => match (rows.as_u64(), cols.as_u64()) {
                (Some(rows @ 1..), Some(cols @ 1..)) => Some(Group::Tile {
                    rows: rows as usize,
                    cols: cols as usize,
                }),
                _ => return Err(format!("key 'weight_block_size' is {value}, expected two sizes")),
            },
            _ => return Err(format!("key 'weight_block_size' is {value}, expected two sizes")),
        },
    };
    Ok(Some(Scheme {
        element: "e4m3",
        bits: 8,
        group,
        inputs: Some(inputs),
        ..Scheme::default()
    }))
}
