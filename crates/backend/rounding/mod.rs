//! Applies a recipe on the CPU: runs the reference model, and rounds tensors at the recipe's sites (named tensors of the model).
//!
//! A tensor is rounded by encoding it to the format's bytes and decoding them again, so that measurements apply to the bytes that
//! a cache of that format would hold.

pub mod noise;
mod round;

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use reference::paths::{Config, Input, Model, State};
use reference::sites::{Decision, Held, When};
use reference::{Numerics, Operations, Plain, Site, SiteInfo, SiteKind, Tensor};

use super::recipe::{self, Heads, Segment};
use ulplab_core::error::Error;
use ulplab_operations::ops::call::StandIn;
use ulplab_run::experiment::Mistake;
use ulplab_run::run::CacheBytes;

pub use noise::Noise;
use noise::of_energy;
use round::{Place, Round, matrix};

/// A recipe resolved for a model: its formats and sites exist, its layers are parsed, and each of its patterns matches a site.
/// The default rounds nothing.
#[derive(Clone, Default)]
pub struct Rounding {
    rounds: Vec<Round>,
    /// True if the recipe rounds weights. The model must then be loaded with this `Rounding`.
    pub rounds_weights: bool,
    /// Noise that replaces rounding errors; `None` keeps the errors.
    noise: Option<Noise>,
    /// For each site with RoPE, the number of rotated channels, which are the last channels of a row.
    pub turned: Vec<(&'static str, usize)>,
    /// Kernels that compute operations in place of the reference.
    stand_in: Option<Arc<StandIn>>,
}

impl Rounding {
    /// Finds the formats and sites of a recipe, and checks that each format can encode the rows of its sites. For a top-k
    /// selection, a Hadamard rotation must apply to both the query and the key, or to neither: a rotation of only one of them
    /// would change their products. `noise`, if given, replaces rounding errors; `stand_in`, if given, computes operations in
    /// place of the reference.
    ///
    /// # Errors
    /// Returns the mistake and its place in the recipe.
    pub fn resolve(
        rounds: &[recipe::Round],
        noise: Option<Noise>,
        stand_in: Option<StandIn>,
        config: &dyn Config,
    ) -> Result<Self, Mistake> {
        let places = places(config);
        let rounds = Mistake::each("round", rounds, |round| Round::resolve(round, config.layers(), &places))?;
        let rotates = |site: &str| {
            let mut here = places.iter().filter(|place| place.info.name == site);
            here.any(|place| rounds.iter().any(|round| round.asked.hadamard && round.covers(place)))
        };
        for [query, key] in multiplied(config) {
            let message =
                format_args!("a Hadamard rotation must be on both {query} and {key}, or their products change");
            Mistake::refuse(rotates(query) != rotates(key), "round", message)?;
        }
        let mut weights = places.iter().filter(|place| place.info.when == When::Load);
        let rounds_weights = weights.any(|place| rounds.iter().any(|round| round.covers(place)));
        let turned = config.path().sites.iter();
        let turned = turned.map(|site| (site.name, config.turned(site)));
        Ok(Self {
            rounds,
            rounds_weights,
            noise,
            turned: turned.filter(|(_, channels)| *channels > 0).collect(),
            stand_in: stand_in.map(Arc::new),
        })
    }

    /// Returns an error if a rounding step has no effect in a window (a sequence of `tokens` tokens): because the tokens to round
    /// lie beyond the window, or because the window is too short for the sites to have rows (e.g. rows of a compressed cache).
    ///
    /// # Errors
    /// Returns the mistake and its place in the recipe.
    pub fn check_window(&self, config: &dyn Config, tokens: usize) -> Result<(), Mistake> {
        let places = places(config);
        let check = |round: &Round| {
            let here: Vec<&Place> = places.iter().filter(|place| round.covers(place)).collect();
            round.check_rows(&here, |place| place.rows(config, tokens))
        };
        Mistake::each("round", &self.rounds, check).map(drop)
    }

    /// Resolves a recipe for the listed sites only, without a model. `sites` lists each site with its layer and the number of
    /// channels of a row. `turned` lists the sites with RoPE and the number of channels that RoPE rotates. Rounding steps for
    /// other sites are ignored.
    ///
    /// # Errors
    /// Returns the mistake and its place in the recipe.
    pub fn detached(
        rounds: &[recipe::Round],
        noise: Option<Noise>,
        sites: &[(&'static SiteInfo, Option<usize>, usize)],
        turned: Vec<(&'static str, usize)>,
    ) -> Result<Self, Mistake> {
        let place = |&(info, layer, cols): &(&'static SiteInfo, Option<usize>, usize)| Place {
            info,
            full: Site::new(layer, info.name).to_string(),
            layer,
            cols,
            heads: (info.dims.len() > 2).then_some(1),
            matrix: matrix(info, |_| cols),
            turned: of_site(&turned, info.name),
            meets_cache: true,
        };
        let places: Vec<Place> = sites.iter().map(place).collect();
        let resolved = Mistake::each("round", rounds, |round| {
            let read = Round::read(round, usize::MAX)?;
            let covers = places.iter().any(|place| read.covers(place));
            covers.then(|| Round::resolve(round, usize::MAX, &places)).transpose()
        })?;
        Ok(Self {
            rounds: resolved.into_iter().flatten().collect(),
            noise,
            turned,
            ..Self::default()
        })
    }

    /// Returns the tensors that the recipe rounds. Each entry is one rounding step on one tensor: index of the step, layer and
    /// site. The tensors are in the order in which the model lists its sites.
    pub fn covered(&self, config: &dyn Config) -> Vec<(usize, Option<usize>, &'static str)> {
        let places = places(config);
        let of_place = |place: &Place| {
            let rounds = self.rounds.iter().enumerate().filter(|(_, round)| round.covers(place));
            let (layer, site) = (place.layer, place.info.name);
            rounds.map(|(at, _)| (at, layer, site)).collect::<Vec<_>>()
        };
        places.iter().flat_map(of_place).collect()
    }

    /// Runs the model with the recipe's kernels, and calls `numerics` at every site. Returns an error if the model or a kernel
    /// fails.
    pub fn run(
        &self,
        model: &dyn Model<f32>,
        state: &mut dyn State<f32>,
        ids: &[u32],
        numerics: &mut dyn Numerics<f32>,
    ) -> ulplab_core::Result<Tensor<f32>> {
        let logits = model.run(state, Input::Ids(ids), numerics).map_err(Error::Reference)?;
        let failure = self.stand_in.as_ref().and_then(|stand_in| stand_in.failure());
        failure.map_or(Ok(logits), |why| Err(Error::Setup(why)))
    }

    /// True if the recipe rounds the tensor at this site and in this role.
    pub fn touches(&self, site: &Site) -> bool {
        self.at(site).any(|round| round.reads(site.role))
    }

    /// Returns a copy of the tensor, rounded as the recipe says for this site.
    pub fn applied(&self, site: &Site, tensor: &Tensor<f32>) -> Tensor<f32> {
        let mut tensor = tensor.clone();
        self.apply(site, &mut tensor);
        tensor
    }

    /// Rounds the tensor in place, as the recipe says for this site.
    pub fn apply(&self, site: &Site, tensor: &mut Tensor<f32>) {
        if tensor.data.is_empty() || !self.touches(site) {
            return;
        }
        let mut exact = self.noise.map(|noise| (noise, tensor.data.clone()));
        for round in self.at(site).filter(|round| round.reads(site.role)) {
            if !self.stored(round, tensor) {
                round.apply(tensor, of_site(&self.turned, site.name), site.first_row);
            }
            if let Some((_, exact)) = &mut exact {
                round.rotate(exact, tensor.cols());
            }
        }
        if let Some((noise, exact)) = exact {
            self.replace_by_noise(noise, site, &exact, tensor);
        }
    }

    /// Rounds a tensor by kernels that write it as KV records and read the records back. Returns false, and does nothing, unless
    /// the recipe names such kernels and the rounding step covers whole records.
    fn stored(&self, round: &Round, tensor: &mut Tensor<f32>) -> bool {
        let apart = round.asked.heads.is_some() || round.asked.layout.is_some();
        let whole = round.asked.segment.is_none() && !round.restricted() && !round.asked.hadamard && !apart;
        let record = round.record.filter(|_| whole);
        let kernels = self.stand_in.as_ref().zip(record);
        kernels.is_some_and(|(kernels, record)| kernels.store(record, &mut tensor.data))
    }

    /// Returns the number of bytes that one row of a site takes if the recipe stores it; a token has `rows` rows of `cols`
    /// channels. If several steps round whole rows, the last format counts. Returns `None` if no single size is meaningful: if
    /// the recipe adds noise; if it rounds only one role (key or value), some channels, some tokens, or only the channels with or
    /// without RoPE; or if a step for such channels follows a step for whole rows.
    pub fn bytes_per_row(&self, site: &Site, cols: usize, rows: usize) -> Option<f64> {
        let (mut whole, mut nope, mut rope) = (None, None, None);
        let turned = of_site(&self.turned, site.name);
        for round in self.at(site) {
            match round.asked.segment {
                _ if self.noise.is_some() || round.asked.role.is_some() || round.restricted() => return None,
                None => {
                    let joined = if round.asked.heads == Some(Heads::Joined) {
                        rows
                    } else {
                        1
                    };
                    whole = Some(round.codec.bytes_per_row(cols * joined) / joined as f64);
                    (nope, rope) = (None, None);
                }
                // If the whole row is already stored, or if the format is a record, the segment has no separate size: return
                // `None`.
                Some(_) if whole.is_some() || round.record.is_some() => return None,
                Some(Segment::Nope) => nope = Some(round.codec.bytes_per_row(cols - turned)),
                Some(Segment::Rope) => rope = Some(round.codec.bytes_per_row(turned)),
            }
        }
        match (nope, rope) {
            _ if whole.is_some() => whole,
            // A row that is not rounded is stored in f32, as in the reference.
            (None, None) => Some((cols * size_of::<f32>()) as f64),
            // If only one segment is rounded, return `None`: no cache stores the other segment in f32, so such a size would
            // mislead.
            (nope, rope) => Some(nope? + rope?),
        }
    }

    /// Returns the bytes of a cached vector, the bytes per token in all caches, and the ratio of the bytes per token to those of
    /// a bf16 cache. All three are `None` if the recipe rounds nothing.
    pub fn cache_bytes(&self, config: &dyn Config) -> CacheBytes {
        if self.rounds.is_empty() {
            return CacheBytes::default();
        }
        let (mut vectors, mut keys, mut per_token) = (Vec::new(), Vec::new(), Some(0.0));
        let (mut in_bf16, mut rounds_any) = (0.0, false);
        let mut rounds_vectors = false;
        for layer in 0..config.layers() {
            for info in config.path().sites {
                let (stored, is_vector) = match info.cache.map(|cache| cache.held) {
                    Some(Held::KeyValue | Held::Key | Held::Value) => (&mut vectors, true),
                    Some(Held::Index) => (&mut keys, false),
                    Some(Held::State) | None => continue,
                };
                if !config.passes(info, Some(layer)) {
                    continue;
                }
                let site = Site::new(Some(layer), info.name);
                let cols = config.cols(info);
                let rows = config.cols_of_token(info) / cols;
                let bytes = self.bytes_per_row(&site, cols, rows);
                let rounded = self.at(&site).next().is_some();
                rounds_vectors |= is_vector && rounded;
                rounds_any |= rounded;
                stored.push(bytes);
                if let Some(tokens) = config.tokens_per_row(info, layer) {
                    let as_bf16 = (size_of::<u16>() * cols) as f64;
                    let added = |bytes: f64| bytes * rows as f64 / tokens as f64;
                    in_bf16 += added(as_bf16);
                    let bytes = if rounded { bytes } else { Some(as_bf16) };
                    per_token = per_token.zip(bytes).map(|(sum, bytes)| sum + added(bytes));
                }
            }
        }
        let stored = if rounds_vectors { vectors } else { keys };
        let alike = stored.iter().all(|bytes| *bytes == stored[0]);
        let per_token = per_token.filter(|_| rounds_any);
        let of_bf16 = per_token.filter(|_| in_bf16 > 0.0).map(|bytes| bytes / in_bf16);
        CacheBytes {
            vector: stored.first().copied().flatten().filter(|_| alike),
            token: per_token,
            of_bf16,
        }
    }

    fn at<'a>(&'a self, site: &'a Site) -> impl Iterator<Item = &'a Round> {
        self.rounds.iter().filter(|round| round.meets(site))
    }

    /// Replaces the rounding error by Gaussian noise. With `gain` 1, the noise has the error's energy in every row, separately
    /// for channels with and without RoPE, so that only the error's structure is lost. The noise depends on seed, site and row
    /// number, but not on how the sequence was split into calls of the model.
    fn replace_by_noise(&self, Noise { seed, gain }: Noise, site: &Site, exact: &[f32], tensor: &mut Tensor<f32>) {
        let cols = tensor.cols();
        // Split the rows of all sites at the same channel, so that the noise does not depend on the number of RoPE channels of
        // the site.
        let turned = self.turned.iter().map(|(_, channels)| *channels).max().unwrap_or(0);
        let nope = cols.saturating_sub(turned);
        let mut rng = ChaCha8Rng::from_seed(*blake3::hash(format!("{seed}/{site}").as_bytes()).as_bytes());
        let rows = exact.chunks_exact(cols).zip(tensor.data.chunks_exact_mut(cols));
        for (row, (exact, rounded)) in rows.enumerate() {
            rng.set_stream((site.first_row + row) as u64);
            rng.set_word_pos(0);
            for segment in [0..nope, nope..cols] {
                of_energy(&mut rng, gain, &exact[segment.clone()], &mut rounded[segment]);
            }
        }
    }
}

impl Numerics<f32> for &Rounding {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        self.apply(site, tensor);
    }

    fn splits(&self, site: &Site) -> bool {
        self.at(site).any(|round| round.asked.role.is_some())
    }

    /// Returns the stand-in kernels, or the reference's operations if there are none.
    fn operations(&self) -> &dyn Operations<f32> {
        match &self.stand_in {
            Some(stand_in) => &**stand_in,
            None => &Plain,
        }
    }
}

fn places(config: &dyn Config) -> Vec<Place> {
    let tensor = |info: &SiteInfo| info.kind == SiteKind::Tensor;
    let places = config.places().into_iter().filter(|(info, _)| tensor(info));
    let selecting: Vec<&str> = multiplied(config).map(|[query, _]| query).collect();
    let place = |(info, layer): (&'static SiteInfo, _)| Place {
        info,
        full: Site::new(layer, info.name).to_string(),
        layer,
        cols: config.cols(info),
        heads: (info.dims.len() > 2).then(|| config.cols_of_token(info) / config.cols(info)),
        matrix: matrix(info, |dim| dim.fixed(&|name| config.size(name))),
        turned: config.turned(info),
        meets_cache: info.cache.is_some() || selecting.contains(&info.name),
    };
    places.map(place).collect()
}

/// Returns the number of channels that RoPE rotates at the end of a row of `site`: the entry in `turned`, or 0 without an entry.
fn of_site(turned: &[(&'static str, usize)], site: &str) -> usize {
    let here = turned.iter().find(|(name, _)| *name == site);
    here.map_or(0, |(_, channels)| *channels)
}

/// Returns the pairs of query and key sites whose products decide a top-k selection.
pub fn multiplied(config: &dyn Config) -> impl Iterator<Item = [&'static str; 2]> {
    config.path().sites.iter().filter_map(selection)
}

/// Returns the names of the query and key sites whose products are the scores, if `site` is a top-k selection; otherwise `None`.
pub fn selection(site: &SiteInfo) -> Option<[&'static str; 2]> {
    match site.decision() {
        Some(Decision::TopK { query, key, .. }) => Some([query, key]),
        _ => None,
    }
}
