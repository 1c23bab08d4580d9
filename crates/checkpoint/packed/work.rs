//! Parallel work on many tensors, in memory that does not grow with their number.

use rayon::prelude::*;

/// Elements that are processed at a time, unless one item has more.
const BATCH: usize = 1 << 24;

/// Applies `work` to all items and passes the results to `take` in the order of the items. `elements` gives the size of an
/// item. The results and the first error do not depend on the number of threads.
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
