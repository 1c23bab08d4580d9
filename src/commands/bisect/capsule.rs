//! A capsule: one file with the tensors at the places (sites in layers) that cause a failure, before and after rounding. `ulplab
//! bisect --replay` rounds these tensors again, without the model, the text or the experiment.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use reference::paths::{Config, readers};
use reference::{Role, Site, SiteInfo, Tensor};
use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use super::explain::Explanation;
use super::mix::{Mix, Place, SuspectSet};
use crate::backend::recipe::Round;
use crate::backend::rounding::{Noise, Rounding};
use crate::experiment::{Experiment, Mistake};
use crate::json;
use crate::run::seal;
use crate::studies::model::Watch;
use ulplab_core::error::{Error, Exit, Result, counted, refuse};
use ulplab_core::metrics::{COSINE, MAX_ABS, Pair, RELATIVE_L2};
use ulplab_core::tensorfile::{Metadata, Slot, TensorFile, write_safetensors};
use ulplab_core::text::shown;

/// Maximum number of places (sites in layers) whose tensors a capsule stores.
const MOST: usize = 8;
/// Version of the file's layout.
const SCHEMA: u32 = 2;
/// Keys of the file's metadata: the [`Label`] as JSON, and the digest.
const LABEL: &str = "ulplab_capsule";
const SEAL: &str = "ulplab_capsule_blake3";

/// A tensor at a place (site in a layer) that causes the failure, before and after rounding.
pub struct Passage {
    /// Name, such as `layers.3.attention.output`. Ends with `.key` or `.value` if the tensor is read only as keys or values.
    pub name: String,
    pub site: Site,
    /// The tensor before rounding.
    pub input: Tensor<f32>,
    /// The tensor as rounded by the right recipe (`want`) and by the wrong recipe (`got`).
    pub want: Tensor<f32>,
    pub got: Tensor<f32>,
}

/// Sums of squared errors of a tensor, by channel and by token.
pub struct Energies {
    pub channels: Vec<f64>,
    pub tokens: Vec<f64>,
}

impl Passage {
    pub fn energies(&self) -> Energies {
        let (cols, tokens) = (self.got.cols(), self.got.shape[0]);
        let of_token = self.got.data.len() / tokens.max(1);
        let first = self.site.first_row;
        let mut energies = Energies {
            channels: vec![0.0; cols],
            tokens: vec![0.0; first + tokens],
        };
        for (at, (want, got)) in self.want.data.iter().zip(&self.got.data).enumerate() {
            let error = (f64::from(*got) - f64::from(*want)).powi(2);
            energies.channels[at % cols] += error;
            energies.tokens[first + at / of_token] += error;
        }
        energies
    }

    /// Returns the three tensors of this place (site in a layer), with their names in the capsule's file: input, `want` and
    /// `got`.
    fn held(&self) -> [Held<'_>; 3] {
        let tensors = [("in", &self.input), ("want", &self.want), ("got", &self.got)];
        tensors.map(|(part, tensor)| (tensor_name(part, &self.name), &tensor.shape[..], &tensor.data[..]))
    }

    /// Rounds the input again with both recipes, and compares the results with the stored tensors.
    fn replay(&self, right: &Rounding, wrong: &Rounding) -> Replayed {
        let [want_now, got_now] = [right, wrong].map(|rounding| rounding.applied(&self.site, &self.input).data);
        let pair = Pair::new(&want_now, &got_now);
        let measure = |metric: &ulplab_core::metrics::Metric| metric.measure(&pair).unwrap_or(f64::NAN);
        Replayed {
            place: self.name.clone(),
            relative_l2: measure(&RELATIVE_L2),
            cosine: measure(&COSINE),
            max_abs: measure(&MAX_ABS),
            got_changed: changed(&got_now, &self.got.data),
            want_changed: changed(&want_now, &self.want.data),
            elements: self.got.data.len(),
        }
    }
}

/// Name suffixes of tensors that attention reads only as keys, or only as values.
const ROLES: [(Role, &str); 2] = [(Role::Key, "key"), (Role::Value, "value")];

fn role_name(role: Role) -> Option<&'static str> {
    let named = ROLES.into_iter().find(|(known, _)| *known == role);
    named.map(|(_, name)| name)
}

/// Watches a run of the model, and stores the tensors at the given places (sites in layers) before and after rounding.
pub struct Capture {
    places: BTreeSet<Place>,
    right: Rounding,
    coming: Option<Tensor<f32>>,
    pub taken: Vec<Passage>,
}

impl Capture {
    /// Creates a watcher that stores the tensors at the places (sites in layers) of the given suspects, for at most `MOST`
    /// places.
    ///
    /// # Errors
    /// Same as [`Mix::rounding`].
    pub fn new(mix: &Mix, wrong: &SuspectSet, config: &dyn Config) -> Result<Self> {
        let places = wrong.suspects.iter().map(|suspect| mix.suspects[*suspect].place());
        Ok(Self {
            places: places.take(MOST).collect(),
            right: mix.rounding(&SuspectSet::default(), config).map_err(Mistake::usage)?,
            coming: None,
            taken: Vec::new(),
        })
    }
}

impl Watch for Capture {
    fn before(&mut self, site: &Site, tensor: &Tensor<f32>) {
        let here = self.places.contains(&(site.layer, site.name)) && !tensor.data.is_empty();
        self.coming = here.then(|| tensor.clone());
    }

    fn after(&mut self, site: &Site, tensor: &Tensor<f32>) {
        if let Some(input) = self.coming.take() {
            self.taken.push(Passage {
                name: match role_name(site.role) {
                    Some(role) => format!("{site}.{role}"),
                    None => site.to_string(),
                },
                site: *site,
                want: self.right.applied(site, &input),
                got: tensor.clone(),
                input,
            });
        }
    }
}

/// The metadata of a capsule: origin of the tensors, and the rounding steps of both recipes.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Label {
    schema: u32,
    version: String,
    experiment: String,
    recipe: String,
    right: String,
    window: String,
    failed: Vec<String>,
    sites: Vec<SiteLabel>,
    right_rounds: Vec<Round>,
    wrong_rounds: Vec<Round>,
    /// Noise that replaces the rounding errors, if any.
    noise: Option<Noise>,
    turned: BTreeMap<String, usize>,
    again: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SiteLabel {
    name: String,
    layer: Option<usize>,
    site: String,
    role: Option<String>,
    first_row: usize,
}

/// Writes a capsule: the tensors `in.PLACE`, `want.PLACE` and `got.PLACE` for every captured place, such as `in.layers.3.output`.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub fn write(file: &Path, found: &Explanation, mix: &Mix, config: &dyn Config, of: &Experiment) -> Result<()> {
    let wrong = mix.recipe(&found.wrong);
    let turned = mix.rounding(&found.wrong, config).map_err(Mistake::usage)?;
    let channels = turned.turned.iter();
    let channels = channels.map(|(site, channels)| (site.to_string(), *channels));
    let site = |taken: &Passage| SiteLabel {
        name: taken.name.clone(),
        layer: taken.site.layer,
        site: taken.site.name.into(),
        role: role_name(taken.site.role).map(String::from),
        first_row: taken.site.first_row,
    };
    let label = Label {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").into(),
        experiment: of.name.clone(),
        recipe: found.recipe.clone(),
        right: mix.right.name.clone(),
        window: found.window.clone(),
        failed: found.failed.iter().map(|failed| failed.message.clone()).collect(),
        sites: found.taken.iter().map(site).collect(),
        right_rounds: mix.recipe(&SuspectSet::default()).rounds,
        noise: Noise::asked(wrong.noise, wrong.gain, of.seed).map_err(Mistake::usage)?,
        wrong_rounds: wrong.rounds,
        turned: channels.collect(),
        again: format!("ulplab bisect --replay {}", file.display()),
    };
    let text = serde_json::to_string(&label).map_err(|error| Error::Usage(error.to_string()))?;
    let held: Vec<Held> = found.taken.iter().flat_map(Passage::held).collect();
    let slots = held.iter().map(|(name, shape, _)| Slot::new(name, Dtype::F32, *shape));
    let digest = digest(&text, &held);
    let metadata = Metadata::from([(LABEL.to_string(), text), (SEAL.to_string(), digest)]);
    write_safetensors(file, slots.collect(), &metadata, |writer| {
        held.iter().try_for_each(|(name, _, numbers)| {
            let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
            writer.put(name, &bytes)
        })
    })
}

/// Name, shape and elements of a tensor in a capsule (a file with the tensors that cause a failure).
type Held<'a> = (String, &'a [usize], &'a [f32]);

fn tensor_name(part: &str, place: &str) -> String {
    format!("{part}.{place}")
}

/// Returns the digest of a capsule. It covers the label, and the name, shape and elements of each tensor.
fn digest(label: &str, tensors: &[Held]) -> String {
    let mut parts = vec![label.as_bytes().to_vec()];
    for (name, shape, numbers) in tensors {
        parts.push(name.as_bytes().to_vec());
        parts.push(shape.iter().flat_map(|size| (*size as u64).to_le_bytes()).collect());
        parts.push(numbers.iter().flat_map(|x| x.to_le_bytes()).collect());
    }
    seal::of_parts(parts.iter().map(Vec::as_slice)).to_hex().to_string()
}

/// The result of a replay (rounding the stored input again) at one place, a site in a layer.
#[derive(Serialize)]
pub struct Replayed {
    pub place: String,
    /// Error of the wrong recipe's result against the right recipe's result. Both are recomputed from the stored input.
    #[serde(with = "ulplab_core::record::nullable")]
    pub relative_l2: f64,
    #[serde(with = "ulplab_core::record::nullable")]
    pub cosine: f64,
    #[serde(with = "ulplab_core::record::nullable")]
    pub max_abs: f64,
    /// Number of elements whose recomputed value differs from the stored value, for the wrong recipe (`got`) and for the right
    /// recipe (`want`).
    pub got_changed: usize,
    pub want_changed: usize,
    pub elements: usize,
}

/// Rounds the stored inputs of a capsule again with both recipes, and prints whether the failure still occurs.
///
/// # Errors
/// Returns an error if the file is not a capsule, or this version cannot read it.
pub fn replay(path: &Path, as_json: bool) -> Result<Exit> {
    let file = TensorFile::open(path)?;
    let wrong = |message: String| Error::data(path, message);
    let Some(text) = file.metadata().get(LABEL) else {
        return Err(wrong(format!(
            "is not a capsule: its metadata has no '{LABEL}', which `ulplab bisect --capsule` writes"
        )));
    };
    let label: Label = serde_json::from_str(text).map_err(|error| wrong(format!("'{LABEL}': {error}")))?;
    let other = format_args!("is a capsule of layout {}, expected {SCHEMA}", label.schema);
    refuse(label.schema != SCHEMA, other).map_err(wrong)?;
    let sites = label.sites.iter().map(|site| stored(site, &file));
    let sites = sites.collect::<Result<Vec<Passage>>>()?;
    let held: Vec<Held> = sites.iter().flat_map(Passage::held).collect();
    let sealed = file.metadata().get(SEAL) == Some(&digest(text, &held)) && file.tensors().len() == held.len();
    let edited = format_args!(
        "damaged or edited: its label and tensors do not match '{SEAL}'; write it again with `ulplab bisect --capsule`"
    );
    refuse(!sealed, edited).map_err(wrong)?;
    let right = |taken: &Passage| changed(&taken.want.data, &taken.got.data) == 0;
    let why = "holds no failure: what the two recipes left is equal in it";
    refuse(sites.iter().all(right), why).map_err(wrong)?;
    let known = |taken: &Passage| Some((info(taken.site.name)?, taken.site.layer, taken.input.cols()));
    let known: Vec<(&'static SiteInfo, Option<usize>, usize)> = sites.iter().filter_map(known).collect();
    let turned = label.turned.iter().map(|(name, channels)| {
        let info = info(name).ok_or_else(|| wrong(format!("'turned': no path has a site '{name}'")))?;
        Ok((info.name, *channels))
    });
    let turned: Vec<(&'static str, usize)> = turned.collect::<Result<_>>()?;
    let rounding = |rounds: &[Round]| {
        Rounding::detached(rounds, label.noise, &known, turned.clone()).map_err(|mistake| wrong(mistake.message))
    };
    let (right, bad) = (rounding(&label.right_rounds)?, rounding(&label.wrong_rounds)?);
    // Rejects a capsule whose replay would show nothing: neither recipe rounds at a place, or both recipes are the same.
    let touched = |site: &Site| right.touches(site) || bad.touches(site);
    if let Some(taken) = sites.iter().find(|taken| !touched(&taken.site)) {
        return Err(wrong(format!("neither recipe rounds at '{}'", taken.name)));
    }
    let same = label.right_rounds == label.wrong_rounds && label.noise.is_none();
    refuse(same, "the right and the wrong recipe are the same").map_err(wrong)?;
    let replayed: Vec<Replayed> = sites.iter().map(|taken| taken.replay(&right, &bad)).collect();
    let (exit, verdict) = verdict(&replayed);
    if as_json {
        let capsule = path.display().to_string();
        let recipe = &label.recipe;
        let answer = serde_json::json!({"capsule": capsule, "recipe": recipe, "verdict": verdict, "places": replayed});
        json::print(&answer)?;
        return Ok(exit);
    }
    let named = [&label.recipe, &label.experiment, &label.right, &label.window];
    let [recipe, experiment, right, window] = named.map(|text| shown(text));
    outln!("'{recipe}' of {experiment}, against '{right}', on {window}");
    for message in &label.failed {
        outln!("  it failed: {}", shown(message));
    }
    for place in &replayed {
        let (name, relative, cosine, most) = (shown(&place.place), place.relative_l2, place.cosine, place.max_abs);
        outln!("{name}: relative error {relative:.3e}, cosine {cosine:.7}, furthest off by {most:.3e}");
        let all = counted(place.elements, "element");
        for (changed, recipe) in [(place.got_changed, "wrong"), (place.want_changed, "right")] {
            if changed > 0 {
                outln!("  the {recipe} recipe leaves {changed} of {all} otherwise than in the capsule");
            }
        }
    }
    outln!("{verdict}");
    Ok(exit)
}

/// Returns the exit code and the verdict of a replay. The verdict is `GONE` (the failure no longer occurs) only if the right
/// recipe reproduces its stored values bit for bit: otherwise a change may have made the right recipe wrong.
pub fn verdict(replayed: &[Replayed]) -> (Exit, &'static str) {
    let as_wanted = replayed.iter().all(|place| place.want_changed == 0);
    let same = as_wanted && replayed.iter().all(|place| place.got_changed == 0);
    let gone = as_wanted && replayed.iter().all(|place| place.max_abs == 0.0);
    match (same, gone, as_wanted) {
        (true, ..) => (Exit::GateFailed, "STILL THERE: every bit is as the capsule has it"),
        (_, true, _) => (Exit::Pass, "GONE: what was wrong is now what the right recipe leaves"),
        (.., false) => (
            Exit::NotJudged,
            "NOT JUDGED: the right recipe leaves other numbers than in the capsule; run the experiment again",
        ),
        _ => (
            Exit::NotJudged,
            "CHANGED: neither what the capsule has, nor right; run the experiment again",
        ),
    }
}

fn info(name: &str) -> Option<&'static SiteInfo> {
    readers().iter().find_map(|path| path.site(name))
}

/// Reads the tensors `in`, `want` and `got` of one place (site in a layer) from a capsule.
fn stored(label: &SiteLabel, file: &TensorFile) -> Result<Passage> {
    let wrong = |message: String| Error::data(file.path(), message);
    let info = info(&label.site).ok_or_else(|| wrong(format!("no path has a site '{}'", label.site)))?;
    let role = label.role.as_deref().map(|role| {
        let known = ROLES.into_iter().find(|(_, name)| *name == role);
        known.ok_or_else(|| wrong(format!("role '{role}', expected key or value")))
    });
    let role = role.transpose()?.map_or(Role::Both, |(role, _)| role);
    let name = label.name.clone();
    let tensor = |part: &str| {
        let name = tensor_name(part, &name);
        let Some(found) = file.get(&name) else {
            return Err(wrong(format!("has no tensor '{name}'")));
        };
        let (dtype, shape) = (found.dtype, found.shape);
        match found.to_f32().filter(|_| dtype == Dtype::F32 && !shape.is_empty()) {
            Some(values) => Ok(Tensor::new(shape.to_vec(), values)),
            None => Err(wrong(format!("'{name}' is {dtype} {shape:?}, expected rows of F32"))),
        }
    };
    let (input, want, got) = (tensor("in")?, tensor("want")?, tensor("got")?);
    let shapes = (&input.shape, &want.shape, &got.shape);
    let unlike = shapes.0 != shapes.1 || shapes.0 != shapes.2 || input.data.is_empty();
    let message = format_args!("'{name}': in, want and got have shapes {shapes:?}, expected one");
    refuse(unlike, message).map_err(wrong)?;
    let site = Site::new(label.layer, info.name).read_as(role);
    Ok(Passage {
        name,
        site: site.from_row(label.first_row),
        input,
        want,
        got,
    })
}

/// Number of elements whose bits differ.
fn changed(now: &[f32], then: &[f32]) -> usize {
    now.iter().zip(then).filter(|(a, b)| a.to_bits() != b.to_bits()).count()
}
