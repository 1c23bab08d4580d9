//! Reports on round trips: error against stored bits, and the dependence of the error on the source of the numbers.

use super::{Numbers, RoundTripStudy};
use crate::experiment::{Reading, Source};
use crate::report::chart::{Dot, DotRow, Dots, Mark, Scatter};
use crate::report::figures::{Figure, HALF, Section, figure, fold, of_group, wide};
use crate::report::index::Index;
use crate::report::overview::Column;
use crate::report::recipes::Group;
use crate::report::{Show, Summarized, number};
use crate::studies::show::{by_source, cell, point, value};
use crate::studies::sources;
use ulplab_core::metrics::{COSINE, Metric, RELATIVE_L2, SQNR, SQNR_GAIN, SQNR_THEORY, STORED_BITS};

impl Show for RoundTripStudy {
    fn reading(&self) -> Reading<'_> {
        Reading::new(self.model.as_deref(), self.tokens, &self.windows)
    }

    fn drawn(&self) -> Option<String> {
        let [rows, cols] = self.shape;
        sources::drawn(self.draws, &format!("{rows} × {cols}"))
    }

    /// Columns: bits and theoretical SQNR, then the measured SQNR on every source, then the cosine on the first source.
    fn columns(&self) -> Vec<Column> {
        let names = self.sources.iter().map(|source| source.name.as_str());
        let Some(first) = names.clone().next() else {
            return Vec::new();
        };
        let sqnr = names.enumerate().map(|(at, name)| {
            let doc = "Signal-to-quantization-noise ratio in dB, with a 95 % bootstrap interval of the mean over draws or \
                       windows of text; of sites of a model the mean over their layers.";
            let weight = 20u8.saturating_sub(at as u8);
            Column::new(["SQNR", name], doc, weight, cell(name, &SQNR, true))
        });
        let bits = "Bits an element takes in storage, its share of the scales included.";
        let theory = "SQNR in theory, dB: 6.02 M + 14.14 for floats with M mantissa bits, a twelfth of the squared step for \
                      integers on the first source.";
        let cosine = "Cosine on the first source between the numbers and their decoded values.";
        let mut all = vec![
            Column::new(["bits", "stored"], bits, 40, cell(first, &STORED_BITS, false)),
            Column::new(["SQNR", "theory"], theory, 30, cell(first, &SQNR_THEORY, false)),
        ];
        all.extend(sqnr);
        all.push(Column::new(["cosine", first], cosine, 2, cell(first, &COSINE, false)));
        all
    }

    /// Charts of errors against bits and by source, and a table of the recipes that are compared with another recipe.
    fn sections(&self, run: &Summarized) -> Vec<Section> {
        let sources = &self.sources;
        let drawn = sources.iter().find(|source| !source.from.is_site());
        let real = sources.iter().find(|source| source.from.is_site());
        let chosen = drawn.into_iter().chain(real).map(|source| source.name.as_str());
        let intro = "Relative error against bits stored per element, scales included; less is better on both axes. Nothing \
                     measured beats the formats on the stepped line in both. Filled marks pass all gates that bind \
                     them, crosses fail a gate, hollow marks are not bound by any gate. A mark without a name says it when the \
                     pointer rests on it.";
        let figures = chosen.flat_map(|source| bits(run, source)).collect();
        let front = Section::new("front", "What a bit buys", intro, figures);
        let intro = "Every format on every source: filled marks are distributions, hollow ones tensors of the model. A format \
                     whose row is short does the same to all numbers; a long row depends on how they are spread. Rest \
                     the pointer on a mark to see which source it is.";
        let spread = Section::new("spread", "How much the numbers matter", intro, vec![spread(self, run)]);
        let intro = "SQNR above that of another format on the very same numbers, in dB, with a 95 % interval of the mean: \
                     what one draw has more of than another does not count.";
        let paired = Section::new("paired", "Set against each other", intro, vec![paired(self, run)]);
        vec![front, spread, paired]
    }

    fn order(&self, _index: &Index) -> &'static str {
        "by error on the first source, least first"
    }

    fn sort_key(&self, index: &Index, recipe: &str, _at: usize) -> Option<f64> {
        value(index, recipe, &self.sources.first()?.name, &RELATIVE_L2)
    }
}

fn bits(run: &Summarized, source: &str) -> Vec<Figure> {
    let points = of_group(run, Group::Plain).filter_map(|candidate| {
        let value = |metric: &Metric| value(run.index, candidate.name, source, metric);
        let (bits, error) = (value(&STORED_BITS)?, value(&RELATIVE_L2)?);
        let (stored, sqnr) = (number::error(bits), number::decibels(value(&SQNR)?));
        let detail = format!("{stored} bits, SQNR {sqnr} dB");
        Some(point(candidate, bits, error, detail))
    });
    fold(points.collect(), source, |title, points| {
        let scatter = Scatter {
            title,
            unit: "relative L2 error".into(),
            cost_unit: "bits stored per element".into(),
            points,
            size: [HALF[0], 460.0],
            ..Scatter::default()
        };
        figure(scatter, String::new())
    })
}

fn spread(study: &RoundTripStudy, run: &Summarized) -> Figure {
    let rows = of_group(run, Group::Plain).map(|candidate| {
        let dot = |source: &Source<Numbers>| {
            let error = value(run.index, candidate.name, &source.name, &RELATIVE_L2)?;
            let site = source.from.is_site();
            Some(Dot {
                value: error,
                mark: if site { Mark::Hollow } else { Mark::Filled },
                detail: format!("{} on {}: {}", candidate.name, source.name, number::error(error)),
            })
        };
        let mut dots: Vec<Dot> = study.sources.iter().filter_map(dot).collect();
        dots.sort_by(|a, b| a.value.total_cmp(&b.value));
        DotRow {
            name: candidate.name.into(),
            slot: candidate.slot,
            dots,
            ..DotRow::default()
        }
    });
    let dots = Dots {
        title: "All sources".into(),
        unit: "relative L2 error".into(),
        rows: rows.collect(),
        width: 1120.0,
    };
    wide(dots, String::new())
}

/// Table of SQNR gains: one row for each recipe that is compared with another recipe.
fn paired(study: &RoundTripStudy, run: &Summarized) -> Figure {
    let rows = study.recipes.iter().filter_map(|recipe| {
        let against = recipe.against.as_ref()?;
        Some((recipe.name.as_str(), format!("over {against}")))
    });
    by_source(run, &study.sources, rows, str::to_string, &SQNR_GAIN)
}
