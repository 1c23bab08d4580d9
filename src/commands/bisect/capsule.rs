//! A capsule: what passes at the culprits, in one file that is judged again without the model, the text or the experiment.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use reference::paths::{Config, readers};
use reference::{Role, Site, SiteInfo, Tensor};
use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use super::bench::usage;
use super::explain::Explanation;
use super::mix::{Mix, Place, Wrong};
use crate::backend::recipe::Round;
use crate::backend::rounding::{Noise, Rounding};
use crate::json;
use crate::run::seal;
use crate::studies::model::Watch;
use ulplab_core::error::{Error, Exit, Result, counted};
use ulplab_core::metrics::{COSINE, MAX_ABS, Pair, RELATIVE_L2};
use ulplab_core::tensorfile::{Metadata, Slot, TensorFile, write_safetensors};
use ulplab_core::text::shown;

/// Places that are kept of a culprit with many.
const MOST: usize = 8;
/// Version of the file's layout.
const SCHEMA: u32 = 2;
/// Keys of its metadata.
const LABEL: &str = "ulplab_capsule";
const SEAL: &str = "ulplab_capsule_blake3";

/// A tensor on its way through a culprit.
pub struct Taken {
    pub site: Site,
    /// As it comes.
    pub input: Tensor<f32>,
    /// As the right recipe, and as the wrong one leaves it.
    pub want: Tensor<f32>,
    pub got: Tensor<f32>,
}

/// Squared errors of a tensor, by channel and by token.
pub struct Energies {
    pub channels: Vec<f64>,
    pub tokens: Vec<f64>,
}

impl Taken {
    /// Lets another recipe be the wrong one.
    pub fn leave(&mut self, wrong: &Rounding) {
        self.got = self.input.clone();
        wrong.apply(&self.site, &mut self.got);
    }

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

    /// `layers.3.attention.output`, and the reader behind it if it is read in one role.
    fn name(&self) -> String {
        match role_name(self.site.role) {
            Some(role) => format!("{}.{role}", self.site),
            None => self.site.to_string(),
        }
    }
}

fn role_name(role: Role) -> Option<&'static str> {
    match role {
        Role::Both => None,
        Role::Key => Some("key"),
        Role::Value => Some("value"),
    }
}

/// Takes what passes at some places.
pub struct Capture {
    places: BTreeSet<Place>,
    right: Rounding,
    coming: Option<Tensor<f32>>,
    pub taken: Vec<Taken>,
}

impl Capture {
    /// At the places of these suspects, the first of them if there are many.
    ///
    /// # Errors
    /// None that the recipes do not have.
    pub fn new(mix: &Mix, wrong: &Wrong, config: &dyn Config) -> Result<Self> {
        let places = wrong.suspects.iter().map(|suspect| mix.suspects[*suspect].place());
        Ok(Self {
            places: places.take(MOST).collect(),
            right: mix.rounding(&Wrong::default(), config).map_err(usage)?,
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
            let mut want = input.clone();
            self.right.apply(site, &mut want);
            let (site, got) = (*site, tensor.clone());
            self.taken.push(Taken { site, input, want, got });
        }
    }
}

/// The statements of a capsule about its tensors.
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
    /// Noise in the place of rounding errors.
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

/// Who and what a capsule is of.
pub struct Origin<'a> {
    pub experiment: &'a str,
    pub right: &'a str,
    pub seed: u64,
}

/// Writes a capsule: `in.PLACE`, `want.PLACE` and `got.PLACE` of every place that was taken.
///
/// # Errors
/// The file cannot be written.
pub fn write(file: &Path, found: &Explanation, mix: &Mix, config: &dyn Config, origin: &Origin) -> Result<()> {
    let wrong = mix.recipe(&found.wrong);
    let turned = mix.rounding(&found.wrong, config).map_err(usage)?;
    let label = Label {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").into(),
        experiment: origin.experiment.into(),
        recipe: found.recipe.clone(),
        right: origin.right.into(),
        window: found.window.clone(),
        failed: found.failed.iter().map(|failed| failed.message.clone()).collect(),
        sites: found
            .taken
            .iter()
            .map(|taken| SiteLabel {
                name: taken.name(),
                layer: taken.site.layer,
                site: taken.site.name.into(),
                role: role_name(taken.site.role).map(String::from),
                first_row: taken.site.first_row,
            })
            .collect(),
        right_rounds: mix.recipe(&Wrong::default()).rounds,
        noise: wrong.noise(origin.seed).map_err(usage)?,
        wrong_rounds: wrong.rounds,
        turned: turned
            .turned_channels()
            .iter()
            .map(|(site, channels)| (site.to_string(), *channels))
            .collect(),
        again: format!("ulplab bisect --replay {}", file.display()),
    };
    let text = serde_json::to_string(&label).map_err(|error| Error::Usage(error.to_string()))?;
    let tensors = found.taken.iter().flat_map(|taken| {
        let name = taken.name();
        let parts = [("in", &taken.input), ("want", &taken.want), ("got", &taken.got)];
        parts.map(|(part, tensor)| (format!("{part}.{name}"), tensor))
    });
    let tensors: Vec<(String, &Tensor<f32>)> = tensors.collect();
    let slots = tensors.iter().map(|(name, tensor)| Slot {
        name: name.clone(),
        dtype: Dtype::F32,
        shape: tensor.shape.clone(),
    });
    let held = tensors
        .iter()
        .map(|(name, tensor)| (name.as_str(), &tensor.shape[..], &tensor.data[..]));
    let digest = digest(&text, held);
    let metadata = Metadata::from([(LABEL.to_string(), text), (SEAL.to_string(), digest)]);
    write_safetensors(file, slots.collect(), &metadata, |writer| {
        tensors.iter().try_for_each(|(name, tensor)| {
            let bytes: Vec<u8> = tensor.data.iter().flat_map(|x| x.to_le_bytes()).collect();
            writer.put(name, &bytes)
        })
    })
}

/// The digest of a capsule: of its label, and of each tensor's name, shape and numbers.
fn digest<'a>(label: &str, tensors: impl Iterator<Item = (&'a str, &'a [usize], &'a [f32])>) -> String {
    let mut parts = vec![label.as_bytes().to_vec()];
    for (name, shape, numbers) in tensors {
        parts.push(name.as_bytes().to_vec());
        parts.push(shape.iter().flat_map(|size| (*size as u64).to_le_bytes()).collect());
        parts.push(numbers.iter().flat_map(|x| x.to_le_bytes()).collect());
    }
    seal::of_parts(parts.iter().map(Vec::as_slice))
}

/// What a replay of one place says.
#[derive(Serialize)]
pub struct Replayed {
    pub place: String,
    /// Errors of what this version leaves, next to what the right recipe left.
    #[serde(with = "ulplab_core::record::nullable")]
    pub relative_l2: f64,
    #[serde(with = "ulplab_core::record::nullable")]
    pub cosine: f64,
    #[serde(with = "ulplab_core::record::nullable")]
    pub max_abs: f64,
    /// Elements that are not as the capsule has them: of the wrong recipe, and of the right one.
    pub got_changed: usize,
    pub want_changed: usize,
    pub elements: usize,
}

/// Computes the culprits of a capsule again, and says whether they still do what they did.
///
/// # Errors
/// A file that is no capsule, or one that this version cannot read.
pub fn replay(path: &Path, as_json: bool) -> Result<Exit> {
    let file = TensorFile::open(path)?;
    let wrong = |message: String| Error::data(path, message);
    let Some(text) = file.metadata().get(LABEL) else {
        return Err(wrong(format!(
            "is no capsule: its metadata has no '{LABEL}', which `ulplab bisect --capsule` writes"
        )));
    };
    let label: Label = serde_json::from_str(text).map_err(|error| wrong(format!("'{LABEL}': {error}")))?;
    if label.schema != SCHEMA {
        return Err(wrong(format!(
            "is a capsule of layout {}, expected {SCHEMA}",
            label.schema
        )));
    }
    let sites: Vec<Known> = label
        .sites
        .iter()
        .map(|site| Known::find(site, &file))
        .collect::<Result<_>>()?;
    let held = sites.iter().flat_map(Known::held);
    if file.metadata().get(SEAL) != Some(&digest(text, held)) || file.tensors().len() != 3 * sites.len() {
        return Err(wrong(format!(
            "damaged or edited: its label and tensors do not match '{SEAL}'; write it again with `ulplab bisect --capsule`"
        )));
    }
    if sites.is_empty() || sites.iter().all(Known::is_right) {
        return Err(wrong(
            "holds no failure: what the two recipes left is equal in it".into(),
        ));
    }
    let known: Vec<(&'static SiteInfo, Option<usize>, usize)> = sites
        .iter()
        .map(|known| (known.info, known.site.layer, known.input.cols()))
        .collect();
    let turned = label.turned.iter().map(|(name, channels)| {
        let info = info(name).ok_or_else(|| wrong(format!("'turned': no path has a site '{name}'")))?;
        Ok((info.name, *channels))
    });
    let turned: Vec<(&'static str, usize)> = turned.collect::<Result<_>>()?;
    let rounding = |rounds: &[Round]| {
        Rounding::detached(rounds, label.noise, &known, turned.clone()).map_err(|mistake| wrong(mistake.message))
    };
    let (right, bad) = (rounding(&label.right_rounds)?, rounding(&label.wrong_rounds)?);
    // Where neither recipe rounds, or both round by the same, nothing would be computed again.
    if let Some(known) = sites
        .iter()
        .find(|known| !right.touches(&known.site) && !bad.touches(&known.site))
    {
        return Err(wrong(format!("neither recipe rounds at '{}'", known.name)));
    }
    if label.right_rounds == label.wrong_rounds && label.noise.is_none() {
        return Err(wrong("its right and its wrong recipe are the same".into()));
    }
    let replayed: Vec<Replayed> = sites.iter().map(|known| known.replay(&right, &bad)).collect();
    let (exit, verdict) = verdict(&replayed);
    if as_json {
        json::print(
            &serde_json::json!({"capsule": path.display().to_string(), "recipe": label.recipe, "verdict": verdict, "places": replayed}),
        )?;
        return Ok(exit);
    }
    let Label {
        experiment,
        recipe,
        right,
        window,
        failed,
        ..
    } = &label;
    let [recipe, experiment, right, window] = [recipe, experiment, right, window].map(|text| shown(text));
    outln!("'{recipe}' of {experiment}, against '{right}', on {window}");
    failed
        .iter()
        .for_each(|message| outln!("  it failed: {}", shown(message)));
    for place in &replayed {
        let Replayed {
            place,
            relative_l2,
            cosine,
            max_abs,
            got_changed,
            want_changed,
            elements,
        } = place;
        outln!(
            "{}: relative error {relative_l2:.3e}, cosine {cosine:.7}, furthest off by {max_abs:.3e}",
            shown(place)
        );
        for (changed, what) in [(got_changed, "wrong"), (want_changed, "right")] {
            if *changed > 0 {
                outln!(
                    "  the {what} recipe leaves {changed} of {} otherwise than in the capsule",
                    counted(*elements, "element")
                );
            }
        }
    }
    outln!("{verdict}");
    Ok(exit)
}

/// The verdict of a replay. The failure is gone only if the right recipe leaves what it left: else both may be wrong now.
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

/// A site of a capsule, with its tensors.
struct Known {
    name: String,
    /// Names of its tensors in the file: input, want, got.
    names: [String; 3],
    info: &'static SiteInfo,
    site: Site,
    input: Tensor<f32>,
    want: Tensor<f32>,
    got: Tensor<f32>,
}

impl Known {
    fn find(label: &SiteLabel, file: &TensorFile) -> Result<Self> {
        let wrong = |message: String| Error::data(file.path(), message);
        let info = info(&label.site).ok_or_else(|| wrong(format!("no path has a site '{}'", label.site)))?;
        let role = match label.role.as_deref() {
            None => Role::Both,
            Some("key") => Role::Key,
            Some("value") => Role::Value,
            Some(other) => return Err(wrong(format!("role '{other}', expected key or value"))),
        };
        let tensor = |part: &str| {
            let name = format!("{part}.{}", label.name);
            let found = file
                .get(&name)
                .ok_or_else(|| wrong(format!("has no tensor '{name}'")))?;
            let values = found
                .to_f32()
                .filter(|_| found.dtype == Dtype::F32 && !found.shape.is_empty());
            let values = values.ok_or_else(|| {
                wrong(format!(
                    "'{name}' is {} {:?}, expected rows of F32",
                    found.dtype, found.shape
                ))
            })?;
            Ok(Tensor::new(found.shape.to_vec(), values))
        };
        let (input, want, got) = (tensor("in")?, tensor("want")?, tensor("got")?);
        if input.shape != want.shape || input.shape != got.shape || input.data.is_empty() {
            let shapes = (&input.shape, &want.shape, &got.shape);
            return Err(wrong(format!(
                "'{}': in, want and got have shapes {shapes:?}, expected one",
                label.name
            )));
        }
        Ok(Self {
            names: ["in", "want", "got"].map(|part| format!("{part}.{}", label.name)),
            name: label.name.clone(),
            info,
            site: Site::new(label.layer, info.name)
                .read_as(role)
                .from_row(label.first_row),
            input,
            want,
            got,
        })
    }

    /// Its tensors as [`digest`] takes them, in the order of the file.
    fn held(&self) -> [(&str, &[usize], &[f32]); 3] {
        let tensors = [&self.input, &self.want, &self.got];
        [0, 1, 2].map(|at| (&*self.names[at], &tensors[at].shape[..], &tensors[at].data[..]))
    }

    /// True if what the two recipes left is equal in the capsule.
    fn is_right(&self) -> bool {
        let pairs = self.want.data.iter().zip(&self.got.data);
        pairs.into_iter().all(|(want, got)| want.to_bits() == got.to_bits())
    }

    fn replay(&self, right: &Rounding, wrong: &Rounding) -> Replayed {
        let rounded = |rounding: &Rounding| {
            let mut tensor = self.input.clone();
            rounding.apply(&self.site, &mut tensor);
            tensor.data
        };
        let (want, got) = (rounded(right), rounded(wrong));
        let changed =
            |now: &[f32], then: &[f32]| now.iter().zip(then).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        let pair = Pair::new(&want, &got);
        let measure = |metric: &ulplab_core::metrics::Metric| metric.measure(&pair).unwrap_or(f64::NAN);
        Replayed {
            place: self.name.clone(),
            relative_l2: measure(&RELATIVE_L2),
            cosine: measure(&COSINE),
            max_abs: measure(&MAX_ABS),
            got_changed: changed(&got, &self.got.data),
            want_changed: changed(&want, &self.want.data),
            elements: got.len(),
        }
    }
}
