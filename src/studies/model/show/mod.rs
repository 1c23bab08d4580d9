//! Reports on models: errors by layer, and errors against bytes.

mod columns;
mod families;

use super::{ModelStudy, Recipe};
use crate::experiment::Reading;
use crate::report::chart::{Heat, Point, Scatter};
use crate::report::figures::{
    Figure, HALF, Section, by_layer, captions, figure, final_value, fold, gates, of_group, own_error, plain_lines,
    series, unit, wide,
};
use crate::report::index::{Index, Quantity};
use crate::report::overview::Column;
use crate::report::recipes::{Candidate, Gate, Group};
use crate::report::{Show, Summarized, number};
use crate::studies::show;
use columns::{cumulative_error, gain, local_error, measured_recall, stored};
use ulplab_core::metrics::{RELATIVE_L2, WEIGHT_MEGABYTES};
use ulplab_core::record::Phase::{Cumulative, Local};

impl Show for ModelStudy {
    fn reading(&self) -> Reading<'_> {
        Reading {
            beyond_trained: Some(self.beyond_trained),
            ..Reading::new(self.model.as_deref(), self.tokens, &self.windows)
        }
    }

    fn columns(&self) -> Vec<Column> {
        columns::columns()
    }

    fn sections(&self, run: &Summarized) -> Vec<Section> {
        let lines = |site| plain_lines(run, site, Quantity::new(Local, site, RELATIVE_L2.name), true, &[]);
        let intro = "Error after the last layer, and at the logits, against the size of a stored KV vector; less is \
                     better on both axes. Nothing measured beats the formats on the stepped line in both. Filled \
                     marks pass all gates that bind them, crosses fail a gate, hollow marks are not judged or not bound by any gate.";
        let finals = columns::finals(run.index).into_iter();
        let figures = finals.flat_map(|(title, quantity)| against_bytes(run, title, quantity));
        let front = Section::new("front", "What a byte buys", intro, figures.collect());
        let intro = "Local: every layer is fed the reference's input, so a layer that stands out is sensitive by \
                     itself. Cumulative: the candidate runs free, so a rising line is error that adds up and a flat \
                     one error that the model damps. Both charts have the same axis; rest the pointer on a layer to \
                     read its values. A cross at the top is NaN or infinity.";
        let layers = Section::new("layers", "Error by layer", intro, error_by_layer(run));
        let intro = "Every recipe in every layer, the least error first: a column that stands out is a layer that all formats \
                     hurt, a cell that stands out a layer that one of them hurts. Both maps have the same colours; rest the \
                     pointer on a cell to read its value.";
        let heat = Section::new("heat", "Where the error arises", intro, heat(run));
        let intro = "What the format does to the KV vectors themselves, read back from the cache, before any layer \
                     uses them.";
        let figures = stored(run.index).into_iter().flat_map(lines).collect();
        let stored = Section::new("stored", "Stored vectors", intro, figures);
        let intro = "Recall: the share of the reference's top-k choices that the candidate's indexer makes too; a \
                     token that is not chosen is lost to attention however well it is stored. Gain: error at a \
                     layer's output over error at its input; above 1 the layer amplifies what it is fed.";
        let selection = Section::new("selection", "Selection and gain", intro, selection(run));
        let intro = "Size or structure? A noise control replaces each rounding error by Gaussian noise of the same energy. Where the \
                     format (filled) is worse than its control (hollow), its error is aligned with what the model \
                     uses: a bias, or lost channels. Where the two agree, only the size of the error matters. The \
                     factor at the right is format over noise. Each small chart has its own axis.";
        let noise = Section::new("noise", "Noise controls", intro, families::noise(run));
        let intro = "Where does it hurt? A format on some channels, one reader or some layers only, below the recipe that uses it \
                     everywhere. The factor at the right is the share of the whole recipe's error that remains.";
        let narrowed = Section::new("narrowed", "Narrowed recipes", intro, families::narrowed(run));
        vec![front, layers, heat, stored, selection, noise, narrowed]
    }

    fn order(&self, index: &Index) -> &'static str {
        columns::order(index).0
    }

    fn sort_key(&self, index: &Index, recipe: &str, _at: usize) -> Option<f64> {
        columns::order(index).1(index, recipe)
    }

    fn group(&self, recipe: &str, sized: &dyn Fn(&str) -> bool) -> (Group, Option<&str>) {
        let Some(recipe) = self.recipes.iter().find(|other| other.name == recipe) else {
            return (Group::Plain, None);
        };
        let others = self.recipes.iter();
        let mut others = others.filter(|other| !other.noise && other.name != recipe.name);
        // `sized` is false for a recipe that leaves some of the cached tensors unrounded.
        if recipe.noise {
            let controlled = others.find(|other| other.rounds == recipe.rounds);
            (Group::Noise, controlled.map(|recipe| recipe.name.as_str()))
        } else if recipe.rounds.is_empty() && !recipe.kernels.is_empty() {
            (Group::Kernels, None)
        } else if !sized(&recipe.name) {
            let whole = others.find(|other| sized(&other.name) && widens(other, recipe));
            (Group::Narrowed, whole.map(|recipe| recipe.name.as_str()))
        } else {
            (Group::Plain, None)
        }
    }

    fn weight_megabytes(&self, index: &Index, recipe: &str) -> Option<f64> {
        columns::weights(index, recipe, &WEIGHT_MEGABYTES)
    }

    fn ranks_sizes(&self) -> bool {
        true
    }
}

/// True if `wide` has every format of `narrow`. A format with a Hadamard transform differs from the same format without one.
fn widens(wide: &Recipe, narrow: &Recipe) -> bool {
    let formats = |recipe: &Recipe| {
        let rounds = recipe.rounds.iter();
        rounds.map(|r| (r.format.clone(), r.hadamard)).collect::<Vec<_>>()
    };
    let wide = formats(wide);
    formats(narrow).iter().all(|format| wide.contains(format))
}

fn against_bytes(run: &Summarized, title: &str, quantity: Quantity) -> Vec<Figure> {
    let point = |candidate: &Candidate| {
        let (cost, error) = (candidate.bytes.vector?, final_value(run, candidate.name, quantity)?);
        let verdict = match candidate.gate {
            Gate::Pass(_) => "passes its gates",
            Gate::Fail(_) => "fails a gate",
            Gate::NotJudged { .. } => "not judged",
            Gate::Control => "a control",
            Gate::Unbound => "no gate binds it",
        };
        let (bytes, metric) = (number::tenths(cost), quantity.metric);
        let detail = format!("{bytes} bytes, {metric} {}\n{verdict}", number::error(error));
        Some(show::point(candidate, cost, error, detail))
    };
    let points: Vec<Point> = of_group(run, Group::Plain).filter_map(point).collect();
    fold(points, title, |title, points| {
        let names: Vec<&str> = points.iter().map(|point| point.name.as_str()).collect();
        let gate = gates::line(run, quantity, &names);
        let drawable = |point: &&Point| point.error.is_finite() && point.error > 0.0;
        let missing = points.iter().filter(|point| !drawable(point));
        let missing: Vec<&str> = missing.map(|point| point.name.as_str()).collect();
        let mut caption = captions(gate.as_ref(), own_error(run, quantity));
        if !missing.is_empty() {
            caption += &format!(" Not drawn (0, NaN or infinite): {}.", missing.join(", "));
        }
        let scatter = Scatter {
            title,
            unit: unit(quantity),
            cost_unit: "bytes per stored KV vector".into(),
            points,
            bound: gate.map(|gate| gate.bound),
            guide: Vec::new(),
            size: HALF,
        };
        figure(scatter, caption)
    })
}

fn error_by_layer(run: &Summarized) -> Vec<Figure> {
    let both @ [local, cumulative] = [local_error(run.index), cumulative_error(run.index)];
    let names: Vec<&str> = of_group(run, Group::Plain).map(|candidate| candidate.name).collect();
    let gates = both.iter().filter_map(|quantity| gates::line(run, *quantity, &names));
    let of = |name: &&str| both.map(|quantity| run.index.means(name, quantity));
    let values = names.iter().flat_map(of);
    let range: Vec<f64> = values.flatten().chain(gates.map(|gate| gate.bound.value)).collect();
    let local = plain_lines(run, "Local: each layer by itself", local, true, &range);
    let cumulative = plain_lines(run, "Cumulative: running free", cumulative, true, &range);
    // Put local charts on the left and cumulative charts on the right: the two charts of a pair show the same recipes.
    let pairs = local.len().max(cumulative.len());
    let (mut local, mut cumulative) = (local.into_iter(), cumulative.into_iter());
    let pairs = (0..pairs).flat_map(|_| [local.next(), cumulative.next()]);
    pairs.flatten().collect()
}

/// Heat maps of the error of every recipe in every layer, local and cumulative.
fn heat(run: &Summarized) -> Vec<Figure> {
    let maps = [
        ("Local: each layer by itself", local_error(run.index)),
        ("Cumulative: running free", cumulative_error(run.index)),
    ];
    let recipes: Vec<&Candidate> = run.candidates.iter().filter(|c| c.group != Group::Reference).collect();
    let values = |c: &&Candidate| maps.map(|(_, quantity)| by_layer(run, c, quantity));
    let range = recipes.iter().flat_map(values);
    let range: Vec<f64> = range.flatten().map(|(_, value)| value).collect();
    let map = |(title, quantity): (&str, Quantity)| {
        let rows = recipes.iter().filter_map(|candidate| series(run, candidate, quantity));
        let heat = Heat {
            title: title.into(),
            unit: unit(quantity),
            metric: quantity.metric.into(),
            rows: rows.filter(|row| !row.points.is_empty()).collect(),
            range: range.clone(),
            width: 1120.0,
        };
        wide(heat, String::new())
    };
    maps.map(map).into()
}

fn selection(run: &Summarized) -> Vec<Figure> {
    let recall = measured_recall(run.index);
    let gain = [Cumulative, Local].map(|phase| gain(run.index, phase));
    let gain = gain.into_iter().find(|quantity| run.index.has(*quantity));
    let lines = |title, quantity, log| plain_lines(run, title, quantity, log, &[1.0]);
    let recall = recall.into_iter();
    let recall = recall.flat_map(|of| lines("Recall of the indexer", of, false));
    let gain = gain.into_iter().flat_map(|of| lines("Gain of a layer", of, true));
    recall.chain(gain).collect()
}
