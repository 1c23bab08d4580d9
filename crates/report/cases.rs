//! Results of kernels, one row per test case: correctness, size of the error, and time.

use super::columns::aligned;
use super::{Show, number};
use ulplab_core::list::grouped;
use ulplab_core::metrics::{BOUND_RATIO, US_CLAIMED, US_COLD, VIOLATIONS};
use ulplab_core::record::Record;
use ulplab_run::run::Run;

/// Headings of the table's columns.
pub const HEADS: [&str; 7] = ["kernel", "case", "", "wrong", "error/bound", "µs", "what is wrong"];

/// Result of a kernel on one test case.
pub struct Row<'a> {
    pub kernel: &'a str,
    pub case: &'a str,
    pub right: bool,
    /// Number of wrong elements or bytes in the worst output; NaN if the kernel could not run.
    wrong: f64,
    /// Largest ratio of an error to its bound.
    ratio: Option<f64>,
    us: Option<f64>,
    message: &'a str,
}

/// Returns one row for each test case of a run: wrong cases first, otherwise in the order of the run. Returns no rows if the
/// experiment does not judge each test case by itself.
pub fn rows<'a>(run: &'a Run, show: &dyn Show) -> Vec<Row<'a>> {
    if !show.by_case() {
        return Vec::new();
    }
    let cells = grouped(run.records.iter().map(|record| (&record.cell, record)));
    let mut rows: Vec<Row> = cells.iter().filter_map(|(_, records)| Row::new(records)).collect();
    rows.sort_by_key(|row| row.right);
    rows
}

impl<'a> Row<'a> {
    /// Creates the row of a kernel on one test case from the records of the case; `None` if no record counts violations.
    fn new(records: &[&'a Record]) -> Option<Self> {
        let of = |metric: &'static str| records.iter().filter(move |record| record.metric == metric);
        let largest = |metric| of(metric).map(|record| record.value).reduce(number::larger);
        let wrong = largest(VIOLATIONS.name)?;
        let worst = of(VIOLATIONS.name).find(|record| record.value == wrong || record.value.is_nan());
        let failure = worst.and_then(|record| record.failure.as_deref());
        Some(Self {
            kernel: &records[0].recipe,
            case: &records[0].window,
            right: wrong == 0.0,
            wrong,
            ratio: largest(BOUND_RATIO.name),
            us: largest(US_COLD.name).or(largest(US_CLAIMED.name)),
            message: failure.map_or("", |failure| &failure.message),
        })
    }

    /// Returns the texts of the row in the order of [`HEADS`].
    pub fn cells(&self) -> [String; 7] {
        let text = |value: Option<f64>, show: fn(f64) -> String| value.map_or("—".into(), show);
        [
            self.kernel.into(),
            self.case.into(),
            if self.right { "right" } else { "WRONG" }.into(),
            match self.wrong {
                wrong if wrong.is_nan() => "not run".into(),
                wrong => number::of_metric(VIOLATIONS.name, wrong),
            },
            text(self.ratio, |ratio| number::of_metric(BOUND_RATIO.name, ratio)),
            text(self.us, |us| number::of_metric(US_COLD.name, us)),
            self.message.into(),
        ]
    }
}

/// Returns the cases of a kernel as a table for a terminal, without failure messages.
pub fn table(rows: &[Row], kernel: &str) -> Vec<String> {
    let rows = rows.iter().filter(|row| row.kernel == kernel);
    aligned(&HEADS[1..6], rows.map(|row| row.cells()[1..6].to_vec()), HEADS.len())
}
