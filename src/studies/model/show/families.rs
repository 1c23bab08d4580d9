//! Charts that compare a recipe with the recipes derived from it: noise controls (with noise in place of rounding errors), and
//! recipes that round only a part of the tensors.

use super::columns::{cumulative_error, finals};
use crate::report::chart::{Dot, DotRow, Dots, GREY, Lines, Mark, SLOTS, Series};
use crate::report::figures::{Figure, HALF, Size, THIRD, figure, final_value, of_group, series, unit};
use crate::report::index::Quantity;
use crate::report::recipes::{Candidate, Group};
use crate::report::{Summarized, number};

/// A recipe and the recipes derived from it. `whole` is `None` for derived recipes without an original in the run.
struct Family<'a> {
    whole: Option<&'a Candidate<'a>>,
    members: Vec<&'a Candidate<'a>>,
}

/// Returns the families (an original recipe and the recipes derived from it) of a group, in the order of the original recipes.
/// Derived recipes without an original form the last family.
fn families<'a>(run: &'a Summarized, group: Group) -> Vec<Family<'a>> {
    let wholes = run.candidates.iter().map(Some).chain([None]);
    let family = |whole: Option<&'a Candidate<'a>>| {
        let own = |member: &&Candidate| member.origin == whole.map(|whole| whole.name);
        let members = of_group(run, group).filter(own).collect();
        Family { whole, members }
    };
    wholes.map(family).filter(|family| !family.members.is_empty()).collect()
}

/// Charts of recipes and their noise controls (the same recipe with noise in place of rounding errors): one row for each pair,
/// then a small chart by layer for each pair.
pub fn noise(run: &Summarized) -> Vec<Figure> {
    let families = families(run, Group::Noise);
    let row = |family: &Family, quantity: Quantity| {
        let value = |candidate: &Candidate| final_value(run, candidate.name, quantity);
        let first = first(family)?;
        let marked = family.whole.map(|whole| (whole, Mark::Filled)).into_iter();
        let marked = marked.chain(family.members.iter().map(|member| (*member, Mark::Hollow)));
        let dots = marked.filter_map(|(candidate, mark)| dot(run, candidate, quantity, mark));
        let noise = family.members.first().and_then(|noise| value(noise));
        Some(DotRow {
            name: first.name.into(),
            slot: first.slot,
            head: false,
            dots: dots.collect(),
            note: ratio(family.whole.and_then(value), noise),
        })
    };
    let rows = |quantity| families.iter().filter_map(|family| row(family, quantity)).collect();
    let panel = |family: &Family| panel(run, family, |_| Some("noise".into()), false);
    let panels = families.iter().filter_map(panel);
    dots(run, rows).into_iter().chain(panels).collect()
}

/// Charts of recipes that round only a part of the tensors, next to the recipe that they are derived from (a family): a block of
/// rows for each family, then a small chart by layer for each family.
pub fn narrowed(run: &Summarized) -> Vec<Figure> {
    let families = families(run, Group::Narrowed);
    let block = |family: &Family, quantity: Quantity| -> Vec<DotRow> {
        let value = |candidate: &Candidate| final_value(run, candidate.name, quantity);
        let whole = family.whole.and_then(value);
        let slot = first(family).map_or(0, |first| first.slot);
        let row = |candidate: &Candidate, mark, note| DotRow {
            name: candidate.name.into(),
            slot,
            head: false,
            dots: dot(run, candidate, quantity, mark).into_iter().collect(),
            note,
        };
        let members = family.members.iter();
        let members = members.map(|member| row(member, Mark::Hollow, ratio(value(member), whole)));
        let first = family.whole.map(|whole| row(whole, Mark::Filled, String::new()));
        let mut rows: Vec<DotRow> = first.into_iter().chain(members).collect();
        rows.retain(|row| !row.dots.is_empty());
        rows.iter_mut().take(1).for_each(|row| row.head = true);
        rows
    };
    let rows = |quantity| families.iter().flat_map(|family| block(family, quantity)).collect();
    let panels = families.iter().filter_map(|family| {
        // In the family of `v4_nvfp4`, the label of `v4_nvfp4_key` is `key`.
        let part = |member: &Candidate| {
            let part = member.name.strip_prefix(family.whole?.name)?;
            Some(part.trim_start_matches(['_', '-', '.', ' ']).to_owned())
        };
        panel(run, family, part, true)
    });
    dots(run, rows).into_iter().chain(panels).collect()
}

/// Returns the recipe whose colour slot the family uses: the original recipe, or else the first derived recipe.
fn first<'a>(family: &Family<'a>) -> Option<&'a Candidate<'a>> {
    family.whole.or(family.members.first().copied())
}

/// Returns one chart for each of the two final errors; `rows` gives the rows of a chart.
fn dots(run: &Summarized, rows: impl Fn(Quantity<'static>) -> Vec<DotRow>) -> [Figure; 2] {
    finals(run.index).map(|(title, quantity)| {
        let dots = Dots {
            title: title.into(),
            unit: unit(quantity),
            rows: rows(quantity),
            width: HALF[0],
        };
        figure(dots, String::new())
    })
}

/// Returns a dot at a candidate's final value.
fn dot(run: &Summarized, candidate: &Candidate, quantity: Quantity, mark: Mark) -> Option<Dot> {
    let value = final_value(run, candidate.name, quantity)?;
    Some(Dot {
        value,
        mark,
        detail: format!("{}: {} {}", candidate.name, quantity.metric, number::error(value)),
    })
}

/// Returns a ratio such as `×2.34`, or both values if `under` is 0 or `over` is not finite.
fn ratio(over: Option<f64>, under: Option<f64>) -> String {
    match (over, under) {
        (Some(over), Some(under)) if over.is_finite() && under > 0.0 => format!("×{:.2}", over / under),
        (Some(over), Some(under)) => format!("{} / {}", number::error(over), number::error(under)),
        _ => String::new(),
    }
}

/// Chart of a family's cumulative error by layer. The original recipe is solid and the derived recipes are dashed. With
/// `colours`, each derived recipe has its own colour; otherwise, all have the colour of the family.
fn panel(
    run: &Summarized,
    family: &Family,
    name: impl Fn(&Candidate) -> Option<String>,
    colours: bool,
) -> Option<Figure> {
    let first = first(family)?;
    let error = cumulative_error(run.index);
    let whole = family.whole.and_then(|whole| series(run, whole, error));
    let member = |(at, member): (usize, &&Candidate)| {
        let named = name(member).filter(|name| !name.is_empty());
        Some(Series {
            name: named.unwrap_or_else(|| member.name.into()),
            slot: match colours {
                // The derived recipes get the colours that follow the original recipe's colour.
                true if at + 1 < SLOTS => (first.slot + 1 + at) % SLOTS,
                true => GREY,
                false => first.slot,
            },
            dashed: true,
            ..series(run, member, error)?
        })
    };
    let members = family.members.iter().enumerate().filter_map(member);
    let lines = Lines {
        title: first.name.into(),
        unit: unit(error),
        log: true,
        metric: error.metric.into(),
        series: whole.into_iter().chain(members).collect(),
        size: THIRD,
        ..Lines::default()
    };
    Some(Figure {
        size: Size::Third,
        ..figure(lines, String::new())
    })
}
