//! `ulplab kernels probe`: finds the summation rule of this GPU's tensor cores from sums that they compute.

use rayon::prelude::*;
use serde::Serialize;
use serde_json::json;

use crate::backend::cuda::{Device, Session};
use crate::json;
use crate::ops::{self, Case, Problem};
use crate::studies::kernels::file;
use ulplab_core::accumulator::{Accumulator, Factor, WGMMA_BF16, WGMMA_E4M3};
use ulplab_core::error::{Error, Exit, Result};
use ulplab_core::pattern::{self, selects};

/// Find out how the tensor cores of this machine's GPU sum.
///
/// It needs a Hopper GPU (sm_90a). 36 wgmma instructions (E4M3 and bf16, nine widths, A in shared memory or in registers) run on
/// 10⁶ random and targeted vectors each. Rules of summation are tried on a sample of the vectors. A rule has three numbers: the
/// products that are added at once; the fraction bits below the largest exponent to which they are truncated; and the fraction
/// bits of the sum. A rule that explains each bit of the sample is then compared with all vectors. The exit code is 100 if an
/// instruction follows no rule, or another rule than ulplab assumes (crates/core/accumulator.rs).
#[derive(Debug, clap::Args)]
pub struct ProbeArgs {
    /// Probe only instructions of these names, such as 'e4m3.n64.*'; may be given several times.
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The result of probing one instruction: the summation rules that reproduce its results on all vectors.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// Name of the instruction: operand type, width, and memory that holds A.
    name: String,
    vectors: usize,
    /// Number of rules that were tried.
    rules: usize,
    /// Rules that reproduce all vectors.
    pub fitting: Vec<Accumulator>,
    /// Number of vectors on which the device's result differs from the rule that ulplab assumes.
    differing: usize,
}

/// Number of vectors on which every rule is tested first. A rule that fails there is not tested on the other vectors.
const SAMPLE: usize = 4096;

pub fn run(args: &ProbeArgs) -> Result<Exit> {
    let op = ops::find("wgmma").map_err(Error::Usage)?;
    let source = file(op, &ops::COMPOSITIONS)?;
    let mut cases = op.cases();
    cases.retain(|case| case.name.ends_with(".step"));
    let name = |case: &Case, variant: &str| format!("{}.{variant}", case.name.trim_end_matches(".step"));
    let variants = source.header.variants.iter().map(|variant| variant.name.as_str());
    let names: Vec<String> = variants
        .flat_map(|variant| cases.iter().map(move |case| name(case, variant)))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    pattern::check("instruction", &[&args.only], &names)?;
    let device = Device::open()?;
    let session = Session::open(&device)?;
    let kernels = session.load(&source, None);
    let mut findings = Vec::new();
    for case in &cases {
        let chosen = |variant: &str| selects(&args.only, &[], &name(case, variant));
        let variants = source.header.variants.iter().filter(|variant| chosen(&variant.name));
        let variants: Vec<_> = variants.collect();
        if variants.is_empty() {
            continue;
        }
        let problem = ops::problem(op, case).map_err(Error::Usage)?;
        let bench = kernels.case(case, &problem);
        for variant in variants {
            let Some(plan) = bench.plan(variant)? else {
                let arch = &device.arch;
                let message = format!("wgmma is an instruction of sm_90a, and this device is {arch}");
                return Err(Error::Setup(message));
            };
            let outputs = bench.ready(variant, plan)?.outputs()?;
            let found = Vectors::new(case, &problem, outputs.get("d")).finding(name(case, &variant.name));
            if !args.json {
                outln!("{}", found.line());
            }
            findings.push(found);
        }
    }
    let (device, all) = (device.describe(), findings.len());
    let equal = findings.iter().filter(|finding| finding.as_assumed()).count();
    let summary = || format!("{device}: {equal} of {all} instructions sum as assumed, bit for bit\n");
    let found = json!({ "device": device, "instructions": findings });
    json::print_or(args.json, &found, summary)?;
    Ok(Exit::judged(equal == all))
}

/// Returns all rules to test for an operand type.
fn rules(assumed: &Accumulator) -> Vec<Accumulator> {
    let terms = [1, 2, 4, 8, 16, 32].into_iter().filter(|terms| *terms <= assumed.terms);
    let with_bits = |terms| (8..=30).map(move |aligned_bits| (terms, aligned_bits));
    let all = terms.flat_map(with_bits).flat_map(|(terms, aligned_bits)| {
        (8..=23).map(move |kept_bits| Accumulator {
            operand: assumed.operand,
            terms,
            aligned_bits,
            kept_bits,
        })
    });
    all.collect()
}

/// The test vectors of one instruction: inputs (rows of A and B, values of C), and the bits `d` of the sums that the device
/// computed.
pub struct Vectors {
    assumed: &'static Accumulator,
    a: Vec<Factor>,
    b: Vec<Factor>,
    c: Vec<f32>,
    pub d: Vec<u32>,
    width: usize,
    terms: usize,
}

impl Vectors {
    pub fn new(case: &Case, problem: &Problem, d: &[u8]) -> Self {
        let assumed = match case.key("operand") {
            "e4m3" => &WGMMA_E4M3,
            _ => &WGMMA_BF16,
        };
        let bytes = |name: &str| {
            let buffer = problem.buffers.iter().find(|buffer| buffer.name == name);
            &buffer.expect("the operation has this buffer").bytes
        };
        let factors = |name: &str| -> Vec<Factor> {
            let code = |bytes: &[u8]| bytes.iter().rev().fold(0, |code, byte| code << 8 | u16::from(*byte));
            let codes = bytes(name).par_chunks_exact(assumed.operand.bytes());
            codes.map(|bytes| assumed.operand.factor(code(bytes))).collect()
        };
        let word = |word: &[u8; 4]| u32::from_le_bytes(*word);
        let words = |bytes: &[u8]| -> Vec<u32> { bytes.as_chunks().0.iter().map(word).collect() };
        Self {
            assumed,
            a: factors("a"),
            b: factors("b"),
            c: words(bytes("c")).into_iter().map(f32::from_bits).collect(),
            d: words(d),
            width: case.dim("N"),
            terms: case.dim("K"),
        }
    }

    /// Computes the sum of vector `at` by a summation rule, and returns its bits.
    pub fn sum(&self, rule: &Accumulator, at: usize) -> u32 {
        let (row, col) = (at / self.width, at % self.width);
        let a = &self.a[row * self.terms..][..self.terms];
        let b = &self.b[(row / 64 * self.width + col) * self.terms..][..self.terms];
        rule.dot(a, b, self.c[at]).to_bits()
    }

    /// True if a rule reproduces the device's bits of vector `at`.
    fn explains(&self, rule: &Accumulator, at: usize) -> bool {
        self.sum(rule, at) == self.d[at]
    }

    pub fn finding(&self, name: String) -> Finding {
        let len = self.d.len();
        // The stride is odd, so that the sample covers all rows and columns.
        let stride = (len / SAMPLE) | 1;
        let fits = |rule: &Accumulator| {
            (0..len).step_by(stride).all(|at| self.explains(rule, at)) && (0..len).all(|at| self.explains(rule, at))
        };
        let rules = rules(self.assumed);
        let tried = rules.len();
        let fitting = rules.into_par_iter().filter(fits).collect();
        let differs = |at: &usize| !self.explains(self.assumed, *at);
        Finding {
            name,
            vectors: len,
            rules: tried,
            fitting,
            differing: (0..len).into_par_iter().filter(differs).count(),
        }
    }
}

impl Finding {
    /// True if the rule that ulplab assumes reproduces all vectors.
    pub fn as_assumed(&self) -> bool {
        self.differing == 0 && self.vectors > 0
    }

    fn line(&self) -> String {
        let (name, vectors, rules, differing) = (&self.name, self.vectors, self.rules, self.differing);
        let rule = match &self.fitting[..] {
            [] => "no rule that was tried".to_string(),
            [rule] => {
                let (terms, aligned, kept) = (rule.terms, rule.aligned_bits, rule.kept_bits);
                format!("{terms} terms at once, cut to {aligned} bits, {kept} bits kept (of {rules} rules)")
            }
            several => format!("{} of {rules} rules fit", several.len()),
        };
        let verdict = if self.as_assumed() { "equal" } else { "DIFFERENT" };
        format!("{name:24} {rule}; {verdict}: {differing} of {vectors} vectors differ from crates/core/accumulator.rs")
    }
}
