//! Calibrations (measured rates of false alarms and of detected errors of gates) as Markdown tables.

use super::notes;
use crate::gate::calibration::{CalibratedGate, CalibratedRecipe, Calibration, Effect, Judged, direction};
use crate::report::number;
use crate::statistics::{CONFIDENCE, rate_above};
use ulplab_core::error::{Result, counted};
use ulplab_core::metrics::{Better, Metric};

/// A shipped experiment without a calibration, and the reason.
pub struct Uncalibrated {
    pub experiment: String,
    pub why: String,
}

/// False-alarm rates for which the page shows the bound that each gate would have.
pub const RATES: [f64; 2] = [1e-3, 1e-6];

/// Returns the page about these calibrations, and about `others`, the shipped experiments without a calibration.
pub fn page(calibrations: &[Calibration], others: &[Uncalibrated]) -> Result<String> {
    let mut text = String::from(
        "# Size and power of the gates of experiments\n\n\
         This page lists how often the gates of the shipped experiments fail what is right, and what they notice;\n\
         [gates](../gates.md) says what the words mean and which tests are used.\n\n\
         <!-- `ulplab gate --calibrated` writes this page from stored calibrations. -->\n",
    );
    for calibration in calibrations {
        text += &format!("\n## {}\n\n{}", calibration.experiment, tables(calibration)?);
    }
    if !others.is_empty() {
        text += "\n## Others\n\n";
        let line = |other: &Uncalibrated| format!("* `{}`: {}.\n", other.experiment, other.why);
        text.extend(others.iter().map(line));
    }
    Ok(text)
}

/// Renders one calibration as Markdown: a sentence about the draws (random samples), and a table of the gates.
pub fn tables(calibration: &Calibration) -> Result<String> {
    let mut text = format!(
        "{} of each statistic, each over {}, seed {}, run `{}`.\n\n",
        counted(calibration.draws, "draw"),
        data(calibration),
        calibration.seed,
        &calibration.run[..calibration.run.len().min(16)],
    );
    let gains = gains(calibration);
    let mut header: Vec<String> = ["gate", "recipe", "required", "median of the right", "worst", "size"]
        .map(String::from)
        .to_vec();
    header.extend(gains.iter().map(|gain| format!("noise × {gain} noticed")));
    header.extend(RATES.map(|rate| format!("bound for {rate:e}")));
    text += &line(&header);
    let rule = (0..header.len()).map(|at| if at < 2 { "---" } else { "---:" }.to_string());
    text += &line(&rule.collect::<Vec<_>>());
    for gate in &calibration.gates {
        // Recipes with the same numbers share a row.
        let mut rows: Vec<Vec<String>> = Vec::new();
        for recipe in &gate.recipes {
            let row = row(gate, recipe, &gains)?;
            let same = |other: &Vec<String>| other[0] == row[0] && other[2..] == row[2..];
            match rows.last_mut().filter(|other| same(other)) {
                Some(other) => other[1] += &format!(", {}", row[1]),
                None => rows.push(row),
            }
        }
        text.extend(rows.iter().map(|row| line(row)));
    }
    let notes = notes::of(calibration)?;
    if !notes.is_empty() {
        text += &format!("\n{}\n", notes.join("\n"));
    }
    Ok(text)
}

/// Formats a row of a table. No cell contains `|`.
fn line(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

/// Describes the windows and texts of which each random sample (draw) consists.
fn data(calibration: &Calibration) -> String {
    let texts = calibration.windows - calibration.drawn_windows;
    let text = (texts > 0).then(|| {
        let (windows, tokens, from) = (
            counted(texts, "window"),
            calibration.tokens,
            calibration.texts.join(", "),
        );
        format!("{windows} of {tokens} tokens from {from}")
    });
    let all: Vec<String> = calibration.drawn.iter().cloned().chain(text).collect();
    all.join(" and ")
}

/// Returns the sizes of noise, in multiples of the rounding error, sorted. The table has a column for each size.
fn gains(calibration: &Calibration) -> Vec<f64> {
    let recipes = calibration.gates.iter().flat_map(|gate| &gate.recipes);
    let gains = recipes.flat_map(|recipe| recipe.effects.iter().map(Effect::factor));
    let mut gains: Vec<f64> = gains.collect();
    gains.sort_by(f64::total_cmp);
    gains.dedup();
    gains
}

fn row(gate: &CalibratedGate, recipe: &CalibratedRecipe, gains: &[f64]) -> Result<Vec<String>> {
    let metric = Metric::find(&gate.metric)?;
    let say = |value: f64| number::of_metric(metric.name, value);
    let mut sorted = recipe.null.clone();
    let better = direction(&gate.require, metric);
    sorted.sort_by(|a, b| match better {
        Better::Lower => a.total_cmp(b),
        Better::Higher => b.total_cmp(a),
    });
    let bounds = RATES.map(|rate| match recipe.threshold(metric, rate) {
        Ok((bound, found)) if found.excesses.is_some() => say(bound.value),
        Ok((bound, _)) => format!("{} (drawn)", say(bound.value)),
        Err(_) => "—".into(),
    });
    let judged = Judged::new(gate, recipe)?;
    let unknown = || "—".to_string();
    let size = judged.failed(recipe).map_or_else(unknown, |(failed, n)| {
        let most = number::error(rate_above(failed, n, CONFIDENCE));
        format!("{failed} of {n} (≤ {most})")
    });
    let noticed = gains.iter().map(|gain| {
        let effect = recipe.effects.iter().find(|effect| effect.factor() == *gain);
        let noticed = effect.and_then(|effect| Some((effect, judged.noticed(effect)?)));
        noticed.map_or_else(unknown, |(effect, noticed)| {
            let smaller = (effect.gain < 1.0).then(|| format!(" (× {})", number::error(effect.gain)));
            format!("{noticed} of {}{}", effect.values.len(), smaller.unwrap_or_default())
        })
    });
    let mut cells = vec![
        gate.title(),
        format!("`{}`", recipe.recipe),
        match gate.flake {
            Some(flake) => format!("flake {flake:e}"),
            None => format!("`{}`", gate.require),
        },
        sorted.get(sorted.len() / 2).map_or_else(unknown, |value| say(*value)),
        sorted.last().map_or_else(unknown, |value| say(*value)),
        size,
    ];
    cells.extend(noticed);
    cells.extend(bounds);
    Ok(cells)
}
