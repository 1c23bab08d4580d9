//! Estimate of the memory of a run before the run begins. A run that does not fit is refused with a suggested smaller size.

use std::fmt;
use std::str::FromStr;

use reference::Site;
use reference::paths::{Config, TensorSpec};
use reference::sites::{Decision, Flow};
use serde_json::json;

use super::study::Study;
use crate::experiment::Mistake;
use crate::run::plan::{Plan, REFERENCE};
use ulplab_core::pattern::matches;

/// Largest number of cells of a plan, except for kernels. A larger plan is refused as a mistake: planning it would take minutes
/// and gigabytes.
const MOST_CELLS: usize = 1 << 18;

/// A number of bytes, written `512M`, `16G` or `16GiB`; units are powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Bytes(pub f64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = text[digits.len()..].to_ascii_uppercase();
        let unit = unit.trim_end_matches('B').trim_end_matches('I');
        let power = ["", "K", "M", "G", "T"].iter().position(|known| *known == unit);
        let wrong = || format!("'{text}' is not a size: expected a number with K, M, G or T, e.g. 16G");
        let power = power.ok_or_else(wrong)? as i32;
        match digits.trim().parse::<f64>() {
            Ok(number) if number.is_finite() && number > 0.0 => Ok(Self(number * 1024f64.powi(power))),
            _ => Err(format!("'{text}' is not a size above 0, e.g. 16G")),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let (mut value, mut unit) = (self.0, 0);
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let digits = usize::from(value < 10.0 && unit > 0);
        write!(f, "{value:.digits$} {}", UNITS[unit])
    }
}

/// The estimated memory of a run, part by part. The largest part tells the user what to make smaller. The estimates are meant to
/// exceed the actual memory: for `experiments/smoke.toml` with one thread they are 868 MB for 512 tokens and 3,036 MB for 2,048
/// tokens; the process took at most 731 and 2,317 MB.
#[derive(Default)]
pub struct Parts(Vec<(String, f64)>);

impl Parts {
    /// Adds `bytes` to the memory estimate, for the part `what` of the run.
    pub fn add(&mut self, what: impl Into<String>, bytes: f64) {
        self.0.push((what.into(), bytes));
    }

    /// Adds `bytes` to the memory estimate, for the tensor or buffer `what` of one data source.
    pub fn of_source(&mut self, source: &str, what: &str, bytes: f64) {
        self.add(format!("for {what} of source '{source}'"), bytes);
    }

    /// Adds the bytes of a model's weights in f32. Returns the number of weights.
    pub fn weights(&mut self, config: &dyn Config) -> f64 {
        let weights = weights(config);
        self.add("for the weights", 4.0 * weights);
        weights
    }

    /// Adds the memory of the comparison with the reference: the reference's tensors for one window of text, and the tensors of
    /// `at_once` cells that run in parallel. Returns the bytes of the reference's tensors.
    pub fn of_trace(&mut self, config: &dyn Config, tokens: usize, at_once: f64) -> f64 {
        let trace = 4.0 * trace(config, tokens as f64);
        let what = format!("for what the reference computes of a window of {tokens} tokens");
        self.add(what, trace);
        self.add(format!("for the cells of {at_once} threads"), 0.5 * trace * at_once);
        trace
    }

    /// Returns the sum of the bytes of all parts.
    pub fn total(&self) -> f64 {
        self.0.iter().map(|(_, bytes)| bytes).sum()
    }
}

/// Returns an error if a plan has more than `MOST_CELLS` cells.
pub fn check_cells(plan: &Plan) -> Result<(), Mistake> {
    let (windows, phases) = (plan.windows.len(), plan.phases.len());
    let recipes = plan.recipes.iter().filter(|recipe| recipe.name != REFERENCE).count();
    let cells = windows.saturating_mul(recipes).saturating_mul(phases);
    let drawn = plan.windows.iter().filter(|name| name.starts_with("draw-")).count();
    let key = if 2 * drawn > windows { "draws" } else { "window" };
    let most = MOST_CELLS / (recipes * phases).max(1);
    let message = format_args!(
        "{windows} windows × {recipes} recipes × {phases} phases are {cells} cells, at most {MOST_CELLS} can be planned: {most} \
         windows would do"
    );
    // Plans of kernels are exempt: their cells are the cases of each operation, not the product of windows, recipes and phases.
    Mistake::refuse(!plan.by_case() && cells > MOST_CELLS, key, message)
}

/// Returns an error if a run needs more than `limit` bytes of memory, or has more tokens than the model's context.
pub fn check_size(
    study: &dyn Study,
    config: Option<&dyn Config>,
    threads: usize,
    limit: Option<Bytes>,
) -> Result<(), Mistake> {
    let reading = study.reading();
    let tokens = reading.tokens;
    let shorter = |most: &usize| !reading.windows.is_empty() && tokens > *most;
    if let Some(longest) = config.and_then(Config::longest).filter(shorter) {
        let message = format!(
            "tokens = {tokens}, but up to {longest} tokens are computed of this model: beyond, its RoPE turns by other frequencies \
             (original_max_position_embeddings of a LongRoPE, max_position_embeddings of a dynamic one; beyond_trained changes nothing)"
        );
        return Err(Mistake::at("tokens", message));
    }
    let most = config.and_then(Config::most_tokens);
    let beyond = reading.beyond_trained.unwrap_or(false);
    if let Some(most) = most.filter(|most| shorter(most) && !beyond) {
        let more = reading
            .beyond_trained
            .map_or("", |_| "; beyond_trained = true allows more");
        let message = format!("tokens = {tokens}, but the model's max_position_embeddings is {most}{more}");
        return Err(Mistake::at("tokens", message));
    }
    let Some(limit) = limit else { return Ok(()) };
    let parts = parts(study, config, threads);
    let needed = parts.total();
    if needed <= limit.0 {
        return Ok(());
    }
    let key = if reading.windows.is_empty() { "shape" } else { "tokens" };
    let largest = parts.0.iter().max_by(|a, b| a.1.total_cmp(&b.1));
    let largest = largest.map_or(String::new(), |(what, bytes)| {
        format!(" ({} of it {what})", Bytes(*bytes))
    });
    let smaller = smaller(study, config, threads, limit);
    let smaller = smaller.map_or(String::new(), |what| format!(". {what} would fit"));
    let message = format!(
        "the run needs about {} of memory{largest}, but only {limit} is allowed{smaller}; --max-memory sets the limit",
        Bytes(needed),
    );
    Err(Mistake::at(key, message))
}

/// Halves the experiment's size until the run fits. Returns the changed line of the experiment file; `None` if no size fits.
fn smaller(study: &dyn Study, config: Option<&dyn Config>, threads: usize, limit: Bytes) -> Option<String> {
    let (reading, shape) = (study.reading(), study.body().shift_remove("shape"));
    let shape = shape.and_then(|shape| serde_json::from_value::<[usize; 2]>(shape).ok());
    let ([rows, cols], text) = (shape.unwrap_or_default(), !reading.windows.is_empty());
    let (mut size, least) = if text { (reading.tokens, 2) } else { (rows, 1) };
    while size > least {
        size /= 2;
        let (key, value, line) = match text {
            true => ("tokens", json!(size), format!("tokens = {size}")),
            false => ("shape", json!([size, cols]), format!("shape = [{size}, {cols}]")),
        };
        if parts(&*study.with(key, value)?, config, threads).total() <= limit.0 {
            return Some(line);
        }
    }
    None
}

/// Returns the estimated memory of a run with this many threads.
fn parts(study: &dyn Study, config: Option<&dyn Config>, threads: usize) -> Parts {
    let at_once = threads.min(study.recipes().len().max(1));
    let mut parts = Parts::default();
    study.memory(&mut parts, config, at_once as f64);
    parts
}

/// Returns the bytes that are free on the machine and in the process's control group, the smaller of the two. `None` if both are
/// unknown.
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

/// Returns the number of weights of a model.
pub fn weights(config: &dyn Config) -> f64 {
    let numbers = |spec: &TensorSpec| spec.shape.iter().map(|size| *size as f64).product::<f64>();
    config.tensors().iter().map(numbers).sum()
}

/// Returns the number of values of a window that are stored for comparison: tensors at the compared sites, the scores by which
/// cache entries were selected, and the output.
fn trace(config: &dyn Config, tokens: f64) -> f64 {
    let path = config.path();
    let numbers = config.places().into_iter().map(|(site, layer)| match site.decision() {
        Some(Decision::TopK { key, .. }) => {
            let per_row = path.site(key).zip(layer);
            let per_row = per_row.and_then(|(key, layer)| config.tokens_per_row(key, layer));
            per_row.map_or(0.0, |per_row| tokens / per_row as f64)
        }
        _ if site.compared || site.flow == Flow::Output => config.cols_of_token(site) as f64,
        _ => 0.0,
    });
    tokens * numbers.sum::<f64>()
}

/// Returns the number of values per token at the sites that match a pattern, summed over all layers.
pub fn site_cols(config: &dyn Config, at: &str) -> f64 {
    let places = config.places().into_iter();
    let named = places.filter(|(site, layer)| matches(at, &Site::new(*layer, site.name).to_string()));
    named.map(|(site, _)| config.cols_of_token(site) as f64).sum()
}
