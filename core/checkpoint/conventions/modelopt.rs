//! NVIDIA's TensorRT Model Optimizer.

use super::{Convention, PLAIN, not_converted, number};
use crate::checkpoint::config::{Scheme, Section};
use crate::formats::Group;

pub const CONVENTION: Convention = Convention {
    name: "ModelOpt",
    methods: &["modelopt", "modelopt_fp4"],
    writers: &["ModelOpt; compressed-tensors, not packed"],
    lists_all: true,
    scheme,
    ignored: |section| {
        let mut modules = not_converted(section, "exclude_modules")?;
        modules.extend(not_converted(section, "ignore")?);
        Ok(modules)
    },
    doc: "`weight_scale_2` multiplies: it is amax of the tensor / (448 · 6). `hf_quant_config.json` says the same as \
          `config.json`, and each of them may be missing.",
    ..PLAIN
};

fn scheme(section: &Section, _module: &str) -> Result<Option<Scheme>, String> {
    let Some(algorithm) = section.text("quant_algo") else {
        return Ok(None);
    };
    let size = number(section, "group_size")?.and_then(|size| usize::try_from(size).ok());
    let (element, bits, group) = match algorithm {
        "NVFP4" | "NVFP4_AWQ" | "W4A16_NVFP4" => ("e2m1", 4, Some(Group::block(size.unwrap_or(16)))),
        "MXFP4" => ("e2m1", 4, Some(Group::block(size.unwrap_or(32)))),
        "MXFP8" => ("e4m3", 8, Some(Group::block(size.unwrap_or(32)))),
        "FP8" => ("e4m3", 8, Some(Group::Tensor)),
        "FP8_PER_CHANNEL_PER_TOKEN" => ("e4m3", 8, Some(Group::Token)),
        "FP8_PB_WO" => ("e4m3", 8, Some(Group::Tile { rows: 128, cols: 128 })),
        // Each layer has its own, which tensors tell.
        "MIXED_PRECISION" => return Ok(None),
        other => {
            return Err(format!(
                "key 'quant_algo' is '{other}', expected NVFP4, MXFP4, MXFP8, FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO or \
                 MIXED_PRECISION"
            ));
        }
    };
    Ok(Some(Scheme {
        element,
        bits,
        group,
        symmetric: None,
    }))
}
