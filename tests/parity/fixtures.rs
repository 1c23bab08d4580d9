//! Buffers of real libraries: every one gets the name of its library's rule, and nothing to complain of.

use ulplab::formats::{Format, codec};
use ulplab::parity::{Diagnosis, StoredBytes, diagnose};

use crate::formats::oracle::Fixture;

const INPUTS: [&str; 7] = [
    "edge_f32",
    "gauss_bf16",
    "laplace_f32",
    "naninf_f32",
    "outlier_bf16",
    "student3_f32",
    "zeros_f32",
];

fn format(text: &str) -> Format {
    *codec(text).unwrap().format().unwrap()
}

struct Buffers<'a> {
    inputs: Fixture,
    file: &'a Fixture,
    failures: Vec<String>,
    seen: usize,
}

impl<'a> Buffers<'a> {
    fn new(file: &'a Fixture) -> Self {
        Self {
            inputs: Fixture::open("inputs"),
            file,
            failures: Vec::new(),
            seen: 0,
        }
    }

    fn diagnose(&self, input: &str, text: &str, names: [&str; 3]) -> Option<Diagnosis> {
        let [data, scale, global] = names;
        if !self.file.has(data) {
            return None;
        }
        let (x, cols) = (self.inputs.floats(input), self.inputs.shape(input)[1]);
        let format = format(text);
        let (down, across) = format.scaling.unwrap().group.count(x.len() / cols, cols);
        let size = format.scaling.unwrap().scale.bytes();
        let mut scale = self.file.bytes(scale).to_vec();
        if scale.len() > down * across * size {
            // A scale for every row of a tile.
            let repeat = scale.len() / (down * across * size);
            scale = scale.chunks(across * size).step_by(repeat).flatten().copied().collect();
        }
        let stored = StoredBytes {
            data: self.file.bytes(data),
            scale: &scale,
            global: if global.is_empty() {
                Vec::new()
            } else {
                self.file.floats(global)
            },
            layout: None,
        };
        Some(diagnose(&x, cols, &stored, &format, false))
    }

    /// The rule must be among those that explain every byte.
    fn expect(&mut self, input: &str, text: &str, names: [&str; 3], rule: &str) {
        let Some(diagnosis) = self.diagnose(input, text, names) else {
            return;
        };
        self.seen += 1;
        let named = |name: &String| name == rule || name.starts_with(&format!("{rule} with"));
        let exact: Vec<String> = diagnosis.exact.iter().map(|candidate| candidate.name()).collect();
        if !exact.iter().any(named) || !diagnosis.explained() {
            let (conclusion, order) = (diagnosis.conclusion(), &diagnosis.scale_order);
            let (reference, findings) = (&diagnosis.reference, &diagnosis.findings);
            self.failures.push(format!(
                "{}: {rule}: {conclusion}; {order}; {reference:?}; {findings:?}",
                names[0]
            ));
        }
    }

    fn finish(self, seen: usize) {
        assert!(self.failures.is_empty(), "{}", self.failures.join("\n"));
        assert_eq!(self.seen, seen);
    }
}

#[test]
fn nvfp4() {
    let file = Fixture::open("nvfp4");
    let mut buffers = Buffers::new(&file);
    for input in INPUTS {
        for calibration in ["amax", "amax_div4"] {
            let mut expect = |format: &str, library: &str, global: &str, rule: &str| {
                let name = |what: &str| format!("{input}.{calibration}.{what}");
                let names =
                    [format!("{library}.q"), format!("{library}.scale"), global.to_string()].map(|what| name(&what));
                // ModelOpt divides by scales that underflow, and casts the NaN somehow.
                if (input, library) != ("edge_f32", "modelopt") {
                    buffers.expect(input, format, names.each_ref().map(String::as_str), rule);
                }
            };
            expect("nvfp4", "te1d", "global_amax", "te");
            expect("nvfp4_2d", "te2d", "global_amax", "te");
            expect("nvfp4_token", "terow", "terow.row_amax", "te");
            expect("nvfp4", "ao018.two", "ao018.global_scale", "torchao");
            expect("nvfp4", "modelopt", "modelopt.scale2", "modelopt");
            expect("nvfp4", "vllm", "vllm.global_scale", "vllm");
            for (largest, suffix) in [("448", ""), ("256", "_256")] {
                for error in ["MAE", "MSE"] {
                    for (domain, ending) in [("f32err", ""), ("fp16err", "_f16")] {
                        let rule = format!("te46_{}{suffix}{ending}", error.to_lowercase());
                        expect(
                            "nvfp4",
                            &format!("te46.{largest}.{error}.{domain}"),
                            "global_amax",
                            &rule,
                        );
                    }
                }
            }
        }
        let names = ["q", "scale"].map(|what| format!("{input}.ao018.single.{what}"));
        buffers.expect(input, "nvfp4_single", [&names[0], &names[1], ""], "torchao");
    }
    buffers.finish(8 + 6 + 4 + 7 + 6 + 7 + 64 + 6);
}

#[test]
fn mx() {
    let file = Fixture::open("mx_aomain");
    let mut buffers = Buffers::new(&file);
    for input in INPUTS {
        for element in ["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"] {
            for rule in ["floor", "ceil", "even", "rceil"] {
                let names = ["q", "scale"].map(|what| format!("{input}.{element}.{rule}.{what}"));
                buffers.expect(input, &format!("{element}/b32:e8m0"), [&names[0], &names[1], ""], rule);
            }
        }
    }
    buffers.finish(140);
}

#[test]
fn fp8_and_fp4_with_f32_scales() {
    let file = Fixture::open("fp8_scaled");
    let mut buffers = Buffers::new(&file);
    let cases = [
        ("e4m3/b128:f32", "tok128.fp32", "sf", "q", "deepgemm"),
        ("e4m3/b128:f32", "tok128.ue8m0", "sf", "q", "act_quant"),
        ("e4m3/b128x128:f32", "blk128.fp32", "sf", "q", "deepgemm"),
        ("e4m3/b128x128:f32", "blk128.ue8m0", "sf", "q", "act_quant"),
        ("e4m3/b32:e8m0", "tok32.ue8m0packed", "sf", "q", "act_quant"),
        ("e2m1(deepgemm)/b32:f32", "tokfp4_32.fp32", "sf", "q", "deepgemm"),
        ("e2m1/b32:f32", "tokfp4_32.ue8m0", "sf", "q", "act_quant"),
        ("e4m3/token:f32", "vllm_token", "scale", "q_inv", "vllm"),
        ("e4m3/token:f32", "vllm_token", "scale", "q_div", "vllm_div"),
        ("e4m3/token:f32", "ao_row.e4m3.f32", "scale", "q", "torchao"),
        ("e4m3/token:f32", "ao_row.e4m3.p2", "scale", "q", "torchao_power"),
        ("e5m2/token:f32", "ao_row.e5m2.f32", "scale", "q", "torchao"),
        ("e4m3/t:f32", "ao_tensor.e4m3.f32", "scale", "q", "torchao"),
        ("e4m3/t:f32", "ao_tensor.e4m3.p2", "scale", "q", "torchao_power"),
    ];
    for (format, library, scale, codes, rule) in cases {
        for input in INPUTS.into_iter().filter(|input| *input != "naninf_f32") {
            let names = [codes, scale].map(|what| format!("{input}.{library}.{what}"));
            buffers.expect(input, format, [&names[0], &names[1], ""], rule);
        }
    }
    buffers.finish(84);
}
