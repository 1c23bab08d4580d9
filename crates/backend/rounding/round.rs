//! One rounding step ("round") of a recipe, resolved for the sites and layers that it covers.

use std::ops::Range;
use std::sync::Arc;

use reference::paths::Config;
use reference::sites::{Dim, Growth, Held, When};
use reference::{Role, Site, SiteInfo, Tensor};

use crate::recipe::{self, Heads, Layout, Ranges, Reader, Segment};
use ulplab_core::error::refuse;
use ulplab_core::formats::{Codec, KvRecord, RECORDS, codec, hadamard};
use ulplab_core::pattern::{matches, matches_nothing};
use ulplab_run::experiment::Mistake;

/// A parsed rounding step of a recipe: format, sites, layers, channels and tokens.
#[derive(Clone)]
pub(super) struct Round {
    /// The rounding step as written in the recipe.
    pub asked: recipe::Round,
    /// Names of the covered sites. Sites that are only recorded, and not used in the computation, are left out even if the
    /// pattern matches them: their rows have other lengths.
    sites: Vec<&'static str>,
    pub codec: Arc<dyn Codec>,
    /// The KV record, if the format is a record. A record stores all channels of a row: whole rows are encoded, even if only some
    /// channels are used.
    pub record: Option<&'static KvRecord>,
    layers: Option<Ranges>,
    channels: Option<Ranges>,
    tokens: Option<Ranges>,
}

/// One site in one layer, with its row length (`cols`) and the number of channels at the end of a row that RoPE has rotated
/// (`turned`).
pub(super) struct Place {
    pub info: &'static SiteInfo,
    pub full: String,
    pub layer: Option<usize>,
    pub cols: usize,
    /// Number of rows per token, if the site has heads: each head is a row.
    pub heads: Option<usize>,
    /// Number of rows of a matrix, if the tensor is a recurrent state of matrices `[heads, K, V]`.
    pub matrix: Option<usize>,
    pub turned: usize,
    /// True if the rows of the site are cached, or if a top-k selection multiplies them with cached rows.
    pub meets_cache: bool,
}

impl Place {
    /// Number of rows of the site's tensor in a window of `tokens` tokens; `None` for weights and recurrent states, whose rows
    /// are not tokens.
    pub fn rows(&self, config: &dyn Config, tokens: usize) -> Option<usize> {
        let state = self.info.cache.is_some_and(|cache| cache.growth == Growth::State);
        if self.info.when == When::Load || state {
            return None;
        }
        let each = self.layer.and_then(|layer| config.tokens_per_row(self.info, layer));
        Some(tokens / each.unwrap_or(1).max(1))
    }
}

impl Round {
    /// Parses a rounding step for a model of `count` layers.
    ///
    /// # Errors
    /// Returns an error if the format does not exist, or if a list of numbers is malformed or out of range.
    pub fn read(round: &recipe::Round, count: usize) -> Result<Self, Mistake> {
        let ranges = |key: &str, text: &Option<String>, count, one| {
            let text = text.as_ref();
            let read = text.map(|text| Ranges::parse(text, count, one, key));
            read.transpose().map_err(|message| Mistake::at(key, message))
        };
        let codec = codec(&round.format).map_err(|message| Mistake::at("format", message))?;
        Ok(Self {
            asked: round.clone(),
            sites: Vec::new(),
            codec,
            record: RECORDS.iter().copied().find(|record| record.name == round.format),
            layers: ranges("layers", &round.layers, count, "layer")?,
            channels: ranges("channels", &round.channels, usize::MAX, "channel")?,
            tokens: ranges("tokens", &round.tokens, usize::MAX, "token")?,
        })
    }

    /// Parses a rounding step, and checks that its format and options are valid for the sites that it covers.
    ///
    /// # Errors
    /// Returns the errors of [`read`](Self::read), and an error if the pattern covers no site, or if a format or option is
    /// invalid for a covered site.
    pub fn resolve(round: &recipe::Round, count: usize, places: &[Place]) -> Result<Self, Mistake> {
        let mut resolved = Self::read(round, count)?;
        let covered: Vec<&Place> = places.iter().filter(|place| resolved.covers(place)).collect();
        if covered.is_empty() {
            let here = places.iter().filter(|place| resolved.covers_layer(place.layer));
            let names = here.map(|place| place.full.as_str());
            let message = matches_nothing("tensor site of the model", &round.at, names);
            return Err(Mistake::at("at", message));
        }
        for place in covered {
            let wrong = |message| Mistake::at("at", format!("'{}': {message}", place.full));
            resolved.check(place).map_err(wrong)?;
            if !resolved.sites.contains(&place.info.name) {
                resolved.sites.push(place.info.name);
            }
        }
        Ok(resolved)
    }

    fn check(&self, place: &Place) -> Result<(), String> {
        let both = place.info.cache.is_some_and(|cache| cache.held == Held::KeyValue);
        let one_role = self.asked.role.is_some() && !both;
        refuse(one_role, "only the KV vectors are read in two roles")?;
        let whole = !(place.meets_cache && place.info.turned.is_some());
        let why = "only KV vectors and indexer queries and keys have nope and rope segments";
        refuse(self.asked.segment.is_some() && whole, why)?;
        let odd = self.asked.segment.is_some() || !place.cols.is_power_of_two();
        let why = format_args!("cannot rotate {} channels (a whole power of two is needed)", place.cols);
        refuse(self.asked.hadamard && odd, why)?;
        let why = "a rotation mixes all channels of a row: it has no 'channels' and no 'tokens'";
        refuse(self.asked.hadamard && self.restricted(), why)?;
        let cols = match (self.asked.layout, place.matrix) {
            (None, _) | (Some(Layout::Kv), Some(_)) => place.cols,
            (Some(Layout::Vk), Some(rows)) => rows,
            (Some(_), None) => return Err("'layout' is for the matrices of a recurrent state".into()),
        };
        let others = self.asked.heads.is_some() || self.asked.hadamard || self.restricted();
        let why = "'layout' goes without 'heads', 'hadamard', 'channels' and 'tokens'";
        refuse(self.asked.layout.is_some() && others, why)?;
        let joined = match (self.asked.heads, place.heads) {
            (None, _) => 1,
            (Some(_), None) => return Err("its tokens are of one row: 'heads' is for those of several".into()),
            (Some(_), Some(_)) if self.asked.segment.is_some() || self.asked.hadamard => {
                return Err("'heads' goes without 'segment' and 'hadamard'".into());
            }
            (Some(Heads::Joined), Some(heads)) => heads,
            (Some(Heads::Apart), Some(_)) => 1,
        };
        let last = self.channels.as_ref().and_then(Ranges::last);
        if let Some(last) = last.filter(|last| *last >= place.cols) {
            return Err(format!("there is no channel {last}: its rows have {}", place.cols));
        }
        let segment = self
            .asked
            .segment
            .map(|segment| segment.range(place.cols, place.turned));
        let empty = segment.as_ref().is_some_and(Range::is_empty);
        refuse(empty, "the segment has no channel there")?;
        if let (Some(mut range), Some(channels)) = (segment.clone(), &self.channels) {
            let of_segment = format!("the segment has channels {}-{}", range.start, range.end - 1);
            let why = format_args!("it rounds nothing: {of_segment}; expected some of them in 'channels'");
            refuse(!range.any(|channel| channels.contains(channel)), why)?;
        }
        let whole = self.codec.check(cols * joined);
        match segment {
            Some(segment) if whole.is_err() => self.codec.check(segment.len()),
            _ => whole,
        }
    }

    /// Checks that the rounding step can have an effect on the covered sites; `rows` returns a site's number of rows. Returns an
    /// error if all sites have 0 rows, if the step's `tokens` contain a number beyond the rows of all sites, or if `tokens` is
    /// given although the rows of a site are not tokens.
    ///
    /// # Errors
    /// Returns the mistake, with its key in the rounding step.
    pub fn check_rows(&self, covered: &[&Place], rows: impl Fn(&&Place) -> Option<usize>) -> Result<(), Mistake> {
        if let (Some(_), Some(place)) = (&self.tokens, covered.iter().find(|place| rows(place).is_none())) {
            let message = format!(
                "'{}': its rows are not of tokens, so 'tokens' has no meaning there",
                place.full
            );
            return Err(Mistake::at("tokens", message));
        }
        let Some(most) = covered.iter().map(|place| rows(place).unwrap_or(usize::MAX)).max() else {
            return Ok(());
        };
        let last = self.tokens.as_ref().and_then(Ranges::last);
        let at = &self.asked.at;
        let (key, message) = match (most, last) {
            (0, _) => ("at", format!("'{at}': no row passes there in so short a window")),
            (_, Some(last)) if last >= most => {
                let most = most - 1;
                (
                    "tokens",
                    format!("there is no token {last}: '{at}' has rows 0-{most} in a window"),
                )
            }
            _ => return Ok(()),
        };
        Err(Mistake::at(key, message))
    }

    pub fn covers_layer(&self, layer: Option<usize>) -> bool {
        match (&self.layers, layer) {
            (None, _) => true,
            (Some(layers), Some(layer)) => layers.contains(layer),
            (Some(_), None) => false,
        }
    }

    pub fn covers(&self, place: &Place) -> bool {
        self.covers_layer(place.layer) && matches(&self.asked.at, &place.full)
    }

    /// True if this rounding step applies to the tensors of `site`.
    pub fn meets(&self, site: &Site) -> bool {
        self.covers_layer(site.layer) && self.sites.contains(&site.name) && matches(&self.asked.at, &site.to_string())
    }

    pub fn reads(&self, role: Role) -> bool {
        match self.asked.role {
            None => true,
            Some(Reader::Key) => role == Role::Key,
            Some(Reader::Value) => role == Role::Value,
        }
    }

    /// True if the step rounds only some channels or tokens.
    pub fn restricted(&self) -> bool {
        self.channels.is_some() || self.tokens.is_some()
    }

    /// Rounds a tensor whose first row is row `first_row` of the sequence. RoPE has rotated the last `turned` channels of each
    /// row.
    pub fn apply(&self, tensor: &mut Tensor<f32>, turned: usize, first_row: usize) {
        if !self.restricted() {
            return self.apply_to_all(tensor, turned);
        }
        let exact = tensor.data.clone();
        self.apply_to_all(tensor, turned);
        let (cols, of_token) = (tensor.cols(), exact.len() / tensor.shape[0]);
        let meant = |ranges: &Option<Ranges>, number| ranges.as_ref().is_none_or(|ranges| ranges.contains(number));
        let channels: Vec<bool> = (0..cols).map(|channel| meant(&self.channels, channel)).collect();
        for (token, (rounded, exact)) in tensor.data.chunks_mut(of_token).zip(exact.chunks(of_token)).enumerate() {
            let token = meant(&self.tokens, first_row + token);
            for (at, (y, &x)) in rounded.iter_mut().zip(exact).enumerate() {
                if !(token && channels[at % cols]) {
                    *y = x;
                }
            }
        }
    }

    fn apply_to_all(&self, tensor: &mut Tensor<f32>, turned: usize) {
        if self.asked.layout == Some(Layout::Vk) {
            let mut stored = swapped(tensor);
            let cols = stored.cols();
            self.codec.round(&mut stored.data, cols);
            *tensor = swapped(&stored);
            return;
        }
        let cols = tensor.cols();
        let of_token = tensor.data.len() / tensor.shape[0];
        match self.asked.heads {
            None => {}
            Some(Heads::Joined) => return self.codec.round(&mut tensor.data, of_token),
            Some(Heads::Apart) => {
                let heads = (0..of_token).step_by(cols);
                return heads.for_each(|first| self.round_part(&mut tensor.data, of_token, first..first + cols));
            }
        }
        self.rotate(&mut tensor.data, cols);
        let Some(segment) = self.asked.segment else {
            self.codec.round(&mut tensor.data, cols);
            return;
        };
        // A record is encoded whole, and only the segment of the result is used; any other format encodes the segment only.
        let segment = segment.range(cols, turned);
        if self.record.is_none() {
            return self.round_part(&mut tensor.data, cols, segment);
        }
        let mut whole = tensor.data.clone();
        self.codec.round(&mut whole, cols);
        for (row, rounded) in tensor.data.chunks_exact_mut(cols).zip(whole.chunks_exact(cols)) {
            row[segment.clone()].copy_from_slice(&rounded[segment.clone()]);
        }
    }

    /// Rounds the channels `part` of all rows as one separate tensor. Rows have `cols` numbers.
    fn round_part(&self, values: &mut [f32], cols: usize, part: Range<usize>) {
        let parts = values.chunks_exact(cols).flat_map(|row| &row[part.clone()]);
        let mut rounded: Vec<f32> = parts.copied().collect();
        self.codec.round(&mut rounded, part.len());
        for (row, rounded) in values.chunks_exact_mut(cols).zip(rounded.chunks_exact(part.len())) {
            row[part.clone()].copy_from_slice(rounded);
        }
    }

    /// Applies a Hadamard rotation to rows of `cols` numbers before the rounding, if the recipe requests it.
    pub fn rotate(&self, values: &mut [f32], cols: usize) {
        if self.asked.hadamard {
            hadamard(values, cols).expect("checked when the recipe was resolved");
        }
    }
}

/// Returns the number of rows of a matrix, if the site's tensor is a recurrent state of matrices `[heads, K, V]`. `size` returns
/// the size of a dimension.
pub(super) fn matrix(info: &SiteInfo, size: impl Fn(Dim) -> usize) -> Option<usize> {
    let state = info.cache.is_some_and(|cache| cache.growth == Growth::State);
    match info.dims {
        [_, rows, _] if state => Some(size(*rows)),
        _ => None,
    }
}

/// Returns a tensor `[heads, rows, columns]` with every matrix transposed.
fn swapped(tensor: &Tensor<f32>) -> Tensor<f32> {
    let [heads, rows, cols] = tensor.shape[..] else {
        unreachable!("checked when the recipe was resolved: a state of matrices passes");
    };
    let matrices = tensor.data.chunks_exact(rows * cols);
    let turned =
        matrices.flat_map(|matrix| (0..cols).flat_map(move |col| matrix.iter().skip(col).step_by(cols).copied()));
    Tensor::new([heads, cols, rows], turned.collect())
}

impl Segment {
    /// Returns the channels of this segment in a row of `cols` channels, of which RoPE rotates the last `turned`.
    fn range(self, cols: usize, turned: usize) -> Range<usize> {
        match self {
            Self::Nope => 0..cols - turned,
            Self::Rope => cols - turned..cols,
        }
    }
}
