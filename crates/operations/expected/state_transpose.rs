//! Transposes recurrent states from [..., K, V] to [..., V, K]. Nothing is computed: every element must be equal to the moved
//! input element bit for bit (for NaN, with any payload).

use super::{Call, Operation, Output, faults, takes};

pub(super) const STATE_TRANSPOSE: Operation = Operation {
    name: "state_transpose",
    doc: "states [..., K, V] as [..., V, K]",
    takes: takes! {
        x Tensor: "[..., K, V]";
    },
    faults: faults! {
        copied: "elements are where they were in memory, [K, V] taken for [V, K]";
        last_tile_skipped_32: "after the last whole 32 of K or V there are zeros";
        last_tile_skipped_64: "after the last whole 64 of K or V there are zeros";
        tiles_not_turned: "tiles of 32 by 32 are where they belong, and not transposed themselves";
        next_matrix: "each matrix is the next one" => |call| call.roll_rows("x", 2);
        both_reversed: "K and V run backwards";
    },
    compute,
    ..Operation::NONE
};

const TILE: usize = 32;

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let x = call.tensor("x");
    let shapes = call.shapes()?;
    let [keys, values] = shapes.sizes(["K", "V"]);
    let element = |at: usize| {
        let (matrix, value, key) = (at / keys / values, at / keys % values, at % keys);
        let first = matrix * keys * values;
        let of = |key: usize, value: usize| x.data[first + key * values + value];
        let skipped = |tile: usize| key >= keys - keys % tile || value >= values - values % tile;
        match call.fault {
            Some("copied") => x.data[at],
            Some("last_tile_skipped_32") if skipped(32) => 0.0,
            Some("last_tile_skipped_64") if skipped(64) => 0.0,
            Some("tiles_not_turned") if !skipped(TILE) => {
                let swapped = |to: usize, within: usize| to / TILE * TILE + within % TILE;
                of(swapped(key, value), swapped(value, key))
            }
            Some("both_reversed") => of(keys - 1 - key, values - 1 - value),
            _ => of(key, value),
        }
    };
    let shape = [shapes.before, &[values, keys]].concat();
    let y = (0..x.data.len()).map(element).collect();
    Ok(vec![Output::exact("y", shape, y)])
}
