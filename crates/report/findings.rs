//! Findings pages: prose with the numbers of a run.
//!
//! A template is Markdown with fields in double braces; each is filled from the run:
//!
//! * `{{ value RECIPE QUANTITY }}`: one number.
//! * `{{ interval RECIPE QUANTITY }}`: one number with its 95 % interval over windows.
//! * `{{ holds RECIPE QUANTITY >= NUMBER }}`: checks a bound and prints nothing; filling fails if the value violates the bound.
//! * `{{ run }}`: the run and its machine.
//! * a table with one row per recipe and one column per line:
//!   ```text
//!   {{ table RECIPE …
//!   column title: QUANTITY
//!   }}
//!   ```
//!
//! A QUANTITY is `PHASE SITE METRIC OVER`. PHASE is `local` (each layer's own error) or `cumulative`, and SITE is a tensor of the
//! model. OVER selects or combines layers: `mean`, `median`, `min`, `max`, `first`, `last`, a layer's number, or `-` for sites
//! outside layers. Values are means over the input windows of the run.

use super::index::{self, Quantity};
use super::{Summarized, number};
use ulplab_core::error::{counted, did_you_mean};
use ulplab_core::metrics::{Bound, Metric};
use ulplab_core::record::Phase;
use ulplab_run::run::summary::Summary;

/// Replaces the `{{ … }}` fields of a template by numbers of the run. The error names the template's line and the mistake.
pub fn fill(run: &Summarized, template: &str) -> Result<String, String> {
    let mut page = String::new();
    let mut rest = template;
    while let Some(start) = rest.find("{{") {
        let line = template[..template.len() - rest.len() + start].matches('\n').count() + 1;
        let wrong = |message: String| format!("line {line}: {message}");
        let (before, field) = (&rest[..start], &rest[start + 2..]);
        let end = field.find("}}").ok_or_else(|| wrong("'{{' without '}}'".into()))?;
        page += before;
        page += &expand(run, field[..end].trim()).map_err(wrong)?;
        rest = &field[end + 2..];
    }
    Ok(page + rest)
}

fn expand(run: &Summarized, field: &str) -> Result<String, String> {
    let (verb, rest) = field.split_once(char::is_whitespace).unwrap_or((field, ""));
    match verb {
        "value" => {
            let (query, _) = Query::with_recipe(rest)?;
            Ok(number::of_metric(query.quantity.metric, query.value(run)?))
        }
        "interval" => {
            let (query, _) = Query::with_recipe(rest)?;
            let [summary] = query.layers(run)?[..] else {
                return Err("an interval is of one layer: 'first', 'last', a layer's number or '-'".into());
            };
            let metric = query.quantity.metric;
            Ok(number::of_metric_within(
                metric,
                summary.mean,
                summary.ci_low,
                summary.ci_high,
            ))
        }
        "holds" => {
            let (query, bound) = Query::with_recipe(rest)?;
            let bound: Bound = bound.parse()?;
            let value = query.value(run)?;
            let holds = bound.admits(value).then(String::new);
            holds.ok_or_else(|| format!("'{field}' does not hold: the value is {value}"))
        }
        "table" => table(run, rest),
        "run" => Ok(provenance(run)),
        _ => {
            let verbs = ["value", "interval", "holds", "table", "run"];
            Err(format!("unknown field '{verb}'{}", did_you_mean(verb, verbs)))
        }
    }
}

fn table(run: &Summarized, text: &str) -> Result<String, String> {
    let (recipes, columns) = text
        .split_once('\n')
        .ok_or("a table needs columns, one a line: 'title: QUANTITY'")?;
    let lines = columns.lines().filter(|line| !line.trim().is_empty());
    let columns = lines.map(|line| {
        let column = line.split_once(": ").map(|(title, query)| (title.trim(), query));
        column.ok_or_else(|| format!("'{line}' is not 'title: QUANTITY'"))
    });
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    let titles: String = columns.iter().map(|(title, _)| format!(" {title} |")).collect();
    let mut lines = vec![
        format!("| recipe |{titles}"),
        format!("| --- |{}", " ---: |".repeat(columns.len())),
    ];
    for recipe in recipes.split_whitespace() {
        let mut cells = vec![format!("`{recipe}`")];
        for (_, text) in &columns {
            let (query, _) = Query::parse(recipe, text)?;
            cells.push(number::of_metric(query.quantity.metric, query.value(run)?));
        }
        lines.push(format!("| {} |", cells.join(" | ")));
    }
    Ok(lines.join("\n"))
}

fn provenance(run: &Summarized) -> String {
    let manifest = &run.run.manifest;
    let experiment = &manifest.experiment;
    let reading = run.show.reading();
    let windows: Vec<String> = reading.windows.iter().map(|window| window.name()).collect();
    let (name, seed) = (&experiment.name, experiment.seed);
    let mut parts = vec![format!("`experiments/{name}.toml`"), format!("seed {seed}")];
    parts.extend(run.show.drawn());
    if !windows.is_empty() {
        let (length, count) = (reading.length(), counted(windows.len(), "window"));
        parts.push(format!("{length} × {count} ({})", windows.join(", ")));
    }
    parts.push(format!("device {}", manifest.device));
    let fingerprint = &manifest.fingerprint[..manifest.fingerprint.len().min(16)];
    parts.push(format!("fingerprint `{fingerprint}`"));
    parts.join(", ")
}

/// A parsed query: a recipe, a quantity, and the choice of layers.
struct Query<'a> {
    recipe: &'a str,
    quantity: Quantity<'a>,
    over: &'a str,
}

impl<'a> Query<'a> {
    /// Parses `RECIPE QUANTITY`, and returns the query and the rest of the text.
    fn with_recipe(text: &'a str) -> Result<(Self, &'a str), String> {
        let parts = text.trim().split_once(' ');
        let (recipe, rest) = parts.ok_or_else(|| format!("'{text}' is not 'RECIPE QUANTITY'"))?;
        Self::parse(recipe, rest)
    }

    fn parse(recipe: &'a str, text: &'a str) -> Result<(Self, &'a str), String> {
        let mut rest = text.trim();
        let mut word = || {
            let (word, behind) = rest.split_once(' ').unwrap_or((rest, ""));
            rest = behind.trim_start();
            let word = Some(word).filter(|word| !word.is_empty());
            word.ok_or_else(|| format!("'{text}' is not 'PHASE SITE METRIC OVER'"))
        };
        let (phase, site, metric, over) = (word()?, word()?, word()?, word()?);
        let mut phases = [Phase::Local, Phase::Cumulative].into_iter();
        let found = phases.find(|known| known.name() == phase);
        let phase = found.ok_or_else(|| format!("unknown phase '{phase}': local or cumulative"))?;
        let metric = Metric::find(metric).map_err(|error| error.to_string())?.name;
        let quantity = Quantity::new(phase, site, metric);
        Ok((Self { recipe, quantity, over }, rest))
    }

    /// Returns the summaries (statistics over windows) that the query selects: of one layer, or of all layers.
    fn layers<'r>(&'r self, run: &'r Summarized) -> Result<Vec<&'r Summary>, String> {
        let Quantity { phase, site, metric } = self.quantity;
        let (recipe, over) = (self.recipe, self.over);
        let nothing = || format!("nothing was measured of {recipe} {phase} {site} {metric} {over}");
        let all = run.index.layers(recipe, self.quantity).ok_or_else(nothing)?;
        let one = match over {
            "-" => all.get(&None).copied(),
            "first" => all.values().next().copied(),
            "last" => all.values().next_back().copied(),
            over => match over.parse::<u32>() {
                Ok(layer) => all.get(&Some(layer)).copied(),
                Err(_) => return Ok(all.values().copied().collect()),
            },
        };
        one.map(|summary| vec![summary]).ok_or_else(nothing)
    }

    fn value(&self, run: &Summarized) -> Result<f64, String> {
        let layers = self.layers(run)?;
        let means: Vec<f64> = layers.iter().map(|summary| summary.mean).collect();
        let value = match (self.over, &means[..]) {
            (_, [only]) => Some(*only),
            ("mean", _) => index::mean(&means),
            ("median", _) => index::median(&means),
            ("min", _) => index::min(&means),
            ("max", _) => means.iter().copied().reduce(number::larger),
            (over, _) => return Err(format!("'{over}' is not a way to make layers one number")),
        };
        value.ok_or_else(|| "no layers".into())
    }
}
