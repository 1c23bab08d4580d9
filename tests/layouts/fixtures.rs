//! What torchao's and DeepGEMM's code makes of the same matrices.

use std::collections::{BTreeMap, BTreeSet};

use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::*;
use crate::formats::oracle::stored;

fn integers(file: &SafeTensors, name: &str) -> Option<Vec<usize>> {
    let tensor = file.tensor(name).ok()?;
    let data = tensor.data();
    Some(match tensor.dtype() {
        Dtype::I32 => data
            .as_chunks()
            .0
            .iter()
            .map(|b| i32::from_le_bytes(*b) as usize)
            .collect(),
        Dtype::I64 => data
            .as_chunks()
            .0
            .iter()
            .map(|b| i64::from_le_bytes(*b) as usize)
            .collect(),
        other => panic!("{name} is {other:?}"),
    })
}

#[test]
fn blocked_layouts_are_torchaos() {
    let bytes = stored("quant/blocked_layouts.safetensors");
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let cases: BTreeSet<&str> = file
        .names()
        .into_iter()
        .filter_map(|name| name.strip_suffix(".in"))
        .collect();
    assert_eq!(cases.len(), 29, "{cases:?}");
    for case in cases {
        let layout = match case.split('.').next().unwrap() {
            "plain" | "g3d" => "blocked_128x4",
            "mgroup" | "mgroup_ragcol" => "blocked_128x4_m_groups",
            "kgroup" => "blocked_128x4_k_groups",
            other => panic!("{other}"),
        };
        let matrix = file.tensor(&format!("{case}.in")).unwrap();
        let want = file.tensor(&format!("{case}.out")).unwrap();
        let ends = integers(&file, &format!("{case}.offs")).unwrap_or_default();
        let placement = place(layout, matrix.shape(), &ends).unwrap();
        let got = placement.forward(matrix.data()).unwrap();
        assert!(got == want.data(), "{case}");
        assert!(placement.inverse(&got).unwrap() == matrix.data(), "{case}, back");
        if let Some(starts) = integers(&file, &format!("{case}.starts")) {
            assert_eq!(placement.starts(), starts, "{case}");
        }
    }
}

/// The row-major u32 of DeepGEMM's cast hold the same bytes; its layout puts them in columns.
#[test]
fn packed_scales_are_deepgemms() {
    let bytes = stored("quant/fp8_scaled.safetensors");
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let names = file
        .names()
        .into_iter()
        .filter(|name| name.ends_with(".tok32.ue8m0packed.sf"));
    let mut several = 0;
    for name in names {
        let packed = file.tensor(name).unwrap();
        let &[rows, words] = packed.shape() else {
            panic!("{name}: {:?}", packed.shape())
        };
        let placement = place("mn_major_ue8m0x4", &[rows, 4 * words], &[]).unwrap();
        let got = placement.forward(packed.data()).unwrap();
        let aligned = rows.next_multiple_of(4);
        for (index, want) in packed.data().as_chunks::<4>().0.iter().enumerate() {
            let (row, word) = (index / words, index % words);
            assert_eq!(
                &got.as_chunks::<4>().0[word * aligned + row],
                want,
                "{name} at ({row}, {word})"
            );
        }
        several += usize::from(words > 1 && rows > 1);
    }
    assert!(several >= 2, "only {several} matrices of more than one row and column");
}

#[derive(Deserialize)]
struct Case {
    offs: Vec<usize>,
    out_sha256: String,
}

/// Groups along K at sizes of weight gradients, up to (8192, 4096) in 8 groups.
#[test]
fn k_groups_of_full_size_hash_as_torchaos() {
    let text = std::fs::read_to_string(format!("{FIXTURES}/kgroup_sha256.json")).unwrap();
    let cases: BTreeMap<String, Case> = serde_json::from_str(&text).unwrap();
    assert_eq!(cases.len(), 24);
    // An element depends on its row and column alone: every matrix is a corner of the largest.
    let (most, wide) = (8192, 4096);
    let element = |row: usize, col: usize| (131 * row + 17 * col + ((row * col) >> 3)) as u8;
    let mut largest = Vec::with_capacity(most * wide);
    for row in 0..most {
        largest.extend((0..wide).map(|col| element(row, col)));
    }
    for (name, Case { offs, out_sha256 }) in cases {
        let (rows, cols) = name.split('.').next().unwrap().split_once('x').unwrap();
        let (rows, cols): (usize, usize) = (rows.parse().unwrap(), cols.parse().unwrap());
        let corner = largest.chunks_exact(wide).take(rows).map(|row| &row[..cols]);
        let matrix = corner.collect::<Vec<_>>().concat();
        let placement = place("blocked_128x4_k_groups", &[rows, cols], &offs).unwrap();
        let buffer = placement.forward(&matrix).unwrap();
        let hash: String = Sha256::digest(&buffer)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(hash, out_sha256, "{name}");
        assert!(placement.inverse(&buffer).unwrap() == matrix, "{name}, back");
    }
}
