//! How much a run would take, before anything is run: what does not fit is refused in a sentence that says what would.

use std::fmt;
use std::str::FromStr;

use reference::paths::deepseek_v4::{Config, LayerType};
use reference::paths::swap_ffn::BANKS;

use super::model::probe::COMPARED;
use super::recurrence;
use super::swap_ffn::Sizes;
use crate::experiment::source::Origin;
use crate::experiment::{Experiment, Kind};
use crate::run::plan::REFERENCE;
use ulplab_core::pattern::matches;

/// More cells are a slip: planning them alone would take minutes and gigabytes.
const MOST_CELLS: usize = 1 << 18;

/// A number of bytes, written `512M`, `16G` or `16GiB`; units are powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Bytes(pub f64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = text[digits.len()..].to_ascii_uppercase();
        let power = match unit.trim_end_matches('B').trim_end_matches('I') {
            "" => 0,
            "K" => 1,
            "M" => 2,
            "G" => 3,
            "T" => 4,
            _ => {
                return Err(format!(
                    "'{text}' is not a size: expected a number with K, M, G or T, e.g. 16G"
                ));
            }
        };
        match digits.trim().parse::<f64>() {
            Ok(number) if number.is_finite() && number > 0.0 => Ok(Self(number * 1024f64.powi(power))),
            _ => Err(format!("'{text}' is not a size above 0, e.g. 16G")),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        if value < 10.0 && unit > 0 {
            write!(f, "{value:.1} {}", UNITS[unit])
        } else {
            write!(f, "{value:.0} {}", UNITS[unit])
        }
    }
}

/// What a run holds in memory at once, part by part; the largest says what to make smaller.
struct Parts(Vec<(String, f64)>);

impl Parts {
    fn total(&self) -> f64 {
        self.0.iter().map(|(_, bytes)| bytes).sum()
    }

    fn largest(&self) -> Option<&(String, f64)> {
        self.0.iter().max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// Refuses more cells than can be planned: `(offending key, message)`.
pub fn check_cells(experiment: &Experiment) -> Result<(), (String, String)> {
    let windows = experiment.draws + experiment.windows.len();
    let (recipes, phases) = (experiment.recipes.len(), experiment.phases().len());
    let cells = [windows, recipes, phases]
        .iter()
        .try_fold(1usize, |cells, n| cells.checked_mul(*n));
    if experiment.kind == Kind::Kernels || cells.is_some_and(|cells| cells <= MOST_CELLS) {
        return Ok(());
    }
    let key = if experiment.draws > experiment.windows.len() {
        "draws"
    } else {
        "window"
    };
    let most = MOST_CELLS / (recipes * phases).max(1);
    Err((
        key.into(),
        format!(
            "{windows} windows × {recipes} recipes × {phases} phases are {} cells, at most {MOST_CELLS} can be planned: {most} \
             windows would do",
            cells.map_or("too many".into(), |cells| cells.to_string())
        ),
    ))
}

/// Refuses what does not fit into `limit` bytes, or exceeds what the model was made for: `(offending key, message)`.
pub fn check_size(
    experiment: &Experiment,
    config: Option<&Config>,
    threads: usize,
    limit: Option<Bytes>,
) -> Result<(), (String, String)> {
    let tokens = experiment.tokens;
    let most = config.and_then(|config| config.max_position_embeddings);
    if let Some(most) = most.filter(|most| !experiment.windows.is_empty() && tokens > *most) {
        let message = format!("tokens = {tokens}, but max_position_embeddings of the model is {most}");
        return Err(("tokens".into(), message));
    }
    let Some(limit) = limit else { return Ok(()) };
    let parts = parts(experiment, config, threads);
    let needed = parts.total();
    if needed <= limit.0 {
        return Ok(());
    }
    let key = if experiment.shape[0] > 0 { "shape" } else { "tokens" };
    let largest = parts
        .largest()
        .map(|(what, bytes)| format!("; {} of them {what}", Bytes(*bytes)));
    Err((
        key.into(),
        format!(
            "the run needs about {} of memory at once{}, and {limit} are allowed{}; --max-memory changes the limit",
            Bytes(needed),
            largest.unwrap_or_default(),
            smaller(experiment, config, threads, limit)
                .map(|what| format!(". {what} would fit"))
                .unwrap_or_default(),
        ),
    ))
}

/// The experiment's own keys, halved until it fits.
fn smaller(experiment: &Experiment, config: Option<&Config>, threads: usize, limit: Bytes) -> Option<String> {
    let fits = |experiment: &Experiment| parts(experiment, config, threads).total() <= limit.0;
    let mut other = experiment.clone();
    if experiment.windows.is_empty() || experiment.kind == Kind::SwapFfn {
        while other.shape[0] > 1 {
            other.shape[0] /= 2;
            if fits(&other) {
                return Some(format!("shape = [{}, {}]", other.shape[0], other.shape[1]));
            }
        }
        return None;
    }
    while other.tokens > 2 {
        other.tokens /= 2;
        if fits(&other) {
            return Some(format!("tokens = {}", other.tokens));
        }
    }
    None
}

/// Bytes that may be taken: what is free on the machine and in the process's control group. `None` if the system does not say.
pub fn available() -> Option<Bytes> {
    let read = |file: &str| std::fs::read_to_string(file).ok();
    let number = |file: &str| read(file)?.trim().parse::<f64>().ok();
    let machine = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok()
    });
    let group = number("/sys/fs/cgroup/memory.max").map(|most| {
        let taken = number("/sys/fs/cgroup/memory.current").unwrap_or(0.0);
        (most - taken).max(0.0)
    });
    let machine = machine.map(|kib| kib * 1024.0);
    let least = [machine, group].into_iter().flatten().reduce(f64::min)?;
    Some(Bytes(least))
}

/// What is held at once: the exact side of a window, and what each thread's cell adds. The estimates are to be above what is
/// taken: for `experiments/smoke.toml` with one thread they are 868 MB for 512 tokens and 3,036 MB for 2,048, where the
/// process took 731 and 2,317 MB at most.
fn parts(experiment: &Experiment, config: Option<&Config>, threads: usize) -> Parts {
    let [rows, cols] = experiment.shape.map(|size| size as f64);
    let tokens = experiment.tokens as f64;
    let at_once = threads.min(experiment.recipes.len().max(1)) as f64;
    let mut parts = Vec::new();
    let texts = config.filter(|_| !experiment.windows.is_empty());
    if let Some(config) = texts {
        let weights: f64 = config.tensors().iter().map(|spec| numbers(&spec.shape)).sum();
        parts.push(("for the weights".into(), 4.0 * weights));
        if matches!(experiment.kind, Kind::Model | Kind::Recall) {
            let trace = 4.0 * trace(config, tokens);
            parts.push((
                format!("for what the reference computes of a window of {tokens} tokens"),
                trace,
            ));
            parts.push((format!("for the cells of {at_once} threads"), 0.5 * trace * at_once));
            if experiment.kind == Kind::Model {
                parts.push((
                    format!("for '{REFERENCE}', the check in f64"),
                    8.0 * weights + 2.0 * trace,
                ));
            }
        }
    }
    for source in &experiment.sources {
        let name = &source.name;
        let mut add = |what: &str, bytes: f64| parts.push((format!("for {what} of source '{name}'"), bytes));
        match (&source.from, experiment.kind) {
            (Origin::Site(at), Kind::RoundTrip) => {
                let values = texts.map_or(0.0, |config| tokens * site_cols(config, at));
                add("the values", 4.0 * values);
            }
            (Origin::Site(_), _) => {}
            (Origin::Vectors { channels, .. }, _) => {
                let scores = rows * cols;
                add(
                    "queries, entries and scores",
                    4.0 * (scores + (rows + cols) * *channels as f64),
                );
                add("the scores of all threads", 2.0 * 4.0 * scores * at_once);
            }
            (Origin::LinearAttention { state: [k, v], .. }, _) => {
                let (k, v) = (*k as f64, *v as f64);
                let piece = cols.min(recurrence::PIECE as f64) * rows * (3.0 * k + 2.0 * v);
                let points = recurrence::checkpoints(experiment).count() as f64;
                let kept = points * rows * v * (recurrence::CHECKPOINT as f64 + k);
                add(
                    "inputs of a piece and the states kept",
                    (12.0 * piece + 12.0 * kept) * (1.0 + at_once),
                );
            }
            (Origin::DiagonalSsm { states, .. }, _) => {
                let points = recurrence::checkpoints(experiment).count() as f64;
                let kept = points * rows * (recurrence::CHECKPOINT as f64 + *states as f64);
                let piece = cols.min(recurrence::PIECE as f64) * rows;
                add(
                    "inputs of a piece and the states kept",
                    (24.0 * piece + 12.0 * kept) * (1.0 + at_once),
                );
            }
            (Origin::SwapFfn(sizes), _) => add("models, banks and checkpoints", swap_ffn(sizes, rows, cols, at_once)),
            _ => {
                add("the values", 4.0 * rows * cols);
                add("the values that threads round", 8.0 * rows * cols * at_once);
            }
        }
    }
    Parts(parts)
}

fn numbers(shape: &[usize]) -> f64 {
    shape.iter().map(|size| *size as f64).product()
}

/// Numbers that are kept of a window for comparing: tensors at the compared sites, and the scores that indexers chose by.
fn trace(config: &Config, tokens: f64) -> f64 {
    let layers = 0..config.num_hidden_layers;
    let of = |layer: usize| {
        let sites = COMPARED.iter().filter(|site| config.has_site(Some(layer), site));
        let tensors: f64 = sites.map(|site| config.token_cols(site) as f64).sum();
        let rate = config.rate(LayerType::Sparse).unwrap_or(1).max(1) as f64;
        let scores = match config.layer_types[layer] {
            LayerType::Sparse => tokens / rate,
            LayerType::Sliding | LayerType::Heavy => 0.0,
        };
        tokens * (tensors + scores)
    };
    layers.map(of).sum::<f64>() + tokens * config.vocab_size as f64
}

/// Numbers of one token at the sites that a pattern names, in all layers.
fn site_cols(config: &Config, at: &str) -> f64 {
    let names = reference::paths::deepseek_v4::SITES.iter().map(|site| site.name);
    let places = names.flat_map(|name| {
        let layers = (0..config.num_hidden_layers).map(Some).chain([None]);
        let here = layers.filter(move |layer| config.has_site(*layer, name));
        here.map(move |layer| (name, ulplab_core::record::place(layer.map(|layer| layer as u32), name)))
    });
    let named = places.filter(|(_, place)| matches(at, place));
    named.map(|(name, _)| config.token_cols(name) as f64).sum()
}

/// A model in f64 and one in f32 a thread, the banks, and what is kept of the tokens that are compared.
fn swap_ffn(sizes: &Sizes, sequences: f64, tokens: f64, at_once: f64) -> f64 {
    let config = sizes.config();
    let [d, ff, cores] = [config.d_model, config.d_ff, config.core_count].map(|size| size as f64);
    let [router, k, r] = [config.d_router, config.collapse_k, config.collapse_r].map(|size| size as f64);
    let events = config.n_events as f64;
    let weights = 3.0 * d * ff + cores * ff + router * d + k * r * d + k * cores;
    let banks = sequences * cores * BANKS as f64 * d;
    let points = tokens.max(1.0).log2() + 1.0;
    let kept = points * (events * banks * 4.0 + banks * 8.0);
    8.0 * weights
        + 8.0 * banks
        + kept
        + tokens * events * cores * sequences * 24.0
        + at_once * 4.0 * (weights + 2.0 * banks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes, written) in [
            ("1", 1.0, "1 B"),
            ("512M", 536_870_912.0, "512 MiB"),
            ("16G", 17_179_869_184.0, "16 GiB"),
            ("1.5gib", 1_610_612_736.0, "1.5 GiB"),
            ("2KB", 2048.0, "2.0 KiB"),
        ] {
            let read: Bytes = text.parse().expect(text);
            assert_eq!(read, Bytes(bytes));
            assert_eq!(read.to_string(), written);
        }
        for text in ["", "G", "-1G", "0", "NaN", "inf", "1X", "1e400"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }
}
