//! Processes many tensors in parallel, in batches that bound the memory.

use rayon::prelude::*;

use super::Stack;

/// Maximum number of elements in a batch of work; a single item with more elements forms a batch by itself.
const BATCH: usize = 1 << 24;

/// Applies `work` to all items in parallel, and passes the results to `take` in the order of the items. `elements` gives the
/// number of elements of an item. The results do not depend on the number of threads.
pub fn in_batches<T: Sync, R: Send, E>(
    items: &[T],
    elements: impl Fn(&T) -> usize,
    work: impl Fn(&T) -> R + Sync,
    mut take: impl FnMut(&T, R) -> Result<(), E>,
) -> Result<(), E> {
    let mut rest = items;
    while !rest.is_empty() {
        let mut sum = elements(&rest[0]);
        let more = rest.iter().skip(1).take_while(|item| {
            sum = sum.saturating_add(elements(item).max(1));
            sum < BATCH
        });
        let (batch, after) = rest.split_at(1 + more.count());
        let results: Vec<R> = batch.par_iter().map(&work).collect();
        for (item, result) in batch.iter().zip(results) {
            take(item, result)?;
        }
        rest = after;
    }
    Ok(())
}

/// Applies `work` to all matrices of several tensors, as [`in_batches`] does. Both closures take the index of the tensor and
/// the index of the matrix in the tensor.
pub fn in_matrices<R: Send, E>(
    stacks: &[Stack],
    work: impl Fn(usize, usize) -> R + Sync,
    mut take: impl FnMut(usize, usize, R) -> Result<(), E>,
) -> Result<(), E> {
    let of = |(at, stack): (usize, &Stack)| stack.matrices().map(move |expert| (at, expert));
    let matrices: Vec<(usize, usize)> = stacks.iter().enumerate().flat_map(of).collect();
    let size = |(at, _): &(usize, usize)| stacks[*at].matrix();
    let work = |(at, expert): &(usize, usize)| work(*at, *expert);
    in_batches(&matrices, size, work, |(at, expert), result| take(*at, *expert, result))
}
