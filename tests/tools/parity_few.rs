//! `compare --parity` of few and of scattered differences: no cause is named that could not be told from another.

use super::parity::{bench, part};

const COMMAND: &str = "compare want.safetensors got.safetensors --parity --format nvfp4";

#[test]
fn one_code_is_isolated() {
    for (at, bit) in [(100, 0x01), (1, 0x80), (2047, 0x04), (900, 0x20)] {
        let bench = bench("nvfp4", |encoded| part(encoded, "data")[at] ^= bit);
        let done = bench.run(COMMAND);
        let words = "1 of 8192 codes: 1 code differs, too few to name a cause, in row";
        assert!(done.code == 100 && done.out.contains(words), "{}", done.out);
        assert!(
            done.out.contains("not te: isolated") && done.out.contains("first at ["),
            "{}",
            done.out
        );
    }
    let bench = bench("mxfp8", |encoded| part(encoded, "scale")[7] += 1);
    let done = bench.run("compare want.safetensors got.safetensors --parity --format mxfp8 --rule rceil");
    let words = "1 scale differs, too few to name a cause";
    assert!(done.code == 100 && done.out.contains(words), "{}", done.out);
}

#[test]
fn codes_here_and_there_are_scattered() {
    let bench = bench("nvfp4", |encoded| {
        let data = part(encoded, "data").iter_mut().enumerate();
        // One byte of about 80, at places without a pattern.
        data.filter(|(i, _)| (*i as u32).wrapping_mul(2_654_435_761) >> 8 < (1 << 24) / 80)
            .for_each(|(_, byte)| *byte ^= 1);
    });
    let done = bench.run(COMMAND);
    assert!(
        done.code == 100 && done.out.contains("not te: scattered, here and there"),
        "{}",
        done.out
    );
    assert!(!done.out.contains("bit 0"), "{}", done.out);
}

#[test]
fn rows_at_each_others_places() {
    let bench = bench("nvfp4", |encoded| {
        let data = part(encoded, "data");
        let (head, tail) = data.split_at_mut(77 * 32);
        head[5 * 32..6 * 32].swap_with_slice(&mut tail[..32]);
    });
    let done = bench.run(COMMAND);
    assert!(done.out.contains("layout, rows 5 and 77 are exchanged"), "{}", done.out);
}

/// Where a fault is, and how much of that place has it.
#[test]
fn the_share_of_a_place() {
    let bench = bench("nvfp4", |encoded| part(encoded, "data")[5 * 32..6 * 32].fill(0));
    let done = bench.run(COMMAND);
    let there = done
        .out
        .split("in row 5 (")
        .nth(1)
        .and_then(|rest| rest.split(')').next());
    assert!(
        there.is_some_and(|there| there.ends_with(" of 64 there")),
        "{}",
        done.out
    );
}
