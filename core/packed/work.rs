//! Work on many tensors on all threads, in memory that does not grow with their number.

use rayon::prelude::*;

/// Elements that are worked on at a time, unless one item has more.
const BATCH: usize = 1 << 24;

/// Does `work` on all items, which have so many `elements` each, and hands the results to `take` in the order of the items.
/// Results do not depend on the number of threads, nor does the first error.
pub fn in_batches<T: Sync, R: Send, E: Send>(
    items: &[T],
    elements: impl Fn(&T) -> usize,
    work: impl Fn(&T) -> Result<R, E> + Sync,
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
        let results: Vec<Result<R, E>> = batch.par_iter().map(&work).collect();
        for (item, result) in batch.iter().zip(results) {
            take(item, result?)?;
        }
        rest = after;
    }
    Ok(())
}
