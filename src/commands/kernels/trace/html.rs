//! A trace (the launches of a kernel, with bytes, operations and times) as an HTML page.

use askama::Template;

use super::terminal::{Rows, launches, side_by_side};
use super::{Trace, Traces};
use crate::report::chart::{Chart, Dot, DotRow, Dots, Mark};

#[derive(Template)]
#[template(path = "trace.html")]
struct Page<'a> {
    all: &'a Traces,
    limits: Option<String>,
    sections: Vec<Section<'a>>,
    side_by_side: Option<Rows>,
}

struct Section<'a> {
    trace: &'a Trace,
    rows: Rows,
    /// SVG chart of the times of the launches; empty if nothing was timed.
    chart: String,
}

/// Renders the page. It has no script and refers to no external resource.
pub fn page(all: &Traces) -> String {
    let section = |trace| Section {
        trace,
        rows: launches(all, trace),
        chart: chart(all, trace),
    };
    let page = Page {
        all,
        limits: all.ceilings.map(|ceilings| ceilings.to_string()),
        sections: all.traces.iter().map(section).collect(),
        side_by_side: (all.traces.len() > 1).then(|| side_by_side(all)),
    };
    page.render().expect("the template has no fallible part")
}

/// Draws a chart with a row for each launch: the time of all its turns (repetitions) in a run, and the least possible time.
fn chart(all: &Traces, trace: &Trace) -> String {
    let Some(ceilings) = &all.ceilings else {
        return String::new();
    };
    let dot = |value: f64, mark, what: &str| Dot {
        value,
        mark,
        detail: format!("{what}: {value:.2} µs"),
    };
    let row = |launch: &super::Launch| {
        let us = launch.of_all(launch.us)?;
        let limit = launch.all().limit(ceilings, trace.products);
        let least = (limit > 0.0).then(|| dot(limit, Mark::Hollow, "least"));
        Some(DotRow {
            name: launch.name.clone(),
            dots: least.into_iter().chain([dot(us, Mark::Filled, "measured")]).collect(),
            note: format!("{} × {:.2} µs", launch.turns, launch.us?),
            ..DotRow::default()
        })
    };
    let kernel = &trace.kernel;
    let dots = Dots {
        title: format!("{kernel}: time of all turns of each launch, and the least it could be (hollow)"),
        unit: "µs".into(),
        rows: trace.launches.iter().filter_map(row).collect(),
        width: 1180.0,
    };
    dots.svg().unwrap_or_default()
}
