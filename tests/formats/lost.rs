//! What a cosine says of a four-bit record that a faulty kernel wrote: `docs/findings/decode-stack.md`.

use ulplab::formats::{Encoded, Format, GlobalScale};
use ulplab::ops::Data;

const COLS: usize = 512;
const BLOCK: usize = 16;

/// Vectors of normal numbers, and their cosine with what is read of them once `fault` has changed codes and scales.
fn cosine_after(fault: impl Fn(&mut Encoded)) -> f64 {
    let none = |_: &str| Err("no model".to_string());
    let x = Data::new(0, &none).normal("lost", 1000 * COLS);
    let format: Format = "e2m1/b16:e4m3/t:f32".parse().unwrap();
    let mut encoded = format.encode(&x, COLS, GlobalScale::Own);
    fault(&mut encoded);
    let mut read = vec![0.0; x.len()];
    format.decode(&encoded, &mut read);
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(&x, &read) / (dot(&x, &x) * dot(&read, &read)).sqrt()
}

fn part<'a>(encoded: &'a mut Encoded, name: &str) -> &'a mut Vec<u8> {
    &mut encoded.parts.iter_mut().find(|part| part.name == name).unwrap().bytes
}

fn about(found: f64, want: f64) {
    assert!((found - want).abs() < 0.003, "{found}, not {want}");
}

#[test]
fn half_of_the_channels_lost_is_a_cosine_of_0_703() {
    let right = cosine_after(|_| {});
    about(right, 0.9955);
    let lost = cosine_after(|encoded| {
        for codes in part(encoded, "data").chunks_mut(COLS / 2) {
            codes[COLS / 4..].fill(0);
        }
    });
    about(lost, right * 0.5f64.sqrt());
    // Those of another vector in their place have energy of their own.
    let stale = cosine_after(|encoded| {
        for (name, row) in [("data", COLS / 2), ("scale", COLS / BLOCK)] {
            let bytes = part(encoded, name);
            let before = bytes.clone();
            let rows = bytes.chunks_mut(row).zip(before.chunks(row).skip(1));
            rows.for_each(|(bytes, next)| bytes[row / 2..].copy_from_slice(&next[row / 2..]));
        }
    });
    about(stale, right / 2.0);
}

#[test]
fn scales_of_other_blocks_leave_more() {
    let blocks = COLS / BLOCK;
    let all = cosine_after(|encoded| {
        part(encoded, "scale")
            .chunks_mut(blocks)
            .for_each(|row| row.rotate_right(1))
    });
    about(all, 0.944);
    let half = cosine_after(|encoded| {
        for row in part(encoded, "scale").chunks_mut(blocks) {
            row.chunks_mut(2).for_each(|pair| pair[1] = pair[0]);
        }
    });
    about(half, 0.969);
}
