//! Division of a run of kernels among processes and GPUs.

use super::ops_of;
use super::options::{Devices, Workers};
use crate::run::partition::{Partition, Share};
use crate::run::plan::Cell;
use crate::studies::processes::{Processes, cores};
use ulplab_core::error::{Error, Result};

/// Operations with the longest-running cells, measured on two H100s, and operations for which the references of timed cases take
/// more than 25 s on one core. These operations start first, so that none of them is the last to end, and are divided among GPUs.
pub const LONGEST: [&str; 12] = [
    "delta_decode",
    "decode_step",
    "delta_prefill",
    "delta_handover",
    "fp4_gemm",
    "diagonal_ssm",
    "swap_ffn",
    "moe_fp4",
    "record_write",
    "record_attention",
    "record_read",
    "linear",
];
/// Largest default number of processes per GPU; with more, processes wait for each other.
const MOST_JOBS: usize = 8;
/// `LONG_SHARES`: number of parts into which each of the longest operations is divided if faults are planted. `MOST_SHARES`:
/// largest number of parts of any operation. Every part makes the inputs and the expected outputs of its cases again.
const LONG_SHARES: usize = 4;
pub const MOST_SHARES: usize = 8;

/// Returns the child processes that share these cells on a machine with `gpus` GPUs; `None` if one process is enough. Without a
/// GPU, programs are shared among processes only if the user asks for it.
///
/// # Errors
/// Returns an error if a GPU does not exist.
pub fn processes(workers: &Workers, cells: &[Cell], faults: bool, gpus: usize) -> Result<Option<Processes>> {
    let mut ops = ops_of(cells);
    let place = |op: &str| LONGEST.iter().position(|longest| *longest == op);
    ops.sort_by_key(|op| place(op).unwrap_or(LONGEST.len()));
    let cards = cards(&workers.devices, gpus)?;
    let cores = cores();
    let most = if gpus == 0 { 1 } else { MOST_JOBS };
    let jobs = workers.jobs.map(usize::from);
    let jobs = jobs.unwrap_or((cores / 2 / cards.len()).clamp(1, most));
    let mut each: Vec<_> = std::iter::repeat_n(&cards, jobs).flatten().cloned().collect();
    let pieces = pieces(&ops, cards.len(), if faults { each.len() } else { 0 });
    each.truncate(pieces.len());
    let alone = each.len() <= 1 && each.iter().all(Option::is_none);
    Ok((!alone).then_some(Processes { pieces, cards: each }))
}

/// Divides operations into pieces of work. Each of the longest operations gets a piece for each GPU. If processes plant faults,
/// operations are divided further until there are enough pieces for all processes, since each fault can be planted separately.
pub fn pieces(ops: &[&str], cards: usize, planting: usize) -> Vec<Partition> {
    let each = planting.div_ceil(ops.len().max(1)).clamp(1, MOST_SHARES);
    let cut = |op: &&str| {
        let n = match LONGEST.contains(op) {
            true => cards.max(each).max(planting.min(LONG_SHARES)),
            false => each,
        };
        let op = op.to_string();
        (1..=n).map(move |m| Partition::Op(op.clone(), Share { m, n }))
    };
    ops.iter().flat_map(cut).collect()
}

/// Returns the value of `CUDA_VISIBLE_DEVICES` for each requested GPU; `count` GPUs are visible.
pub fn cards(devices: &Devices, count: usize) -> Result<Vec<Option<String>>> {
    let numbers: Vec<usize> = match devices {
        // Leave `CUDA_VISIBLE_DEVICES` unchanged without a GPU: only programs run, and these need no GPU.
        _ if count == 0 => return Ok(vec![None]),
        Devices::These(numbers) if *numbers == [0] => return Ok(vec![None]),
        Devices::All if count <= 1 => return Ok(vec![None]),
        Devices::All => (0..count).collect(),
        Devices::These(numbers) => numbers.clone(),
    };
    if let Some(missing) = numbers.iter().find(|number| **number >= count) {
        let last = count.saturating_sub(1);
        let why = format!("--devices: there is no GPU {missing}: the visible ones are 0 to {last}");
        return Err(Error::Usage(why));
    }
    // The user's numbers are indices into the GPUs that are visible to this process.
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let name = |number: usize| match visible.is_empty() {
        false => visible.split(',').nth(number).map(|name| name.trim().to_string()),
        true => Some(number.to_string()),
    };
    Ok(numbers.into_iter().map(name).collect())
}
