//! Checks of the data sources of an experiment, and of the number and size of its random samples (draws).

use super::parse::{is_name, no_name};
use super::study::check_among;
use crate::experiment::{Mistake, Reading, Source};
use ulplab_core::record::Phase;

/// Limits on the number of random samples and on the values in a sample. Larger numbers are refused as mistakes: such a run would
/// not end, or would not fit in memory.
const MOST_DRAWS: usize = 1 << 20;
const MOST_NUMBERS: usize = 1 << 32;

/// Returns the names of the windows with random samples: `draw-1`, `draw-2`, ….
pub fn draw_names(draws: usize) -> impl Iterator<Item = String> {
    (1..=draws).map(|draw| format!("draw-{draw}"))
}

/// Returns a text such as `4 draws of 64 × 1024`; `None` if `draws` is 0.
pub fn drawn(draws: usize, each: &str) -> Option<String> {
    let noun = if draws == 1 { "draw" } else { "draws" };
    (draws > 0).then(|| format!("{draws} {noun} of {each}"))
}

/// Returns a text such as `4 draws of 2 heads × 1024 steps`, without the heads if there is only one; `None` if `draws` is 0.
/// `words` are the names of rows and columns.
pub fn drawn_of(draws: usize, [rows, cols]: [usize; 2], words: [&str; 2]) -> Option<String> {
    let all = format!("{rows} {} × {cols} {}", words[0], words[1]);
    let each = if rows == 1 { format!("{cols} {}", words[1]) } else { all };
    drawn(draws, &each)
}

/// Returns the site names that records of these sources have. A source at sites of a model also has a name in layer 0, which
/// stands for all layers.
pub fn site_names<'a, T>(
    sources: &'a [Source<T>],
    is_site: impl Fn(&T) -> bool + 'a,
) -> impl Iterator<Item = String> + 'a {
    sources.iter().flat_map(move |source| {
        let layers = is_site(&source.from).then(|| format!("layers.0.{}", source.name));
        std::iter::once(source.name.clone()).chain(layers)
    })
}

/// Checks that there are recipes.
pub fn check_recipes<R>(recipes: &[R]) -> Result<(), Mistake> {
    Mistake::refuse(
        recipes.is_empty(),
        "recipe",
        "there is nothing to try: expected [[recipe]]",
    )
}

/// Returns an error if the list of phases is empty.
pub fn check_phases(phases: &[Phase]) -> Result<(), Mistake> {
    let message = "phases is missing: expected phases = [\"local\", \"cumulative\"], or one of the two";
    Mistake::refuse(phases.is_empty(), "phases", message)
}

/// Checks that there are sources, that their names are distinct, and that `check` accepts each.
pub fn check_sources<T>(sources: &[Source<T>], check: impl Fn(&T) -> Result<(), String>) -> Result<(), Mistake> {
    let message = "[[source]] is missing: expected name = \"NAME\" and from = ORIGIN, once or several times";
    Mistake::refuse(sources.is_empty(), "source", message)?;
    sources.iter().enumerate().try_for_each(|(at, Source { name, from })| {
        let wrong = |mistake: Mistake| mistake.within("source", at);
        Mistake::refuse(!is_name(name, "_-"), "name", no_name(name)).map_err(wrong)?;
        let twice = sources[..at].iter().any(|other| other.name == *name);
        Mistake::refuse(twice, "name", format_args!("source '{name}' is given twice")).map_err(wrong)?;
        check(from).map_err(|message| wrong(Mistake::at("from", format!("source '{name}': {message}"))))
    })
}

/// Checks the sources and windows of an experiment whose sources are random numbers or sites (named tensors) of a model.
/// `check` must accept each source. Sources for which `is_site` is true need a model and text; random sources need `draws`.
/// Returns true if there is a source at sites of a model.
pub fn check_sources_and_windows<T>(
    sources: &[Source<T>],
    check: impl Fn(&T) -> Result<(), String>,
    is_site: impl Fn(&T) -> bool,
    (draws, shape): (usize, [usize; 2]),
    reading: Reading,
) -> Result<bool, Mistake> {
    check_sources(sources, check)?;
    let sites = sources.iter().any(|source| is_site(&source.from));
    let drawn = sources.iter().any(|source| !is_site(&source.from));
    check_draws(draws, shape, "[rows, columns]", drawn)?;
    reading.check()?;
    let lacks = reading.model.is_none() || reading.windows.is_empty();
    let message = "sources at sites of a model need a model and windows of text";
    Mistake::refuse(sites && lacks, "model", message)?;
    let message = "windows of text are read by sources at sites of a model, and there is none";
    Mistake::refuse(!reading.windows.is_empty() && !sites, "window", message)?;
    Ok(sites)
}

/// Checks the keys `draws` and `shape` of random samples: they must be within their limits, and be given exactly if a source is
/// random (`drawn`). `words` names the two numbers of `shape` in messages.
pub fn check_draws(draws: usize, shape: [usize; 2], words: &str, drawn: bool) -> Result<(), Mistake> {
    let message = format_args!("drawn sources need draws = N and shape = {words}");
    Mistake::refuse(drawn && (draws == 0 || shape.contains(&0)), "draws", message)?;
    let message = format_args!("draws = {draws}: at most {MOST_DRAWS}");
    Mistake::refuse(draws > MOST_DRAWS, "draws", message)?;
    let [rows, cols] = shape;
    let many = rows.checked_mul(cols).is_none_or(|numbers| numbers > MOST_NUMBERS);
    let message = format_args!("shape = [{rows}, {cols}]: a draw has at most {MOST_NUMBERS} numbers");
    Mistake::refuse(many, "shape", message)?;
    let message = "draws and shape are of drawn sources, and there is none";
    Mistake::refuse((draws > 0 || shape != [0, 0]) && !drawn, "draws", message)
}

/// Returns checkpoints (numbers of steps or tokens): `first`, then each twice the previous one, up to `last`.
pub fn doublings(first: usize, last: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(first), |at| Some(2 * at)).take_while(move |at| *at <= last)
}

/// Checks that a gate's pattern `at` matches a site of an experiment with checkpoints. If a draw ends before the gate's
/// checkpoint, the message says how many steps or tokens (`unit`) the gate needs.
pub fn check_checkpoint(
    at: &str,
    sites: impl Iterator<Item = String>,
    unit: &str,
    [rows, reached]: [usize; 2],
) -> Result<(), String> {
    check_among(at, sites).map_err(|why| match at.rsplit_once('.').map(|(_, last)| last.parse::<usize>()) {
        Some(Ok(needed)) if needed > reached => format!(
            "gate at '{at}' needs {needed} {unit}, and shape = [{rows}, {reached}] has {reached}: give a larger shape, or \
             other gates with --rules FILE or --set 'gate=[…]'"
        ),
        _ => why,
    })
}
