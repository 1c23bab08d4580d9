//! A trace (the launches of a kernel, with bytes, operations and times) as text.

use super::{Cost, Trace, Traces};
use crate::backend::cuda::time::{Spread, Times};
use crate::report::columns::aligned;

/// Formats the launches of every variant, and then a table that compares the variants.
pub fn text(all: &Traces) -> String {
    let mut text = format!("{}: {}\ncase {}, {}\n", all.op, all.doc, all.case, all.device);
    if let Some(ceilings) = &all.ceilings {
        text += &format!("limits: {ceilings}\n");
    }
    for trace in &all.traces {
        text += &format!("\n{}: {}\n", trace.kernel, trace.doc);
        if !trace.prepare.is_empty() {
            text += &format!("once, when weights are loaded: {}\n", trace.prepare.join(", "));
        }
        text += &table(&launches(all, trace));
    }
    if all.traces.len() > 1 {
        text += "\nside by side\n";
        text += &table(&side_by_side(all));
    }
    text
}

/// Rows of cells. The first row is the header, and the first column has names.
pub type Rows = Vec<Vec<String>>;

/// Returns a row for each launch, and then a row for the whole run.
pub fn launches(all: &Traces, trace: &Trace) -> Rows {
    let heads = "launch,turns,MB,GFLOP,µs each,µs,cached µs,adds µs,least µs,of limit";
    let mut rows = vec![heads.split(',').map(String::from).collect::<Vec<_>>()];
    let row = |name: &str, turns: usize, cost: Cost, each: Option<f64>, [us, cached, added]: [Option<f64>; 3]| {
        let limit = all.ceilings.map(|ceilings| cost.limit(&ceilings, trace.products));
        vec![
            name.to_string(),
            turns.to_string(),
            megabytes(cost),
            gigaflops(cost),
            hundredths(each),
            hundredths(us),
            hundredths(cached),
            hundredths(added),
            hundredths(limit),
            hundredths(share(us, limit)),
        ]
    };
    for launch in &trace.launches {
        let [us, cached] = [launch.us, launch.us_cached].map(|us| launch.of_all(us));
        let times = [us, cached, launch.us_added];
        rows.push(row(&launch.name, launch.turns, launch.all(), launch.us, times));
    }
    if trace.turns() > 1 {
        let times = [trace.us_of_launches(), None, None];
        rows.push(row("all launches", trace.turns(), trace.cost(), None, times));
    }
    let cached = trace.us.and_then(|us| us.cached).map(|cached| cached.median);
    let times = [trace.whole(), cached, None];
    rows.push(row("a run", trace.turns(), trace.least, None, times));
    // Drops columns without any number.
    let has_figure = |at: usize| rows[1..].iter().any(|row| row[at] != NONE);
    let kept: Vec<bool> = (0..rows[0].len()).map(has_figure).collect();
    for row in &mut rows {
        let mut kept = kept.iter();
        row.retain(|_| kept.next() == Some(&true));
    }
    rows
}

/// Returns the table that compares the variants: a row for each quantity of a run, a column for each variant.
pub fn side_by_side(all: &Traces) -> Rows {
    let of = |name: &str, figure: &dyn Fn(&Trace) -> String| {
        let figures = all.traces.iter().map(figure);
        std::iter::once(name.to_string()).chain(figures).collect::<Vec<_>>()
    };
    let us =
        |get: fn(Times) -> Option<Spread>| move |trace: &Trace| hundredths(trace.us.and_then(get).map(|us| us.median));
    let limit = |trace: &Trace| Some(trace.least.limit(&all.ceilings?, trace.products));
    let mut rows = vec![
        of("", &|trace| trace.kernel.clone()),
        of("launches", &|trace| trace.turns().to_string()),
        of("MB of all launches", &|trace| megabytes(trace.cost())),
        of("GFLOP of all launches", &|trace| gigaflops(trace.cost())),
        of("µs, launch by launch", &us(|us| Some(us.hot))),
        of("µs, in a graph", &us(|us| us.graph)),
        of("µs, in a graph, rotated", &us(|us| us.rotated)),
        of("µs, in a graph, cached", &us(|us| us.cached)),
        of("µs, sum of the launches alone", &|trace| {
            hundredths(trace.us_of_launches())
        }),
        of("share of the limit", &|trace| {
            hundredths(share(trace.whole(), limit(trace)))
        }),
        of("a second", &|trace| {
            trace.whole().map_or(NONE.into(), |us| format!("{:.0}", 1e6 / us))
        }),
    ];
    // Drops rows without a number in any variant.
    rows.retain(|row| row[1..].iter().any(|figure| figure != NONE));
    rows
}

const NONE: &str = "—";

/// Returns the least possible time as a fraction of the measured time.
fn share(us: Option<f64>, limit: Option<f64>) -> Option<f64> {
    Some(limit? / us?)
}

fn hundredths(value: Option<f64>) -> String {
    value.map_or(NONE.into(), |value| format!("{value:.2}"))
}

fn megabytes(cost: Cost) -> String {
    format!("{:.3}", cost.bytes as f64 / 1e6)
}

fn gigaflops(cost: Cost) -> String {
    match cost.flops {
        0 => NONE.into(),
        flops => format!("{:.3}", flops as f64 / 1e9),
    }
}

fn table(rows: &[Vec<String>]) -> String {
    aligned(&rows[0], rows[1..].to_vec(), 1).join("\n") + "\n"
}
