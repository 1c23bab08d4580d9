//! Weights in 4 bits that a published checkpoint has.

use reference::paths::{self, Weights};
use safetensors::Dtype;
use serde_json::Value;

use super::saved::{configs, opened, stored};
use super::{fails, tensor};

/// DeepSeek-V4's published experts: pairs of E2M1 with a scale for 32 columns.
#[test]
fn packed_experts_are_read() {
    let mut keys = configs()["dsv4"].clone();
    for (key, size) in [("hidden_size", 64), ("moe_intermediate_size", 32)] {
        keys.insert(key.into(), size.into());
    }
    let config = paths::read(&Value::Object(keys.clone()).to_string()).unwrap();
    let mut all = stored("deepseek_v4", &*config).remove(1).1;
    let mut scales = Vec::new();
    for one in all
        .iter_mut()
        .filter(|tensor| tensor.name.contains(".experts.") && !tensor.name.contains("shared"))
    {
        let [rows, cols] = one.shape[..].try_into().unwrap();
        // 0.5 in the first of two columns, −6 in the second.
        *one = tensor(&one.name, Dtype::I8, &[rows, cols / 2], vec![0xf1; rows * cols / 2]);
        let name = one.name.replace(".weight", ".scale");
        scales.push(tensor(
            &name,
            Dtype::F8_E8M0,
            &[rows, cols / 32],
            vec![126; rows * cols / 32],
        ));
    }
    all.extend(scales);
    let mut read = opened(&keys, &all).unwrap();
    assert!(read.notes.is_empty(), "{:?}", read.notes);
    let stack = read
        .floats("model.layers.2.mlp.experts.gate_up_proj", &[8, 64, 64])
        .unwrap();
    assert!(stack.chunks_exact(2).all(|pair| pair == [0.25, -3.0]));
    // Without a scale they are bytes of nothing.
    let lost = all
        .iter()
        .position(|tensor| tensor.name == "layers.2.ffn.experts.3.w1.scale")
        .unwrap();
    all.remove(lost);
    fails(opened(&keys, &all), &["layers.2.mlp.experts.3.gate_proj.weight", "I8"]);
}
