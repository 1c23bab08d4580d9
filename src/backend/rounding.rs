//! A recipe on the CPU: the reference's path, rounded at the recipe's sites.
//!
//! A site is rounded by encoding the tensor to the format's bytes and decoding them again, so that measurements apply to the
//! bytes that a cache of that format would hold.

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use reference::paths::deepseek_v4::{Config, Model, State};
use reference::{Numerics, Operations, Plain, Role, Site, SiteInfo, SiteKind, Tensor};

use super::recipe::{self, Reader, Segment};
use crate::experiment::Mistake;
use ulplab_core::error::Error;
use ulplab_core::formats::{Codec, RECORDS, Record, codec, hadamard};
use ulplab_core::ops::call::StandIn;
use ulplab_core::pattern::{matches, matches_nothing};

/// A recipe resolved against a model: codecs found, layers parsed, patterns known to match.
#[derive(Clone)]
pub struct Rounding {
    rounds: Vec<Round>,
    /// Replace rounding errors by noise of their energy, drawn from this seed.
    noise: Option<u64>,
    rope_dims: usize,
    /// What stands in for operations.
    stand_in: Option<Arc<StandIn>>,
}

#[derive(Clone)]
struct Round {
    at: String,
    codec: Arc<dyn Codec>,
    /// A record has a place for every channel: it is encoded whole, whatever is used of it.
    record: Option<&'static Record>,
    segment: Option<Segment>,
    role: Option<Role>,
    layers: Option<Vec<usize>>,
    hadamard: bool,
}

impl Rounding {
    /// The recipe that rounds nothing.
    pub fn none() -> Self {
        Self {
            rounds: Vec::new(),
            noise: None,
            rope_dims: 0,
            stand_in: None,
        }
    }

    /// Finds the formats and sites of a recipe, and that they fit. `noise` is the seed of the noise that replaces rounding
    /// errors, if any does; `stand_in` computes operations in place of the reference.
    ///
    /// # Errors
    /// The mistake, and its place in the recipe.
    pub fn resolve(
        rounds: &[recipe::Round],
        noise: Option<u64>,
        stand_in: Option<StandIn>,
        config: &Config,
        sites: &[SiteInfo],
    ) -> Result<Self, Mistake> {
        let places = places(config, sites);
        let resolved = rounds
            .iter()
            .enumerate()
            .map(|(at, round)| Round::resolve(round, config, &places).map_err(|mistake| mistake.within("round", at)));
        let rounds = resolved.collect::<Result<Vec<_>, _>>()?;
        let rotates = |name: &str| {
            let site = format!("attention.indexer.{name}");
            places
                .iter()
                .map(|place| {
                    rounds
                        .iter()
                        .any(|r| r.hadamard && place.name == site && r.covers(place))
                })
                .collect()
        };
        let (query, key): (Vec<bool>, Vec<bool>) = (rotates("query"), rotates("key"));
        if query.contains(&true) != key.contains(&true) {
            let message = "a Hadamard rotation must be on both indexer.query and indexer.key, or their products change";
            return Err(Mistake::at("round", message));
        }
        Ok(Self {
            rounds,
            noise,
            rope_dims: config.qk_rope_head_dim,
            stand_in: stand_in.map(Arc::new),
        })
    }

    /// What computes the model's operations.
    pub fn operations(&self) -> &dyn Operations<f32> {
        match &self.stand_in {
            Some(stand_in) => &**stand_in,
            None => &Plain,
        }
    }

    /// Runs the model by the recipe's kernels, called at the sites of `numerics`; an error where one of them failed.
    pub fn run(
        &self,
        model: &Model<f32>,
        state: &mut State<f32>,
        ids: &[u32],
        numerics: &mut dyn Numerics<f32>,
    ) -> crate::Result<Tensor<f32>> {
        let logits = model.run(state, ids, numerics).map_err(Error::Reference)?;
        match self.stand_in.as_ref().and_then(|stand_in| stand_in.failure()) {
            Some(why) => Err(Error::Setup(why)),
            None => Ok(logits),
        }
    }

    /// Whether a tensor read in two roles must be passed once per role.
    pub fn splits(&self, site: &Site) -> bool {
        self.at(site).any(|round| round.role.is_some())
    }

    /// Whether anything is rounded here.
    pub fn touches(&self, site: &Site) -> bool {
        self.at(site).any(|round| round.reads(site.role))
    }

    /// Applies the recipe's roundings at this site.
    pub fn apply(&self, site: &Site, tensor: &mut Tensor<f32>) {
        if tensor.data.is_empty() || !self.touches(site) {
            return;
        }
        let exact = self.noise.map(|seed| (seed, tensor.data.clone()));
        for round in self.at(site).filter(|round| round.reads(site.role)) {
            if !self.stored(round, tensor) {
                round.apply(tensor, self.rope_dims);
            }
        }
        if let Some((seed, exact)) = exact {
            self.replace_by_noise(seed, site, &exact, tensor);
        }
    }

    /// Lets kernels write a whole record and read it again, if the recipe names them.
    fn stored(&self, round: &Round, tensor: &mut Tensor<f32>) -> bool {
        let record = round.record.filter(|_| round.segment.is_none() && !round.hadamard);
        let kernels = self.stand_in.as_ref().zip(record);
        kernels.is_some_and(|(kernels, record)| kernels.store(record, &mut tensor.data))
    }

    /// Bytes the recipe stores one row of a site in; `None` where it is no storage format (one role only, noise, some channels
    /// only).
    pub fn bytes_per_row(&self, site: &Site, cols: usize) -> Option<f64> {
        let mut nope = None;
        let mut rope = None;
        for round in self.at(site) {
            match round.segment {
                _ if self.noise.is_some() || round.role.is_some() => return None,
                None => return Some(round.codec.bytes_per_row(cols)),
                Some(_) if round.record.is_some() => return None,
                Some(Segment::Nope) => nope = Some(round.codec.bytes_per_row(cols - self.rope_dims)),
                Some(Segment::Rope) => rope = Some(round.codec.bytes_per_row(self.rope_dims)),
            }
        }
        match (nope, rope) {
            // A row without rounding equals the reference's.
            (None, None) => Some((cols * size_of::<f32>()) as f64),
            // No cache stores half of a vector in f32, so a size of that would only mislead.
            (nope, rope) => Some(nope? + rope?),
        }
    }

    /// Bytes of one cached vector, and bytes the growing caches of all layers take per token of context (the window cache
    /// does not grow and is not counted). The vector is the KV vector, or the indexer's key where the recipe rounds no KV
    /// vector; there is none unless all layers store it alike, and where the recipe rounds nothing.
    pub fn cache_bytes(&self, config: &Config) -> (Option<f64>, Option<f64>) {
        if self.rounds.is_empty() {
            return (None, None);
        }
        let (mut vectors, mut keys, mut per_token) = (Vec::new(), Vec::new(), Some(0.0));
        let mut rounds_vectors = false;
        for layer in 0..config.num_hidden_layers {
            let rate = config.compress_rate(layer).unwrap_or(usize::MAX) as f64;
            for name in [
                "attention.kv.window",
                "attention.kv.compressed",
                "attention.indexer.key",
            ] {
                if !config.has_site(Some(layer), name) {
                    continue;
                }
                let site = Site {
                    layer: Some(layer),
                    name,
                    role: Role::Both,
                    first_row: 0,
                };
                let bytes = self.bytes_per_row(&site, config.site_cols(name));
                let kv = name.starts_with("attention.kv.");
                rounds_vectors |= kv && self.at(&site).next().is_some();
                if kv { &mut vectors } else { &mut keys }.push(bytes);
                if name != "attention.kv.window" {
                    per_token = per_token.zip(bytes).map(|(sum, bytes)| sum + bytes / rate);
                }
            }
        }
        let stored = if rounds_vectors { vectors } else { keys };
        let alike = stored
            .first()
            .copied()
            .flatten()
            .filter(|_| stored.windows(2).all(|pair| pair[0] == pair[1]));
        (alike, per_token)
    }

    fn at<'a>(&'a self, site: &'a Site) -> impl Iterator<Item = &'a Round> {
        let place = site.to_string();
        self.rounds
            .iter()
            .filter(move |round| round.covers_layer(site.layer) && matches(&round.at, &place))
    }

    /// Replaces the rounding error by Gaussian noise. Its energy is that of the error row by row, and apart for the channels
    /// with and without position, so that only the error's structure is lost. The draw depends on seed, site and row number,
    /// not on how the sequence was cut into calls.
    fn replace_by_noise(&self, seed: u64, site: &Site, exact: &[f32], tensor: &mut Tensor<f32>) {
        let cols = tensor.cols();
        let nope = cols - self.rope_dims;
        let mut rng = ChaCha8Rng::from_seed(*blake3::hash(format!("{seed}/{site}").as_bytes()).as_bytes());
        for (row, (exact, rounded)) in exact
            .chunks_exact(cols)
            .zip(tensor.data.chunks_exact_mut(cols))
            .enumerate()
        {
            rng.set_stream((site.first_row + row) as u64);
            rng.set_word_pos(0);
            for segment in [0..nope, nope..cols] {
                gaussian_of_same_energy(&mut rng, &exact[segment.clone()], &mut rounded[segment]);
            }
        }
    }
}

impl Numerics<f32> for &Rounding {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        self.apply(site, tensor);
    }

    fn splits(&self, site: &Site) -> bool {
        Rounding::splits(self, site)
    }

    fn operations(&self) -> &dyn Operations<f32> {
        Rounding::operations(self)
    }
}

/// Writes `exact` + Gaussian noise whose energy equals that of `rounded − exact`, over `rounded`.
fn gaussian_of_same_energy(rng: &mut ChaCha8Rng, exact: &[f32], rounded: &mut [f32]) {
    let energy: f64 = exact
        .iter()
        .zip(&*rounded)
        .map(|(&x, &y)| (f64::from(y) - f64::from(x)).powi(2))
        .sum();
    if energy == 0.0 {
        return;
    }
    let noise: Vec<f32> = (0..exact.len()).map(|_| StandardNormal.sample(rng)).collect();
    let drawn: f64 = noise.iter().map(|&g| f64::from(g).powi(2)).sum();
    let scale = (energy / drawn).sqrt();
    for ((y, &x), &g) in rounded.iter_mut().zip(exact).zip(&noise) {
        *y = (f64::from(x) + scale * f64::from(g)) as f32;
    }
}

/// One site in one layer, with its row length.
struct Place {
    name: &'static str,
    full: String,
    layer: Option<usize>,
    cols: usize,
}

fn places(config: &Config, sites: &[SiteInfo]) -> Vec<Place> {
    let mut places = Vec::new();
    for site in sites.iter().filter(|site| site.kind == SiteKind::Tensor) {
        let layers: Vec<Option<usize>> = if site.in_layers() {
            (0..config.num_hidden_layers).map(Some).collect()
        } else {
            vec![None]
        };
        for layer in layers.into_iter().filter(|&layer| config.has_site(layer, site.name)) {
            let full = Site {
                layer,
                name: site.name,
                role: Role::Both,
                first_row: 0,
            }
            .to_string();
            places.push(Place {
                name: site.name,
                full,
                layer,
                cols: config.site_cols(site.name),
            });
        }
    }
    places
}

impl Round {
    fn resolve(round: &recipe::Round, config: &Config, places: &[Place]) -> Result<Self, Mistake> {
        let layers = round
            .layers
            .as_ref()
            .map(|text| parse_layers(text, config.num_hidden_layers).map_err(|message| Mistake::at("layers", message)))
            .transpose()?;
        let codec = codec(&round.format).map_err(|message| Mistake::at("format", message))?;
        let resolved = Self {
            at: round.at.clone(),
            codec,
            record: RECORDS.iter().copied().find(|record| record.name == round.format),
            segment: round.segment,
            role: round.role.map(|role| match role {
                Reader::Key => Role::Key,
                Reader::Value => Role::Value,
            }),
            layers,
            hadamard: round.hadamard,
        };
        let mut covered = places.iter().filter(|place| resolved.covers(place)).peekable();
        if covered.peek().is_none() {
            let here = places.iter().filter(|place| resolved.covers_layer(place.layer));
            let names = here.map(|place| place.full.as_str());
            let message = matches_nothing("tensor site of the model", &round.at, names);
            return Err(Mistake::at("at", message));
        }
        for place in covered {
            resolved
                .check(place, config)
                .map_err(|message| Mistake::at("at", format!("'{}': {message}", place.full)))?;
        }
        Ok(resolved)
    }

    fn check(&self, place: &Place, config: &Config) -> Result<(), String> {
        let kv = place.name.starts_with("attention.kv.");
        if self.role.is_some() && !kv {
            return Err("only the KV vectors are read in two roles".into());
        }
        if self.segment.is_some() && !kv && !place.name.starts_with("attention.indexer.") {
            return Err("only KV vectors and indexer queries and keys have nope and rope segments".into());
        }
        if self.hadamard && (self.segment.is_some() || !place.cols.is_power_of_two()) {
            return Err(format!(
                "cannot rotate {} channels (a whole power of two is needed)",
                place.cols
            ));
        }
        let whole = self.codec.check(place.cols);
        match self.segment {
            Some(segment) if whole.is_err() => self
                .codec
                .check(segment.range(place.cols, config.qk_rope_head_dim).len()),
            _ => whole,
        }
    }

    fn covers_layer(&self, layer: Option<usize>) -> bool {
        match (&self.layers, layer) {
            (None, _) => true,
            (Some(layers), Some(layer)) => layers.contains(&layer),
            (Some(_), None) => false,
        }
    }

    fn covers(&self, place: &Place) -> bool {
        self.covers_layer(place.layer) && matches(&self.at, &place.full)
    }

    fn reads(&self, role: Role) -> bool {
        self.role.is_none_or(|own| own == role)
    }

    fn apply(&self, tensor: &mut Tensor<f32>, rope_dims: usize) {
        let cols = tensor.cols();
        if self.hadamard {
            hadamard(&mut tensor.data, cols).expect("checked when the recipe was resolved");
        }
        let Some(segment) = self.segment else {
            self.codec.round(&mut tensor.data, cols);
            return;
        };
        // A record is encoded whole and only the segment of it is used; a format is applied to the segment alone.
        let segment = segment.range(cols, rope_dims);
        if self.record.is_some() {
            let mut whole = tensor.data.clone();
            self.codec.round(&mut whole, cols);
            for (row, rounded) in tensor.data.chunks_exact_mut(cols).zip(whole.chunks_exact(cols)) {
                row[segment.clone()].copy_from_slice(&rounded[segment.clone()]);
            }
        } else {
            let mut part: Vec<f32> = tensor
                .data
                .chunks_exact(cols)
                .flat_map(|row| row[segment.clone()].iter().copied())
                .collect();
            self.codec.round(&mut part, segment.len());
            for (row, rounded) in tensor.data.chunks_exact_mut(cols).zip(part.chunks_exact(segment.len())) {
                row[segment.clone()].copy_from_slice(rounded);
            }
        }
    }
}

impl Segment {
    /// The segment's channels of a row: RoPE is on the trailing ones.
    fn range(self, cols: usize, rope_dims: usize) -> std::ops::Range<usize> {
        match self {
            Self::Nope => 0..cols - rope_dims,
            Self::Rope => cols - rope_dims..cols,
        }
    }
}

/// Reads `"0-9,30"`.
fn parse_layers(text: &str, count: usize) -> Result<Vec<usize>, String> {
    let mut layers = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            text.trim()
                .parse::<usize>()
                .map_err(|_| format!("'{part}' is not a layer or a range of layers like '0-9'"))
        };
        let (first, last) = (number(first)?, number(last)?);
        if first > last || last >= count {
            return Err(format!("layers '{part}' are not in order within 0-{}", count - 1));
        }
        layers.extend(first..=last);
    }
    Ok(layers)
}
