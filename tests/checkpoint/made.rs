//! A small checkpoint of each convention, made with the writers of this project.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize_to_file};
use serde_json::{Value, json};
use ulplab_checkpoint::checkpoint::{Checkpoint, Report, Selection};
use ulplab_core::formats::{Format, GlobalScale};

use super::words;

/// Output channels of every matrix.
pub const ROWS: usize = 128;
/// Input channels.
pub const COLS: usize = 256;

/// The largest magnitude of every matrix.
pub const AMAX: f32 = 0.18;

/// A tensor of a file.
pub type Array = (Dtype, Vec<usize>, Vec<u8>);

/// Files of a checkpoint, to be changed before they are written.
#[derive(Clone)]
pub struct Made {
    pub kind: &'static str,
    pub tensors: BTreeMap<String, Array>,
    pub config: Value,
    /// `hf_quant_config.json`.
    pub hf: Option<Value>,
    pub source: BTreeMap<String, Array>,
    /// What is in the index and in no file, and the reverse.
    pub only_in_index: Option<String>,
    pub not_in_index: Option<String>,
}

/// All kinds.
pub const KINDS: &[&str] = &[
    "compressed-tensors nvfp4",
    "compressed-tensors fp8",
    "compressed-tensors int4",
    "ModelOpt nvfp4",
    "ModelOpt fp8",
    "gpt-oss",
    "DeepSeek v3",
    "DeepSeek v4",
    "GPTQ",
    "AWQ",
];

/// The matrices of every checkpoint: gate and up are fused, down is alone.
pub fn matrices() -> Vec<String> {
    let layer = |layer: usize| {
        ["gate_proj", "up_proj", "down_proj"].map(|name| format!("model.layers.{layer}.mlp.{name}.weight"))
    };
    (0..2).flat_map(layer).collect()
}

/// Normal values of a weight's size, the same on every run.
pub fn values(seed: u64) -> Vec<f32> {
    random(seed, ROWS * COLS)
}

/// As many of them, the first the largest.
pub fn random(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let mut values: Vec<f32> = (0..count)
        .map(|_| 0.03 * ((0..12).map(|_| next()).sum::<f32>() - 6.0))
        .collect();
    // The largest of all, so that fused matrices have one scale.
    values[0] = AMAX;
    values
}

pub fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// A clean checkpoint of that kind.
pub fn clean(kind: &'static str) -> Made {
    let mut made = Made {
        kind,
        tensors: BTreeMap::new(),
        config: json!({ "model_type": "made", "quantization_config": config(kind) }),
        hf: None,
        source: BTreeMap::new(),
        only_in_index: None,
        not_in_index: None,
    };
    for layer in 0..2 {
        let norm = format!("model.layers.{layer}.input_layernorm.weight");
        made.tensors.insert(norm, (Dtype::F32, vec![COLS], f32s(&[1.0; COLS])));
    }
    made.tensors.insert(
        "lm_head.weight".into(),
        (Dtype::F32, vec![2, COLS], f32s(&[0.01; 2 * COLS])),
    );
    for (seed, name) in matrices().iter().enumerate() {
        let x = values(seed as u64);
        made.source
            .insert(name.clone(), (Dtype::F32, vec![ROWS, COLS], f32s(&x)));
        made.put_as(kind, name);
    }
    made
}

pub fn config(kind: &str) -> Value {
    let compressed = |format: &str, weights: Value| {
        json!({
            "quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head", "re:.*norm"],
            "config_groups": { "group_0": { "targets": ["Linear"], "weights": weights } },
        })
    };
    match kind {
        "compressed-tensors nvfp4" => compressed(
            "nvfp4-pack-quantized",
            json!({ "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": true }),
        ),
        "compressed-tensors fp8" => compressed(
            "float-quantized",
            json!({ "num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true }),
        ),
        "compressed-tensors int4" => compressed(
            "pack-quantized",
            json!({ "num_bits": 4, "type": "int", "strategy": "group", "group_size": words::GROUP, "symmetric": false }),
        ),
        "ModelOpt nvfp4" => {
            json!({ "quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"] })
        }
        "ModelOpt fp8" => json!({ "quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"] }),
        "gpt-oss" => json!({ "quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"] }),
        "DeepSeek v3" => {
            json!({ "quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"] })
        }
        "DeepSeek v4" => json!({ "quant_method": "fp8", "expert_dtype": "fp8", "weight_block_size": [128, 128] }),
        "GPTQ" => {
            json!({ "quant_method": "gptq", "bits": 4, "group_size": words::GROUP, "sym": true, "desc_act": false })
        }
        "AWQ" => {
            json!({ "quant_method": "awq", "bits": 4, "group_size": words::GROUP, "zero_point": true, "version": "gemm" })
        }
        other => unreachable!("{other}"),
    }
}

impl Made {
    /// The values of a matrix of the source, and its input channels.
    pub fn source_of(&self, name: &str) -> (Vec<f32>, usize) {
        let (_, shape, bytes) = &self.source[name];
        let values = bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x));
        (values.collect(), shape[1])
    }

    /// Writes a matrix of the source as that kind does, in place of what was there.
    pub fn put_as(&mut self, kind: &str, name: &str) {
        self.parts(name).iter().for_each(|part| drop(self.tensors.remove(part)));
        let (x, cols) = self.source_of(name);
        for (name, array) in parts(kind, name, &x, cols) {
            self.tensors.insert(name, array);
        }
    }

    /// The name of a part of a matrix, if it is there.
    pub fn part(&self, name: &str, part: &str) -> Option<String> {
        let module = name.strip_suffix(".weight").unwrap();
        let endings: &[&str] = match part {
            "codes" => &[".weight_packed", ".weight_blocks", ".qweight", ".weight"],
            "scale" => &[
                ".weight_scale",
                ".weight_scale_inv",
                ".weight_scales",
                ".scale",
                ".scales",
            ],
            "global" => &[".weight_global_scale", ".weight_scale_2"],
            "zero" => &[".qzeros", ".weight_zero_point"],
            "index" => &[".g_idx"],
            "activation" => &[".input_scale", ".input_global_scale"],
            other => unreachable!("{other}"),
        };
        let names = endings.iter().map(|ending| format!("{module}{ending}"));
        names.into_iter().find(|name| self.tensors.contains_key(name))
    }

    /// The names of all parts of a matrix.
    pub fn parts(&self, name: &str) -> Vec<String> {
        let module = format!("{}.", name.strip_suffix(".weight").unwrap());
        self.tensors
            .keys()
            .filter(|tensor| tensor.starts_with(&module))
            .cloned()
            .collect()
    }

    /// Writes two shards with an index and a configuration into a folder.
    pub fn save(&self, folder: &Path) {
        let files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        let shard = |name: &str| files[usize::from(name.contains("layers.1"))];
        let mut map: BTreeMap<&str, &str> = self.tensors.keys().map(|name| (name.as_str(), shard(name))).collect();
        map.extend(self.only_in_index.iter().map(|name| (name.as_str(), shard(name))));
        map.retain(|name, _| self.not_in_index.as_deref() != Some(name));
        for file in files {
            write(
                &folder.join(file),
                self.tensors.iter().filter(|(name, _)| shard(name) == file),
            );
        }
        let index = json!({ "weight_map": map });
        std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
        std::fs::write(folder.join("config.json"), self.config.to_string()).unwrap();
        if let Some(hf) = &self.hf {
            std::fs::write(folder.join("hf_quant_config.json"), hf.to_string()).unwrap();
        }
    }

    /// Writes and judges it, beside its source if that is asked for.
    pub fn judge(&self, beside: bool) -> Report {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model");
        std::fs::create_dir(&model).unwrap();
        self.save(&model);
        let source = beside.then(|| {
            let path = folder.path().join("source.safetensors");
            write(&path, self.source.iter());
            Checkpoint::source(&path).unwrap()
        });
        let selection = Selection {
            source: source.as_ref(),
            ..Selection::default()
        };
        Checkpoint::open(&model)
            .unwrap()
            .judge(&selection, |_| {}, |_, _| {})
            .unwrap()
    }
}

/// The tensors of a matrix.
pub fn parts(kind: &str, name: &str, x: &[f32], cols: usize) -> Vec<(String, Array)> {
    let (module, rows) = (name.strip_suffix(".weight").unwrap_or(name), x.len() / cols);
    let mut parts = Vec::new();
    let mut add = |name: String, dtype: Dtype, shape: &[usize], bytes: Vec<u8>| {
        parts.push((name, (dtype, shape.to_vec(), bytes)));
    };
    let encode = |format: &str| {
        let format: Format = format.parse().unwrap();
        // Gate and up have one global scale.
        let amax = if format.global.is_some() {
            GlobalScale::Amax(AMAX)
        } else {
            GlobalScale::Own
        };
        let encoded = format.encode(x, cols, amax);
        ["data", "scale", "global"].map(|part| encoded.part(part).to_vec())
    };
    let input = f32s(&[0.01]);
    match kind {
        "compressed-tensors nvfp4" => {
            let [data, scale, global] = encode("e2m1/b16:e4m3(vllm)/t:f32");
            add(format!("{name}_packed"), Dtype::U8, &[rows, cols / 2], data);
            add(format!("{name}_scale"), Dtype::F8_E4M3, &[rows, cols / 16], scale);
            add(format!("{name}_global_scale"), Dtype::F32, &[1], global);
            add(format!("{module}.input_global_scale"), Dtype::F32, &[1], f32s(&[100.0]));
        }
        "compressed-tensors mxfp4" => {
            let [data, scale, _] = encode("e2m1/b32:e8m0");
            add(format!("{name}_packed"), Dtype::U8, &[rows, cols / 2], data);
            add(format!("{name}_scale"), Dtype::U8, &[rows, cols / 32], scale);
        }
        "compressed-tensors fp8" | "FBGEMM" | "ModelOpt fp8 channel" => {
            let [data, scale, _] = encode("e4m3/token:f32");
            let shape = [rows, 1];
            // ModelOpt writes no dimension of one.
            let shape = if kind == "ModelOpt fp8 channel" {
                &shape[..1]
            } else {
                &shape
            };
            add(name.into(), Dtype::F8_E4M3, &[rows, cols], data);
            add(format!("{name}_scale"), Dtype::F32, shape, scale);
        }
        "compressed-tensors int8" => {
            let [data, scale, _] = encode("int8/token:f32");
            add(name.into(), Dtype::I8, &[rows, cols], data);
            add(format!("{name}_scale"), Dtype::F32, &[rows, 1], scale);
        }
        "compressed-tensors int4" | "compressed-tensors int4 symmetric" | "compressed-tensors int8 in words" => {
            let (bits, symmetric) = (
                if kind.contains("int8") { 8 } else { 4 },
                kind != "compressed-tensors int4",
            );
            let integers = words::quantize(x, cols, bits, symmetric);
            let (codes, zeros) = integers.rows();
            let (groups, per) = (integers.groups(), 32 / bits);
            add(format!("{name}_packed"), Dtype::I32, &[rows, cols.div_ceil(per)], codes);
            let scales = f32s(&integers.scales);
            add(format!("{name}_scale"), Dtype::F32, &[rows, groups], scales);
            if !symmetric {
                add(format!("{name}_zero_point"), Dtype::I32, &[rows / per, groups], zeros);
            }
            let shape = [rows as i64, cols as i64]
                .iter()
                .flat_map(|size| size.to_le_bytes())
                .collect();
            add(format!("{name}_shape"), Dtype::I64, &[2], shape);
        }
        "ModelOpt nvfp4" | "ModelOpt nvfp4 weights" => {
            let [data, scale, global] = encode("e2m1/b16:e4m3(modelopt)/t:f32");
            add(name.into(), Dtype::U8, &[rows, cols / 2], data);
            add(format!("{name}_scale"), Dtype::F8_E4M3, &[rows, cols / 16], scale);
            add(format!("{name}_scale_2"), Dtype::F32, &[], global);
            if kind == "ModelOpt nvfp4" {
                add(format!("{module}.input_scale"), Dtype::F32, &[], input);
            }
        }
        "ModelOpt fp8" | "Quark fp8" | "Mistral fp8" => {
            let [data, scale, _] = encode("e4m3/t:f32");
            let (ending, activation) = match kind {
                "Mistral fp8" => ("_scale_inv", "activation_scale"),
                _ => ("_scale", "input_scale"),
            };
            add(name.into(), Dtype::F8_E4M3, &[rows, cols], data);
            add(format!("{name}{ending}"), Dtype::F32, &[], scale);
            add(format!("{module}.{activation}"), Dtype::F32, &[], input);
        }
        "ModelOpt mxfp8" => {
            let [data, scale, _] = encode("e4m3/b32:e8m0");
            add(name.into(), Dtype::F8_E4M3, &[rows, cols], data);
            add(format!("{name}_scale"), Dtype::U8, &[rows, cols / 32], scale);
        }
        "Quark mxfp4" => {
            let [data, scale, _] = encode("e2m1/b32:e8m0");
            add(name.into(), Dtype::U8, &[rows, cols / 2], data);
            add(format!("{name}_scale"), Dtype::U8, &[rows, cols / 32], scale);
        }
        "gpt-oss" => {
            let [data, scale, _] = encode("e2m1/b32:e8m0");
            add(format!("{name}_blocks"), Dtype::U8, &[rows, cols / 32, 16], data);
            add(format!("{name}_scales"), Dtype::U8, &[rows, cols / 32], scale);
        }
        "DeepSeek v3" | "compressed-tensors fp8 tiles" | "ModelOpt fp8 tiles" => {
            let [data, scale, _] = encode("e4m3/b128x128:f32");
            let ending = if kind == "DeepSeek v3" { "_scale_inv" } else { "_scale" };
            let tiles = [rows.div_ceil(128), cols.div_ceil(128)];
            add(name.into(), Dtype::F8_E4M3, &[rows, cols], data);
            add(format!("{name}{ending}"), Dtype::F32, &tiles, scale);
        }
        "DeepSeek v4" => {
            let [data, scale, _] = encode("e4m3/b128x128:e8m0");
            add(name.into(), Dtype::F8_E4M3, &[rows, cols], data);
            let tiles = [rows.div_ceil(128), cols.div_ceil(128)];
            add(format!("{module}.scale"), Dtype::F8_E8M0, &tiles, scale);
        }
        "GPTQ" | "GPTQ 8" | "GPTQ v2" => {
            let bits = if kind == "GPTQ 8" { 8 } else { 4 };
            let integers = words::quantize(x, cols, bits, true);
            put_gptq(&mut add, module, &integers, u32::from(kind != "GPTQ v2"));
        }
        "AWQ" => put_awq(&mut add, module, &words::quantize(x, cols, 4, false)),
        other => unreachable!("{other}"),
    }
    parts
}

/// Adds the tensors of a matrix as AutoGPTQ names them.
pub fn put_gptq(
    add: &mut dyn FnMut(String, Dtype, &[usize], Vec<u8>),
    module: &str,
    integers: &words::Integers,
    offset: u32,
) {
    let (codes, zeros) = integers.gptq(offset);
    let (rows, cols, groups, per) = (integers.rows, integers.cols, integers.groups(), 32 / integers.bits);
    add(format!("{module}.qweight"), Dtype::I32, &[cols / per, rows], codes);
    add(
        format!("{module}.qzeros"),
        Dtype::I32,
        &[groups, rows.div_ceil(per)],
        zeros,
    );
    add(
        format!("{module}.scales"),
        Dtype::F16,
        &[groups, rows],
        integers.turned_scales(),
    );
    let index = (0..cols).flat_map(|input| ((input / integers.group) as i32).to_le_bytes());
    add(format!("{module}.g_idx"), Dtype::I32, &[cols], index.collect());
}

/// Adds the tensors of a matrix as AutoAWQ names them.
pub fn put_awq(add: &mut dyn FnMut(String, Dtype, &[usize], Vec<u8>), module: &str, integers: &words::Integers) {
    let (codes, zeros) = integers.awq();
    let (rows, cols, groups) = (integers.rows, integers.cols, integers.groups());
    add(format!("{module}.qweight"), Dtype::I32, &[cols, rows / 8], codes);
    add(format!("{module}.qzeros"), Dtype::I32, &[groups, rows / 8], zeros);
    add(
        format!("{module}.scales"),
        Dtype::F16,
        &[groups, rows],
        integers.turned_scales(),
    );
}

pub fn write<'a>(path: &Path, tensors: impl Iterator<Item = (&'a String, &'a Array)>) {
    let view = |(name, (dtype, shape, bytes)): (&'a String, &'a Array)| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    };
    serialize_to_file(tensors.map(view), None, path).unwrap();
}
