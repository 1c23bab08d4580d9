//! Describes where the wrong elements of an output are, such as in a tail, a tile, or every fourth column. Such a pattern hints
//! at the fault of a kernel: faults rarely hit random elements.

use rayon::prelude::*;

/// Function that returns true if the element with this index is wrong.
pub type Bad<'a> = &'a (dyn Fn(usize) -> bool + Sync);
/// Function that returns the kinds of the wrong element with this index ([`KINDS`](super::values::KINDS)) as a bit set.
pub type Kinds<'a> = &'a (dyn Fn(usize) -> u16 + Sync);

/// Common sizes of vectors, tiles and blocks. Kernels often compute the partial last tile wrongly.
const TILES: [usize; 8] = [1024, 512, 256, 128, 64, 32, 16, 8];

/// Locations of the wrong elements of an output: for each dimension, `hit` marks the indices at which a wrong element occurs.
#[derive(Clone)]
struct Spread {
    hit: Vec<Vec<bool>>,
    /// True if no row (the elements along the last dimension) has more than one wrong element.
    single: bool,
    rows: usize,
    count: usize,
    first: usize,
    last: usize,
    kinds: u16,
}

/// Describes where the wrong elements of an output with this shape are, for example `all in columns 512 to 1023`. Also returns
/// the [`KINDS`](super::values::KINDS) that all of these elements share. `bad` returns true for wrong elements. If `chosen` is
/// true, only some rows of the output were checked, so the text does not name rows.
pub fn find(shape: &[usize], chosen: bool, bad: Bad, kinds: Kinds) -> (String, u16) {
    let spread = spread(shape, bad, kinds);
    (place(shape, chosen, &spread), spread.kinds)
}

fn spread(shape: &[usize], bad: Bad, kinds: Kinds) -> Spread {
    let cols = shape.last().copied().unwrap_or(1).max(1);
    let rows = shape.iter().product::<usize>() / cols;
    let none = || Spread {
        hit: shape.iter().map(|size| vec![false; *size]).collect(),
        single: true,
        rows: 0,
        count: 0,
        first: usize::MAX,
        last: 0,
        kinds: u16::MAX,
    };
    let row = |mut spread: Spread, row: usize| {
        let mut here = 0;
        for col in 0..cols {
            let at = row * cols + col;
            if bad(at) {
                here += 1;
                spread.kinds &= kinds(at);
                (spread.first, spread.last) = (spread.first.min(at), spread.last.max(at));
                if let Some(hit) = spread.hit.last_mut() {
                    hit[col] = true;
                }
            }
        }
        if here > 0 {
            let mut rest = row;
            for (size, hit) in shape.iter().zip(&mut spread.hit).rev().skip(1) {
                hit[rest % size] = true;
                rest /= size;
            }
            spread.count += here;
            spread.rows += 1;
            spread.single &= here == 1;
        }
        spread
    };
    let both = |mut a: Spread, b: Spread| {
        for (a, b) in a.hit.iter_mut().zip(&b.hit) {
            a.iter_mut().zip(b).for_each(|(a, b)| *a |= b);
        }
        Spread {
            single: a.single && b.single,
            rows: a.rows + b.rows,
            count: a.count + b.count,
            first: a.first.min(b.first),
            last: a.last.max(b.last),
            kinds: a.kinds & b.kinds,
            hit: a.hit,
        }
    };
    (0..rows).into_par_iter().fold(none, row).reduce(none, both)
}

fn place(shape: &[usize], chosen: bool, spread: &Spread) -> String {
    let all: usize = shape.iter().product();
    match spread.count {
        1 => return "this one alone".into(),
        count if count == all => return "every one".into(),
        _ => {}
    }
    let last = shape.len().saturating_sub(1);
    let named = (0..shape.len()).filter(|at| !(chosen && *at == 0 && last > 0));
    let narrowed = named.map(|at| narrow(&spread.hit[at], at, shape.len()));
    let narrowed: Vec<Option<String>> = narrowed.collect();
    // The text says `all of` only if it describes exactly the wrong elements. So a dimension for which it has no words must have
    // wrong elements at each of its indices.
    let whole = |(hit, words): (&Vec<bool>, &Option<String>)| words.is_some() || count(hit) == hit.len();
    let volume: usize = spread.hit.iter().map(|hit| count(hit)).product();
    let filled = !chosen && volume == spread.count && spread.hit.iter().zip(&narrowed).all(whole);
    let of = if filled { "all of" } else { "all in" };
    let parts: Vec<String> = narrowed.into_iter().flatten().collect();
    let stretch = spread.last - spread.first + 1 == spread.count;
    match parts.is_empty() {
        false => format!("{of} {}", parts.join(", ")) + one_each(spread),
        true if stretch && shape.len() > 1 && !chosen => {
            let end = spread.last + 1 == all;
            let tail = tail(spread.first, all).filter(|_| end).unwrap_or_default();
            format!(
                "one stretch of elements, {} to {} of {all}{tail}",
                spread.first, spread.last
            )
        }
        true if spread.single && spread.rows > 1 => {
            let share = share(spread.rows, all / shape[last].max(1), "row");
            format!("one in each of {share}")
        }
        true => {
            let of_dimension = |at: usize| share(count(&spread.hit[at]), shape[at], &one(at, shape.len()));
            let over: Vec<String> = (0..shape.len()).map(of_dimension).collect();
            format!("scattered over {}", over.join(", "))
        }
    }
}

fn one_each(spread: &Spread) -> &'static str {
    let columns = spread.hit.last().map_or(0, |hit| count(hit));
    if spread.single && spread.rows > 1 && columns > 1 {
        ", one in each row"
    } else {
        ""
    }
}

fn count(hit: &[bool]) -> usize {
    hit.iter().filter(|hit| **hit).count()
}

fn share(some: usize, all: usize, one: &str) -> String {
    match some == all {
        true => format!("all {all} {one}s"),
        false => format!("{some} of {all} {one}s"),
    }
}

/// Name of an index of dimension `at` of `of` dimensions: `element` for one dimension, `row` and `column` for two.
fn one(at: usize, of: usize) -> String {
    match (at, of) {
        (_, 1) => "element".into(),
        (0, 2) => "row".into(),
        _ if at + 1 == of => "column".into(),
        (0..=2, _) => format!("index of dimension {at}"),
        _ => "index of a middle dimension".into(),
    }
}

/// Words that precede one index, or several indices, of dimension `at` in a description.
fn before(at: usize, of: usize, several: bool) -> String {
    match (of > 2 && at + 1 < of, several) {
        (true, false) => format!("dimension {at} at"),
        (true, true) => format!("dimension {at} from"),
        (false, false) => one(at, of),
        (false, true) => one(at, of) + "s",
    }
}

/// Describes the indices of dimension `at` at which wrong elements occur. `None` if they occur at all indices, or without a
/// pattern.
fn narrow(hit: &[bool], at: usize, of: usize) -> Option<String> {
    let (size, some) = (hit.len(), count(hit));
    let first = hit.iter().position(|hit| *hit)?;
    let last = hit.iter().rposition(|hit| *hit)?;
    if some == size {
        return None;
    }
    if some == 1 {
        let end = if last + 1 == size && size > 2 { ", the last" } else { "" };
        return Some(format!("{} {first}{end}", before(at, of, false)));
    }
    if last - first + 1 == some {
        let name = before(at, of, true);
        let tail = tail(first, size).filter(|_| last + 1 == size).unwrap_or_default();
        return Some(format!("{name} {first} to {last}{tail}"));
    }
    let one = one(at, of);
    let period = [2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
    // The periods above are reported after two occurrences. Any other period, such as a number of heads, needs three
    // occurrences, because two may be chance.
    let begins: Vec<usize> = (0..size)
        .filter(|at| hit[*at] && (*at == 0 || !hit[at - 1]))
        .take(3)
        .collect();
    let other = (begins.len() == 3).then(|| begins[1] - begins[0]);
    let periods = period.into_iter().chain(other).filter(|period| 2 * period <= size);
    let found = periods.filter_map(|period| residues(hit, period).map(|residues| (period, residues)));
    let mut found = found.map(|(period, (low, high))| match low == high {
        true => format!("every {} {one}, from {low} on", ordinal(period)),
        false => format!("{one}s that are {low} to {high} modulo {period}"),
    });
    found.next()
}

/// Returns the smallest and the largest remainder modulo `period` of the hit indices. `None` unless every index with a remainder
/// in this range is hit, or if the range covers all remainders.
fn residues(hit: &[bool], period: usize) -> Option<(usize, usize)> {
    let low = hit[..period].iter().position(|hit| *hit)?;
    let high = hit[..period].iter().rposition(|hit| *hit)?;
    let inside = |at: usize| (low..=high).contains(&(at % period));
    let whole = high - low + 1 == period;
    (!whole && hit.iter().enumerate().all(|(at, hit)| *hit == inside(at))).then_some((low, high))
}

fn ordinal(n: usize) -> String {
    match n {
        2 => "second".into(),
        3 => "third".into(),
        n if matches!(n % 100, 11..=13) => format!("{n}th"),
        n => match n % 10 {
            1 => format!("{n}st"),
            2 => format!("{n}nd"),
            3 => format!("{n}rd"),
            _ => format!("{n}th"),
        },
    }
}

/// Describes the range from `first` to the end if it is the partial last tile of a common tile size; `None` otherwise.
fn tail(first: usize, size: usize) -> Option<String> {
    let tile = TILES
        .into_iter()
        .find(|tile| !size.is_multiple_of(*tile) && first == size / tile * tile && first > 0)?;
    Some(format!(", the tail beyond a multiple of {tile}"))
}
