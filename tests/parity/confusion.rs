//! What the diagnosis says of planted faults, as a confusion matrix.

use std::collections::BTreeMap;
use std::fmt::Write;

use ulplab::formats;
use ulplab::formats::{GlobalScale, codec};
use ulplab::packed::codes;
use ulplab::parity::{Cause, StoredBytes, diagnose};

use super::faults::{Kernel, data, normal, plant};
use crate::formats::oracle::Random;

const FORMATS: [&str; 4] = [
    "e2m1/b16:e4m3(te)/t:f32",
    "e4m3/b32:e8m0(rceil)",
    "e2m1/b32:e8m0(rceil)",
    "e4m3/b128:f32(deepgemm)",
];
const DATA: [&str; 3] = ["gauss", "outliers", "real-like"];
const CAUSES: [Cause; 8] = [
    Cause::Amax,
    Cause::ScaleRounding,
    Cause::TieRule,
    Cause::Saturation,
    Cause::NibbleOrder,
    Cause::Swizzle,
    Cause::Layout,
    Cause::GlobalScale,
];

/// Planted and diagnosed causes with their counts, and what a share of the planted is diagnosed right.
#[derive(Default)]
struct Matrix {
    counts: BTreeMap<(Cause, Option<Cause>), usize>,
    misses: Vec<String>,
}

impl Matrix {
    fn add(&mut self, planted: Cause, found: Option<Cause>, what: String) {
        *self.counts.entry((planted, found)).or_default() += 1;
        if found != Some(planted) {
            self.misses.push(what);
        }
    }

    fn right(&self) -> f64 {
        let right: usize = self
            .counts
            .iter()
            .filter(|((planted, found), _)| *found == Some(*planted))
            .map(|(_, count)| count)
            .sum();
        right as f64 / self.counts.values().sum::<usize>() as f64
    }

    fn table(&self) -> String {
        let mut table = format!("{:.1} % right\n", 100.0 * self.right());
        for ((planted, found), count) in &self.counts {
            let found = found.map_or("none".into(), |found| found.to_string());
            let _ = writeln!(table, "{planted:24} diagnosed as {found:24} {count}");
        }
        let misses = self.misses.iter().take(60).cloned().collect::<Vec<_>>();
        table + &misses.join("\n")
    }
}

fn confusion(named: bool, seeds: u64) -> Matrix {
    let mut matrix = Matrix::default();
    for (f, text) in FORMATS.iter().enumerate() {
        for (d, kind) in DATA.iter().enumerate() {
            for (c, cause) in CAUSES.into_iter().enumerate() {
                for seed in 0..seeds {
                    let mut random = Random(seed * 1000 + (f * 100 + d * 10 + c) as u64);
                    let x = data(kind, &mut random);
                    let Some((kernel, rule)) = plant(cause, text, x, &mut random) else {
                        continue;
                    };
                    if kernel.harmless() {
                        continue;
                    }
                    let diagnosis = kernel.diagnose(named);
                    let mut found = diagnosis.cause();
                    // Without a rule to hold against, bytes that another rule makes are no fault.
                    let exact = |name: &str| diagnosis.exact.iter().any(|candidate| candidate.name() == name);
                    let tabled = [Cause::GlobalScale, Cause::TieRule].contains(&cause);
                    let is_rule = rule.is_some_and(exact) || (tabled && !diagnosis.exact.is_empty());
                    if !named && found.is_none() && is_rule {
                        found = Some(cause);
                    }
                    let share = diagnosis
                        .findings
                        .iter()
                        .map(|f| format!("{} {} of {} {}", f.cause, f.detail, f.count, f.scope.of));
                    let what = format!(
                        "{text} {kind} {seed}: {cause}: {}",
                        share.collect::<Vec<_>>().join("; ")
                    );
                    matrix.add(cause, found, what);
                }
            }
        }
    }
    matrix
}

#[test]
fn faults_are_told_from_a_named_rule() {
    let matrix = confusion(true, 5);
    println!("{}", matrix.table());
    assert!(matrix.right() >= 0.95, "{}", matrix.table());
    assert!(matrix.counts.values().sum::<usize>() > 300, "{}", matrix.table());
    for cause in CAUSES {
        assert!(
            matrix.counts.contains_key(&(cause, Some(cause))),
            "{cause}: {}",
            matrix.table()
        );
    }
}

#[test]
fn faults_are_told_from_any_rule() {
    let matrix = confusion(false, 3);
    println!("{}", matrix.table());
    assert!(matrix.right() >= 0.95, "{}", matrix.table());
}

/// Every rule's own bytes are explained by it, and its codes are those of `codes`.
#[test]
fn right_bytes_are_no_fault() {
    for text in FORMATS {
        for kind in DATA {
            let x = data(kind, &mut Random(7));
            let formats = codec(text).unwrap().format().unwrap().by_rules();
            for format in formats {
                let kernel = Kernel::new(&format.to_string(), x.clone(), None);
                let diagnosis = kernel.diagnose(true);
                assert!(
                    diagnosis.findings.is_empty(),
                    "{format} {kind}: {}",
                    diagnosis.conclusion()
                );
                assert_eq!(diagnosis.foreign_globals, 0, "{format} {kind}");
                assert_eq!(codes(&format, kernel.encoded.part("data")).len(), x.len());
            }
        }
    }
}

/// Bytes that mean nothing are never explained, whatever the shape and the source; nor do they end in a panic.
#[test]
fn garbage_is_not_explained() {
    let mut random = Random(3);
    for named in formats::FORMATS {
        let format = *codec(named.name).unwrap().format().unwrap();
        for (rows, cols) in [(1, 128), (2, 128), (5, 256), (33, 384)] {
            let mut x: Vec<f32> = (0..rows * cols).map(|_| normal(&mut random) as f32).collect();
            for bad in [f32::NAN, f32::INFINITY, 0.0, -0.0, 1e-40, f32::MAX] {
                let at = (random.uniform() * x.len() as f64) as usize;
                x[at] = bad;
            }
            let mut encoded = format.encode(&x, cols, GlobalScale::Own);
            for part in &mut encoded.parts {
                // Not the sign of e4m3 scales, which is refused before.
                part.bytes
                    .iter_mut()
                    .for_each(|byte| *byte = (random.uniform() * 128.0) as u8);
            }
            let diagnosis = diagnose(&x, cols, &StoredBytes::from(&encoded), &format, random.uniform() < 0.5);
            assert!(
                !diagnosis.explained(),
                "{} [{rows}, {cols}]: {}",
                named.name,
                diagnosis.conclusion()
            );
        }
    }
}
