//! Blocks of words, transposed by every instruction set of the machine.

use ulplab_core::layouts::{Block, Plain, Transpose};

/// One machine runs only one of them otherwise.
#[test]
fn all_transposes_exchange_rows_and_columns() {
    let word = |i: usize, j: usize| [i as u8, j as u8, (i * j) as u8, 0xa5];
    let block = || {
        let mut block = Block([[0; 64]; 16]);
        for (i, line) in block.0.iter_mut().enumerate() {
            let words = line.as_chunks_mut::<4>().0.iter_mut();
            words.enumerate().for_each(|(j, to)| *to = word(i, j));
        }
        block
    };
    let check = |transposed: Block| {
        for (i, line) in transposed.0.iter().enumerate() {
            let words = line.as_chunks::<4>().0.iter();
            words
                .enumerate()
                .for_each(|(j, found)| assert_eq!(*found, word(j, i), "({i}, {j})"));
        }
    };
    check(Plain.transpose(block()));
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V4::try_new() {
        check(simd.transpose(block()));
    }
}
