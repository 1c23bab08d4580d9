use safetensors::Dtype;
use ulplab::formats::{Format, GlobalScale};

use super::{accepts_only, buffer, problems, stored, values};

/// Formats of the cases, by key.
pub fn format(key: &str) -> Format {
    let text = match key {
        "fp8_b128_f32" => "e4m3/b128:f32(deepgemm)",
        "fp8_b64_f32" => "e4m3/b64:f32(deepgemm)",
        "fp8_b128" => "e4m3/b128:e8m0(act_quant)",
        "fp8_b64" => "e4m3/b64:e8m0(act_quant)",
        "fp8_b128_rceil" => "e4m3/b128:e8m0(rceil)",
        "fp8_b64_rceil" => "e4m3/b64:e8m0(rceil)",
        "mxfp8" => "e4m3/b32:e8m0(rceil)",
        "mxfp4" => "e2m1/b32:e8m0(fp4_act_quant)",
        "nvfp4" => "e2m1/b16:e4m3(te)/t:f32",
        other => panic!("{other}"),
    };
    text.parse().unwrap()
}

#[test]
fn quantize_wants_the_bytes_of_the_formats() {
    let all = problems("quantize");
    assert!(all.len() > 50);
    for (case, problem) in &all {
        let format = format(case.key("format"));
        let x = values(problem, "x");
        let find = case.dim("FIND") == 1;
        let given = values(problem, "amax");
        let global = if find {
            GlobalScale::Own
        } else {
            GlobalScale::Stored(&given)
        };
        let encoded = format.encode(&x, case.dim("C"), global);
        let mut outputs = vec![
            ("data", encoded.part("data").to_vec()),
            ("scale", encoded.part("scale").to_vec()),
        ];
        if find {
            outputs.push(("amax", encoded.part("global").to_vec()));
        }
        accepts_only(case, problem, &outputs);
    }
}

#[test]
fn dequantize_wants_the_values_of_the_codes() {
    for (case, problem) in &problems("dequantize") {
        let format = format(case.key("format"));
        let (rows, cols) = (case.dim("T"), case.dim("C"));
        let mut parts = format.parts(rows, cols);
        for part in &mut parts {
            let name = if part.name == "global" { "amax" } else { part.name };
            part.bytes = problem
                .buffers
                .iter()
                .find(|buffer| buffer.name == name)
                .unwrap()
                .bytes
                .clone();
        }
        let mut y = vec![0.0; rows * cols];
        format.decode(&ulplab::formats::Encoded { rows, cols, parts }, &mut y);
        let output = buffer(problem, "y");
        accepts_only(case, problem, &[("y", stored(output.dtype == Dtype::BF16, &y))]);
    }
}
