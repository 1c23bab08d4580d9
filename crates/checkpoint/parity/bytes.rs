//! Checks tensors with zero points: quantizes the source by the rule of the format and compares the bytes. Does not search for
//! the causes of differences.

use super::rules::Candidate;
use super::{Cause, Diagnosis, Example, Finding, Scope};
use crate::packed::Grid;
use ulplab_core::formats::{Encoded, Format, GlobalScale, unpack};

/// Quantizes `x` with the rule of the format, and compares the result with the stored bytes.
pub fn compare(x: &[f32], cols: usize, stored: &Encoded, format: &Format) -> Diagnosis {
    let made = format.encode(x, cols, GlobalScale::Own);
    let mut findings = Vec::new();
    let mut differing = 0;
    for (part, unit) in [("data", "codes"), ("scale", "scales"), ("zero", "zero points")] {
        let bits = match part {
            "data" => format.element.stored_bits(),
            "scale" => format.scaling.map_or(8, |scaling| 8 * scaling.scale.bytes()),
            _ => 8 * format.zero_point().map_or(1, |affine| affine.zero_bytes().max(1)),
        };
        let (want, found) = (numbers(made.part(part), bits), numbers(stored.part(part), bits));
        // If the stored and the expected part have different lengths, all items beyond the shorter one count as differences.
        let len = want.len().max(found.len());
        let wrong: Vec<usize> = (0..len).filter(|at| want.get(*at) != found.get(*at)).collect();
        let Some(&first) = wrong.first() else { continue };
        differing += wrong.len();
        let across = match part {
            "data" => cols,
            _ => Grid::new(format, stored.rows, cols).count.1,
        };
        let show = |bits: Option<&u32>| bits.map_or("nothing".to_string(), |bits| format!("{bits:#x}"));
        let detail = "bytes differ; causes are not looked for in formats with zero points";
        let example = Some(Example {
            place: vec![first / across.max(1), first % across.max(1)],
            source: if part == "data" { vec![x[first]] } else { Vec::new() },
            stored: show(found.get(first)),
            expected: show(want.get(first)),
        });
        findings.push(Finding {
            example,
            ..Scope::everywhere(len, unit).finding(Cause::Unknown, detail, wrong.len())
        });
    }
    let reference = Candidate {
        format: *format,
        wrong_blocks: differing,
        close: false,
        narrow: None,
    };
    Diagnosis {
        data_order: "row-major".into(),
        scale_order: "row-major".into(),
        exact: findings.is_empty().then(|| reference.clone()).into_iter().collect(),
        tolerated: Vec::new(),
        foreign_globals: 0,
        reference,
        findings,
    }
}

/// Unpacks codes, scales or zero points of `bits` bits each.
fn numbers(bytes: &[u8], bits: usize) -> Vec<u32> {
    match bits {
        32 => {
            let words = bytes.as_chunks().0.iter();
            words.map(|word| u32::from_le_bytes(*word)).collect()
        }
        bits => unpack(bytes, bits).into_iter().map(u32::from).collect(),
    }
}
