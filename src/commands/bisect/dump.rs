//! Compares a dump (tensors of another program) with the reference, to find the sites where an error arises.
//!
//! The reference reads the same tokens, and runs twice. In the first run, each tensor of the reference is compared with the
//! dump's tensor and then replaced by it. So the error at a site is the error that the other program made after the previous
//! dumped site. The second run replaces nothing, and gives the total errors.

use std::collections::HashMap;
use std::path::Path;

use reference::paths::{Config, Input, Model};
use reference::{Numerics, Site, SiteInfo, SiteKind, Tensor};
use serde::Serialize;

use super::{BisectArgs, Level, by_size};
use crate::commands::compare::Gate;
use crate::commands::sweep::Prepared;
use crate::experiment::Window;
use crate::json;
use crate::studies::model::ModelStudy;
use ulplab_core::error::{Error, Exit, Result, counted, did_you_mean, refuse};
use ulplab_core::metrics::{Pair, RELATIVE_L2};
use ulplab_core::pattern::matches_nothing;
use ulplab_core::record::Worst;
use ulplab_core::tensorfile::{Kind, TensorFile};

/// Maximum number of rows of the table.
const SHOWN: usize = 12;

/// The errors of a dump (tensors of another program) at one site.
#[derive(Serialize)]
struct SiteError {
    place: String,
    /// The previous site of the dump, from whose values the reference computed this site; `None` for the first site.
    after: Option<String>,
    /// Relative error that arose since the previous site of the dump.
    #[serde(with = "ulplab_core::record::nullable")]
    own: f64,
    /// Total relative error.
    #[serde(with = "ulplab_core::record::nullable")]
    total: f64,
    /// The gates that fail, each with the measured value.
    failures: Vec<String>,
    /// Number of gates that apply to this site.
    gates: usize,
    /// The element with the largest error: its index, expected value and value in the dump.
    worst: Option<Worst>,
}

/// The result of judging a dump (tensors of another program) of one window.
#[derive(Serialize)]
struct Answer {
    dump: String,
    window: String,
    sites: Vec<SiteError>,
    /// The first site whose error since the previous site fails a gate.
    first: Option<String>,
    verdict: &'static str,
}

/// Judges a dump (tensors of another program) of one window.
///
/// # Errors
/// Returns an error if the dump does not fit the model and the window, or a gate matches no site.
pub fn run(
    args: &BisectArgs,
    file: &Path,
    study: &ModelStudy,
    prepared: &Prepared,
    model: &dyn Model<f32>,
) -> Result<Exit> {
    let other = args.to != Level::Formats || args.right != crate::run::plan::REFERENCE;
    let message = "--dump is compared with the reference, site by site: it has no --to and no --right";
    Error::refuse(other, message)?;
    let gates = args.gates.iter().map(|gate| gate.parse());
    let gates = gates.collect::<Result<Vec<Gate>>>()?;
    let names: Vec<String> = study.windows.iter().map(Window::name).collect();
    let at = match &args.window {
        None => 0,
        Some(name) => names.iter().position(|other| other == name).ok_or_else(|| {
            let hint = did_you_mean(name, names.iter().map(String::as_str));
            let known = names.join(", ");
            Error::Usage(format!("--window {name}: the experiment has {known}{hint}"))
        })?,
    };
    let ids = &prepared.inputs.texts[at].ids;
    let dump = Dump::open(file, model.config())?;
    for gate in &gates {
        if !dump.order.iter().any(|place| gate.matches(place)) {
            let names = dump.order.iter().map(String::as_str);
            let why = matches_nothing("site of the dump", &gate.pattern, names);
            return Err(Error::Usage(format!("gate '{}': {why}", gate.text)));
        }
    }
    let measure = |fed: bool| -> Result<Vec<(String, Pair, Vec<usize>)>> {
        let mut reader = Reader {
            dump: &dump,
            fed,
            passed: Vec::new(),
            wrong: None,
        };
        let mut state = model.state(Vec::new()).map_err(Error::Reference)?;
        let ran = model.run(&mut *state, Input::Ids(ids), &mut reader);
        ran.map_err(Error::Reference)?;
        reader.wrong.map_or(Ok(()), |wrong| Err(Error::data(file, wrong)))?;
        Ok(reader.passed)
    };
    let (own, total) = (measure(true)?, measure(false)?);
    let mut before: Option<String> = None;
    let mut sites = Vec::new();
    for ((place, own, shape), (_, total, _)) in own.into_iter().zip(total) {
        let relative = |pair: &Pair| RELATIVE_L2.measure(pair).unwrap_or(f64::NAN);
        let bound: Vec<&Gate> = gates.iter().filter(|gate| gate.matches(&place)).collect();
        let failed = bound.iter().filter_map(|gate| {
            let value = gate.metric.measure(&own).unwrap_or(f64::NAN);
            (!gate.bound.admits(value)).then(|| format!("{} is {value:.4e}, gate {}", gate.metric.name, gate.text))
        });
        sites.push(SiteError {
            after: before.replace(place.clone()),
            own: relative(&own),
            total: relative(&total),
            failures: failed.collect(),
            gates: bound.len(),
            worst: own.worst.map(|worst| worst.in_shape(&shape)),
            place,
        });
    }
    let first = sites.iter().find(|site| !site.failures.is_empty());
    let first = first.map(|site| site.place.clone());
    let (exit, verdict) = match (&first, gates.is_empty()) {
        (Some(_), _) => (Exit::GateFailed, "FAIL"),
        (None, true) => (Exit::NotJudged, "NOT JUDGED"),
        (None, false) => (Exit::Pass, "PASS"),
    };
    let answer = Answer {
        dump: file.display().to_string(),
        window: names[at].clone(),
        sites,
        first,
        verdict,
    };
    json::print_or(args.json, &answer, || text(&answer))?;
    Ok(exit)
}

fn text(answer: &Answer) -> String {
    let (dump, window, sites) = (&answer.dump, &answer.window, &answer.sites);
    let mut text = format!("{dump} on {window}: {}\n\n", counted(sites.len(), "site"));
    text += "own error: what the sites of the dump before it do not explain\n\n";
    text += &format!("{:<36} {:>10} {:>10}  gates\n", "site", "own error", "in all");
    let mut shown: Vec<usize> = (0..sites.len()).collect();
    shown.sort_by(|a, b| by_size(sites[*b].own, sites[*a].own));
    shown.truncate(SHOWN);
    let first_at = sites.iter().position(|site| Some(&site.place) == answer.first.as_ref());
    shown.extend(first_at.filter(|at| !shown.contains(at)));
    shown.sort_unstable();
    for site in shown.iter().map(|at| &sites[*at]) {
        let gates = match (site.gates, site.failures.is_empty()) {
            (0, _) => "—",
            (_, true) => "hold",
            (_, false) => "FAIL",
        };
        let (place, own, total) = (&site.place, site.own, site.total);
        text += &format!("{place:<36} {own:>10.3e} {total:>10.3e}  {gates}\n");
    }
    if let more @ 1.. = sites.len() - shown.len() {
        text += &format!("and {} with smaller errors\n", counted(more, "site"));
    }
    text.push('\n');
    if let Some(site) = first_at.map(|at| &sites[at]) {
        let after = site.after.as_ref();
        let after = after.map_or("the tokens".to_string(), |after| format!("the dump's {after}"));
        let (place, failures) = (&site.place, site.failures.join("; "));
        text += &format!("{place} is the first site with an error of its own, computed from {after}: {failures}\n");
        if let Some(worst) = &site.worst {
            let (index, want, got) = (&worst.index, worst.want, worst.got);
            text += &format!("  furthest off is {index:?}: the reference has {want:e}, the dump {got:e}\n");
        }
    }
    let (verdict, judged) = (answer.verdict, sites.iter().filter(|site| site.gates > 0).count());
    if verdict == "NOT JUDGED" {
        return text + "NOT JUDGED: no --gate says how large an error may be\n";
    }
    let failed = sites.iter().filter(|site| !site.failures.is_empty()).count();
    let others = match sites.len() - judged {
        0 => String::new(),
        others => format!("; no gate judges {}", counted(others, "other site")),
    };
    let judged = counted(judged, "judged site");
    text + &format!("{verdict}: {failed} of {judged} fail by their own error{others}\n")
}

/// Tensors of a dump (tensors of another program), by the names of their sites.
struct Dump {
    tensors: HashMap<String, Vec<f32>>,
    /// Names of the sites, in the order in which the model computes them.
    order: Vec<String>,
}

impl Dump {
    /// Reads every tensor of a file. The name of each tensor must be a site of the model.
    fn open(path: &Path, config: &dyn Config) -> Result<Self> {
        let file = TensorFile::open(path)?;
        let wrong = |message: String| Error::data(path, message);
        let mut places: Vec<_> = config.places();
        places.retain(|(info, _)| info.kind == SiteKind::Tensor);
        let order = |name: &str| config.path().sites.iter().position(|site| site.name == name);
        places.sort_by_key(|(info, layer)| (layer.is_none(), *layer, order(info.name)));
        let name = |(info, layer): &(&SiteInfo, Option<usize>)| Site::new(*layer, info.name).to_string();
        let names: Vec<String> = places.iter().map(name).collect();
        let mut tensors = HashMap::new();
        for tensor in file.tensors() {
            let (name, dtype) = (tensor.name, tensor.dtype);
            if !names.iter().any(|known| known == name) {
                let hint = did_you_mean(name, names.iter().map(String::as_str));
                let lists = "`ulplab list sites` lists them";
                return Err(wrong(format!("'{name}' is not a site of the model{hint}; {lists}")));
            }
            let values = tensor.to_f32().filter(|_| tensor.kind() == Kind::Real);
            let other = || wrong(format!("'{name}' is {dtype}, expected numbers of at most 32 bits"));
            tensors.insert(name.to_string(), values.ok_or_else(other)?);
        }
        refuse(tensors.is_empty(), "has no tensor").map_err(wrong)?;
        let order = names.into_iter().filter(|name| tensors.contains_key(name)).collect();
        Ok(Self { tensors, order })
    }
}

/// Compares each tensor of a run of the reference with the tensor of a dump (tensors of another program) at the same site.
struct Reader<'a> {
    dump: &'a Dump,
    /// True if, after the comparison, the run continues with the dump's tensor.
    fed: bool,
    /// Sites that the run has reached, each with the pair of tensors to compare, and their shape.
    passed: Vec<(String, Pair, Vec<usize>)>,
    wrong: Option<String>,
}

impl Numerics<f32> for Reader<'_> {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        let place = site.to_string();
        let Some(values) = self.dump.tensors.get(&place) else {
            return;
        };
        if values.len() != tensor.data.len() {
            let (found, shape) = (values.len(), &tensor.shape);
            self.wrong
                .get_or_insert(format!("'{place}' has {found} elements, expected those of {shape:?}"));
            return;
        }
        let pair = Pair::new(&tensor.data, values);
        self.passed.push((place, pair, tensor.shape.clone()));
        if self.fed {
            tensor.data.copy_from_slice(values);
        }
    }
}
