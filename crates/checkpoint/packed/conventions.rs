//! Tensor names and shapes that other programs use for the codes, scales and zero points of a quantized tensor.

use safetensors::Dtype;

use super::{Buffers, Manifest, Recognised, Stack, block_format};
use ulplab_core::error::Result;
use ulplab_core::formats::{Format, Group};
use ulplab_core::tensorfile::{Tensor, TensorFile};

/// A naming convention for the codes, scales and zero points of a quantized tensor: a common stem with different endings.
#[derive(Debug)]
pub struct Convention {
    /// The programs that use this convention.
    pub writer: &'static str,
    /// Ending of the name of the codes.
    pub codes: &'static str,
    /// Ending of the name of the scales.
    pub scale: &'static str,
    /// Ending of the name of the global scale; `None` if the writer stores none.
    pub global: Option<&'static str>,
    /// Ending of the name of the zero points.
    pub zero: &'static str,
    /// Ending of the name of the quantized tensor itself, in place of the ending of its codes.
    pub own: &'static str,
    /// Name of the NVFP4 rule that defines how to decode the global scale of this writer. The writer may choose the values of
    /// scales by another rule.
    pub rule: Option<&'static str>,
    /// True if the codes have the shape `[…, K / 32, 16]` (the 16 bytes of a block per scale) instead of `[…, K / 2]`.
    pub blocked: bool,
    /// Formats that files of this convention are known to hold, so that users need not state the format.
    pub kinds: &'static [Kind],
}

/// A format that is recognised from the types of its tensors and the shape of its scales.
#[derive(Debug, PartialEq)]
pub struct Kind {
    /// Name or string of the format.
    pub format: &'static str,
    /// Types that the codes may have in the file.
    pub codes: &'static [Dtype],
    /// Types that the scales may have in the file.
    pub scale: &'static [Dtype],
}

const BYTES: &[Dtype] = &[Dtype::U8, Dtype::I8, Dtype::F4];
const POWERS: &[Dtype] = &[Dtype::F8_E8M0, Dtype::U8];
const FLOATS: &[Dtype] = &[Dtype::F32, Dtype::BF16, Dtype::F16];

const NVFP4: Kind = kind("nvfp4", BYTES, &[Dtype::F8_E4M3]);
const MXFP4: Kind = kind("mxfp4", BYTES, POWERS);
const MXFP8: Kind = fp8("mxfp8", POWERS);
const FP8_TILES_POWER: Kind = fp8("e4m3/b128x128:e8m0", &[Dtype::F8_E8M0]);
const FP8_TENSOR: Kind = fp8("fp8_tensor", FLOATS);
const FP8_ROWS: Kind = fp8("fp8_token", FLOATS);
const FP8_TILES: Kind = fp8("fp8_b128x128", FLOATS);
const FP8_BLOCKS: Kind = fp8("fp8_b128_f32", FLOATS);
const INT8_ROWS: Kind = kind("int8_token", &[Dtype::I8], FLOATS);

const fn kind(format: &'static str, codes: &'static [Dtype], scale: &'static [Dtype]) -> Kind {
    Kind { format, codes, scale }
}

const fn fp8(format: &'static str, scale: &'static [Dtype]) -> Kind {
    kind(format, &[Dtype::F8_E4M3], scale)
}

const PLAIN: Convention = Convention {
    writer: "",
    codes: "",
    scale: "_scale",
    global: None,
    zero: "_zero_point",
    own: "",
    rule: None,
    blocked: false,
    kinds: &[],
};

/// All conventions, in order of precedence: a tensor of codes belongs to the first convention whose scales are also in the file.
pub const FILE_NAMES: &[Convention] = &[
    Convention {
        writer: "ulplab",
        codes: ".data",
        scale: ".scale",
        global: Some(".global"),
        zero: ".zero",
        ..PLAIN
    },
    Convention {
        writer: "compressed-tensors (llm-compressor, vLLM), packed",
        codes: "_packed",
        global: Some("_global_scale"),
        rule: Some("vllm"),
        kinds: &[NVFP4, MXFP4],
        ..PLAIN
    },
    Convention {
        writer: "gpt-oss",
        codes: "_blocks",
        scale: "_scales",
        blocked: true,
        kinds: &[MXFP4],
        ..PLAIN
    },
    Convention {
        writer: "ModelOpt; compressed-tensors, not packed",
        global: Some("_scale_2"),
        rule: Some("modelopt"),
        kinds: &[
            NVFP4, MXFP4, MXFP8, FP8_TENSOR, FP8_ROWS, FP8_TILES, FP8_BLOCKS, INT8_ROWS,
        ],
        ..PLAIN
    },
    Convention {
        writer: "DeepSeek-V3, Qwen3 FP8",
        scale: "_scale_inv",
        global: Some("_scale_2"),
        kinds: &[FP8_TILES_POWER, FP8_TILES, FP8_TENSOR],
        ..PLAIN
    },
    Convention {
        writer: "DeepSeek-V4",
        codes: ".weight",
        scale: ".scale",
        own: ".weight",
        kinds: &[FP8_TILES_POWER, FP8_TILES, MXFP4],
        ..PLAIN
    },
    Convention {
        writer: "torchao",
        codes: ".qdata",
        scale: ".scale",
        global: Some(".per_tensor_scale"),
        rule: Some("torchao"),
        ..PLAIN
    },
    Convention {
        writer: "dumps of kernels",
        codes: ".q",
        scale: ".scale",
        global: Some(".global_scale"),
        ..PLAIN
    },
];

impl Convention {
    /// Returns the quantized tensor whose codes are `tensor`, if its names follow this convention. `manifest` is the record of
    /// `ulplab quantize` in the file's metadata.
    pub(super) fn recognise<'a>(
        &'static self,
        file: &'a TensorFile,
        tensor: Tensor<'a>,
        manifest: &Manifest,
    ) -> Option<Recognised<'a>> {
        let base = tensor.name.strip_suffix(self.codes)?;
        let get = |ending: &str| file.get(&format!("{base}{ending}"));
        let (name, scale) = (format!("{base}{}", self.own), get(self.scale));
        // A norm that is not quantized may also have tensors `x.weight` and `x.scale`. So where codes have the name of the tensor
        // itself, reject f16, bf16, f32 and f64.
        let codes = self.codes != self.own || !tensor.is_floating();
        let here = (scale.is_some() && codes) || (self.writer == "ulplab" && manifest.tensors.contains_key(&name));
        here.then(|| {
            let buffers = Buffers {
                data: tensor,
                scale,
                global: self.global.and_then(get),
                zero: get(self.zero),
                blocked: self.blocked,
            };
            (name, buffers, self)
        })
    }

    /// Returns the words "the name '…'", for messages about the source that defines how scales are decoded. They quote the tensor
    /// name that defines how to decode the scales of `format`; `None` if no tensor name does.
    pub(super) fn says(&self, format: &Format, buffers: &Buffers) -> Option<String> {
        let name = match format.global {
            // The name of a global scale tells how to decode it only if this convention has an NVFP4 rule.
            Some(_) => buffers.global.filter(|_| self.rule.is_some()),
            None => buffers.scale.filter(|_| !self.kinds.is_empty()),
        };
        name.map(|tensor| format!("the name '{}'", tensor.name))
    }

    /// Finds the format that fits the types and shapes of these tensors; `None` if no known format fits.
    pub(super) fn format(&self, buffers: &Buffers) -> Result<Option<Format>> {
        let Some(scale) = buffers.scale else { return Ok(None) };
        for kind in self.kinds {
            let format = block_format(kind.format)?;
            let types = kind.codes.contains(&buffers.data.dtype) && kind.scale.contains(&scale.dtype);
            let fits = |shape: Vec<usize>| {
                let stack = Stack::new(&shape)?;
                let global = buffers.global.map(|tensor| tensor.bytes.len() / 4);
                let globals = match format.global {
                    Some(Group::Tensor) => global.is_some_and(|found| found == 1 || found == stack.experts),
                    _ => global.is_none(),
                };
                let scales = buffers.scales(&format, &stack, None).ok().flatten();
                // A file may repeat the scale of a tile for each of its rows, which looks like a format with one scale per row:
                // accept only scales that are not repeated.
                (globals && scales.is_some_and(|scales| scales.is_plain())).then_some(())
            };
            if types && buffers.shape(&format).ok().and_then(fits).is_some() {
                return Ok(Some(format));
            }
        }
        Ok(None)
    }
}
