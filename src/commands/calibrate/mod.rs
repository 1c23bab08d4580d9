//! `ulplab gate --calibrate`: measures how often each gate of an experiment gives a false alarm, and which errors it detects.

mod notes;
mod null;
mod others;
mod page;

use std::io::Write;
use std::path::{Path, PathBuf};

use super::sweep::{self, SweepArgs};
use crate::experiment::Rule;
use crate::gate;
use crate::gate::calibration::{CalibratedGate, CalibratedRecipe, Calibration, Effect, SCHEMA, definition, direction};
use crate::json;
use crate::run::folder::{Folder, RUN};
use crate::run::runs;
use crate::run::summary::summarize;
use crate::run::{Manifest, seal};
use null::{Null, Trial, derive};
use ulplab_core::atomic::{check_writable, write_atomic, write_text};
use ulplab_core::error::{Error, Exit, Result, counted, refuse};
use ulplab_core::list::grouped;
use ulplab_core::metrics::Metric;
use ulplab_core::record::Record;

/// Options of `ulplab gate` that measure the gates of an experiment instead of judging a run.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct CalibrateArgs {
    /// Measure the gates of this experiment: how often each gate fails correct results (its size), and how often it detects an
    /// error of a stated size (its power). Correct results come from other windows of the same texts, other random inputs, and sums
    /// of the model in random orders.
    #[arg(long, value_name = "EXPERIMENT", conflicts_with_all = ["run", "rules", "json"], requires = "output")]
    pub calibrate: Option<PathBuf>,
    /// File to write the calibration to; gates with `flake` name this file.
    #[arg(short, long, value_name = "FILE", requires = "calibrate", value_parser = crate::output::file_name())]
    pub output: Option<PathBuf>,
    /// Number of random samples (draws) of each gate's statistic. Each sample has as many windows as the experiment.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u16).range(1..), requires = "calibrate")]
    pub draws: u16,
    /// Size of the noise to detect, in multiples of the recipe's own error; repeatable [default: 2 and 4].
    #[arg(long = "effect", value_name = "GAIN", requires = "calibrate")]
    pub effects: Vec<f64>,
    /// Folder of the calibration run; an existing run is continued [default: runs/<name>-null/<time>].
    #[arg(long, value_name = "DIR", requires = "calibrate")]
    pub null: Option<PathBuf>,
    /// Override a key of the experiment, e.g. --set tokens=128.
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "calibrate")]
    pub overrides: Vec<String>,
    /// Print a Markdown page about these stored calibrations.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["run", "rules", "json", "calibrate"])]
    pub calibrated: Vec<PathBuf>,
}

/// Calibrates an experiment, or prints stored calibrations; `None` if the arguments ask for neither.
pub fn run(args: &CalibrateArgs) -> Result<Option<Exit>> {
    if !args.calibrated.is_empty() {
        let read = args.calibrated.iter().map(|path| Calibration::read(path));
        let read = read.collect::<Result<Vec<_>>>()?;
        let page = page::page(&read, &others::uncalibrated(&read)?)?;
        out!("{page}");
        return Ok(Some(Exit::Pass));
    }
    let (Some(experiment), Some(output)) = (&args.calibrate, &args.output) else {
        return Ok(None);
    };
    check_writable(output)?;
    let calibration = calibrate(args, experiment)?;
    out!("{}", page::tables(&calibration)?);
    write_atomic(output, |out| out.write_all(&seal::json(&json::keys(&calibration))))?;
    outln!("{}", output.display());
    Ok(Some(Exit::Pass))
}

fn calibrate(args: &CalibrateArgs, experiment: &Path) -> Result<Calibration> {
    // Reads the experiment as a sweep does: patterns of kernels are replaced by the variants that they match.
    let question = sweep::read(&SweepArgs {
        experiment: experiment.into(),
        overrides: args.overrides.clone(),
        ..SweepArgs::default()
    })?;
    let (file, parsed) = (&question.file, &question.parsed);
    let (head, study) = (&parsed.experiment.head, &*parsed.study);
    let plan = parsed.study.plan();
    let checked = study.check().and_then(|()| study.check_gates(&head.gates, &plan, None));
    checked.map_err(|mistake| file.error(&mistake))?;
    let wrong = |why: String| Error::config(&file.path, why);
    refuse(head.gates.is_empty(), "the file has no [[gate]]").map_err(wrong)?;
    let draws = args.draws.into();
    let effects = match args.effects.is_empty() {
        true => &[2.0, 4.0],
        false => &args.effects[..],
    };
    if let Some(gain) = effects.iter().find(|gain| !(gain.is_finite() && **gain > 0.0)) {
        return Err(Error::Usage(format!("--effect {gain}: expected a positive number")));
    }
    let null = derive(head, study, draws, effects)
        .map_err(|why| wrong(format!("gates of kind = \"{}\" are not calibrated: {why}", head.kind)))?;
    refuse(null.cells.is_empty(), "no gate binds a recipe that the CPU can compute").map_err(wrong)?;
    let (folder, manifest) = measure(args, &null)?;
    let reading = study.reading();
    let windows = plan.windows.len();
    let sets = sets(&manifest, reading.windows.len(), draws);
    let trials = null.trials.iter().map(|trial| {
        let rule = trial.rule;
        let what = (&rule.metric, &rule.at, rule.phase, rule.statistic);
        ((what, &rule.require, rule.flake.map(f64::to_bits)), trial)
    });
    let mut gates: Vec<CalibratedGate> = Vec::new();
    for (_, trials) in grouped(trials) {
        let recipes = trials.iter().map(|trial| {
            let definition = definition(&parsed.experiment, &trial.recipe);
            drawn(&folder, &sets, trial, definition)
        });
        gates.push(CalibratedGate::new(trials[0].rule, recipes.collect::<Result<_>>()?));
    }
    let mut texts: Vec<String> = reading.windows.iter().map(|window| window.text.clone()).collect();
    texts.sort_unstable();
    texts.dedup();
    Ok(Calibration {
        schema: SCHEMA,
        version: manifest.version.clone(),
        commit: manifest.commit.clone(),
        experiment: head.name.clone(),
        run: manifest.fingerprint.clone(),
        data: manifest.data.clone(),
        definitions: Calibration::defined(gates.iter()),
        seed: head.seed,
        tokens: reading.tokens,
        windows,
        drawn_windows: windows - reading.windows.len(),
        drawn: study.drawn(),
        texts,
        draws,
        gates,
    })
}

/// Runs the null experiment (correct recipes on other inputs), or continues its run. Writes the experiment's file next to the
/// folder of the run.
fn measure(args: &CalibrateArgs, null: &Null) -> Result<(Folder, Manifest)> {
    let name = &null.experiment.name;
    let out = args.null.clone();
    let out = out.unwrap_or_else(|| runs::fresh(name, &crate::run::now()));
    let file = out.with_added_extension("toml");
    let text = toml::to_string(&null.experiment).expect("an experiment has a form in TOML");
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).map_err(Error::io(folder, "create"))?;
    }
    write_text(&file, &text)?;
    errln!("{}: the null experiment, run in {}", file.display(), out.display());
    sweep::measure(&SweepArgs {
        experiment: file,
        only: null.cells.clone(),
        resume: out.join(RUN).is_file(),
        out: Some(out),
        ..SweepArgs::default()
    })
}

/// Returns the windows of each of `draws` random samples: an equal share of the windows with random inputs, then `texts` windows
/// of text.
fn sets(manifest: &Manifest, texts: usize, draws: usize) -> Vec<Vec<&str>> {
    let all = &manifest.plan.windows;
    let (drawn, text) = all.split_at(all.len() - texts * draws);
    let of = |windows: &'_ [String], draw: usize| {
        let each = windows.len() / draws;
        draw * each..(draw + 1) * each
    };
    let set = |draw| {
        let windows = drawn[of(drawn, draw)].iter().chain(&text[of(text, draw)]);
        windows.map(String::as_str).collect()
    };
    (0..draws).map(set).collect()
}

/// Returns the values of a gate's statistic on one recipe, one for each set of windows: first with the correct candidate, then
/// with noise of each size. If values are missing, the result states the reason.
fn drawn(
    folder: &Folder,
    sets: &[Vec<&str>],
    trial: &Trial,
    definition: serde_json::Value,
) -> Result<CalibratedRecipe> {
    let mut found = CalibratedRecipe {
        recipe: trial.recipe.clone(),
        definition,
        ..CalibratedRecipe::default()
    };
    let null = match &trial.null {
        Ok(null) => statistics(folder, sets, trial.rule, null)?
            .into_iter()
            .collect::<Option<Vec<f64>>>(),
        Err(why) => {
            found.unknown = Some(why.clone());
            return Ok(found);
        }
    };
    let Some(null) = null else {
        let (name, windows) = (trial.rule.statistic.name(), counted(sets[0].len(), "window"));
        found.unknown = Some(format!("{name} over {windows} is NaN on at least one draw"));
        return Ok(found);
    };
    found.null = null;
    match &trial.effects {
        Ok(effects) => {
            for (gain, recipe) in effects {
                let values = statistics(folder, sets, trial.rule, recipe)?;
                found.effects.push(Effect { gain: *gain, values });
            }
        }
        Err(why) => found.powerless = Some(why.clone()),
    }
    Ok(found)
}

/// Returns a gate's statistic at the layer and site where it is worst, for each set of windows; `None` if the statistic is not
/// finite.
fn statistics(folder: &Folder, sets: &[Vec<&str>], rule: &Rule, recipe: &str) -> Result<Vec<Option<f64>>> {
    let better = direction(&rule.require, Metric::find(&rule.metric)?);
    let looks = |record: &Record| rule.looks_at(&record.metric, record.layer, &record.site);
    let of_set = |set: &Vec<&str>| {
        let mut records = Vec::new();
        for window in set {
            let cell = folder.read_cell(&format!("{recipe}/{}/{window}", rule.phase))?;
            records.extend(cell.into_iter().filter(|record| looks(record)));
        }
        let summaries = summarize(&records);
        let worst = gate::worst(rule.statistic, better, summaries.iter());
        let worst = worst.ok_or_else(|| Error::Usage(format!("{recipe}: nothing was measured at {}", rule.at)))?;
        Ok(Some(rule.statistic.value(worst)).filter(|value| value.is_finite()))
    };
    sets.iter().map(of_set).collect()
}
