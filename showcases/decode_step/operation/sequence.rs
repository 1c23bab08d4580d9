//! Decode steps of a single sequence, which either generates tokens or reads given tokens.

use std::path::Path;

use reference::paths::deepseek_v4::sites;
use reference::sites::Dim;
use reference::{Choice, Numerics, Site, Tensor};
use safetensors::Dtype;

use super::formats::Formats;
use super::records::Stored;
use super::weights::Source;
use super::{Step, TAPS};
use ulplab_operations::ops::data::f32_values;
use ulplab_operations::ops::{Case, Inputs, Outputs, Problem};

/// A sequence that generates tokens after a prompt.
pub struct Generation<'a> {
    /// Folder of the model.
    pub folder: &'a Path,
    /// Tokens of the prompt, at least one.
    pub prompt: &'a [u32],
    /// Number of tokens to generate.
    pub tokens: usize,
    /// Sampling temperature; 0 always takes the most probable token.
    pub temperature: f32,
    /// Seed of the sampling.
    pub seed: i64,
    /// Formats of keys and weights.
    pub formats: Formats<'a>,
}

impl Generation<'_> {
    /// Returns the case and the kernel inputs for generating the tokens, which kernels write to the output `tokens`. To fill the
    /// KV caches, the reference reads the prompt without its last token. The intermediate values that kernels output are not
    /// used.
    ///
    /// # Errors
    /// Returns an error if no kernel supports the model, or the prompt is empty.
    pub fn problem(&self) -> Result<(Case, Problem), String> {
        let (last, read) = self.prompt.split_last().ok_or("there is no prompt")?;
        let forced = vec![-1; self.tokens + 1];
        let positions = self.prompt.len() + self.tokens;
        let mut step = sequence((self.folder, self.formats), read, *last, forced, positions)?;
        (step.kept, step.temperature, step.seed) = (1, self.temperature, self.seed);
        Ok((case("generation", self.formats, &step), step.problem()?))
    }
}

/// A sequence whose tokens are all given (teacher forcing): each run reads the next token. Kernels also output the intermediate
/// values.
pub struct Reading<'a> {
    /// Folder of the model.
    pub folder: &'a Path,
    /// Tokens to read, at least one.
    pub ids: &'a [u32],
    /// Formats of keys and weights.
    pub formats: Formats<'a>,
}

impl Reading<'_> {
    /// Pattern of the sites whose vectors may be stored as KV records.
    pub const STORED: &'static str = "layers.*.attention.kv.*";

    /// Returns the case and the kernel inputs for reading the tokens.
    ///
    /// # Errors
    /// Returns an error if no kernel supports the model, or there are no tokens.
    pub fn problem(&self) -> Result<(Case, Problem), String> {
        let first = *self.ids.first().ok_or("there are no tokens")?;
        let forced = self.ids.iter().map(|id| *id as i32).chain([-1]).collect();
        let step = sequence((self.folder, self.formats), &[], first, forced, self.ids.len())?;
        Ok((case("reading", self.formats, &step), step.problem()?))
    }

    /// Calls the hooks `numerics` at each site with the values that kernels output, as if a model had read all tokens at once;
    /// returns the logits. Keys are passed unquantized, and choices (experts, top-k entries) without their scores.
    ///
    /// # Errors
    /// Returns an error if the model cannot be opened.
    pub fn pass(&self, outputs: &Outputs, numerics: &mut dyn Numerics<f32>) -> Result<Tensor<f32>, String> {
        let config = Source::open(self.folder, Formats::F32.storages()?)?.config;
        let sizes: &dyn reference::paths::Config = &config;
        let (path, tokens) = (sizes.path(), self.ids.len());
        let kept = TAPS.iter().map(|tap| (tap, tap.kept(&config, 1, outputs)));
        let kept: Vec<_> = kept.collect();
        for layer in 0..config.num_hidden_layers {
            for (tap, kept) in kept.iter().filter(|(_, kept)| kept.number(layer).is_some()) {
                let every = match tap.site {
                    sites::COMPRESSED | sites::INDEX_KEY => config.compress_rate(layer).unwrap_or(1),
                    _ => 1,
                };
                let passed = (0..tokens).filter(|token| (token + 1) % every == 0);
                let values = passed.flat_map(|token| kept.row([token, layer, 0])).copied();
                let values: Vec<f32> = values.collect();
                let info = path.site(tap.site).expect("a tap is at a site of the path");
                let inner = info.dims.iter().filter(|dim| matches!(dim, Dim::Size(_)));
                let mut shape: Vec<usize> = inner.map(|dim| dim.fixed(&|name| sizes.size(name))).collect();
                shape.insert(0, values.len() / shape.iter().product::<usize>());
                let site = Site::new(Some(layer), tap.site);
                if tap.dtype == Dtype::I32 {
                    let mut choice = Choice {
                        indices: values.iter().map(|x| *x as i32).collect(),
                        k: shape[1],
                        scores: Tensor::new([shape[0], 0], Vec::new()),
                    };
                    numerics.choice(&site, &mut choice);
                } else {
                    numerics.site(&site, &mut Tensor::new(shape, values));
                }
            }
        }
        let logits = f32_values(outputs.get("logits"), Dtype::F32);
        Ok(Tensor::new([tokens, config.vocab_size], logits))
    }
}

/// Creates the step of one sequence with caches for `positions` positions. The reference reads the tokens `read` to fill the
/// caches. The first run of the kernels then reads the token `first`, and later runs read `forced`.
fn sequence(
    (folder, formats): (&Path, Formats),
    read: &[u32],
    first: u32,
    forced: Vec<i32>,
    positions: usize,
) -> Result<Step, String> {
    let source = Source::open(folder, formats.storages()?)?;
    let model = source.model::<f32>()?;
    let mut state = model.state();
    if !read.is_empty() {
        model.run(&mut state, read, &mut Stored::new(formats.record)?)?;
    }
    let (starts, sizes) = (vec![Some(state.to_parts())], [forced.len() - 1, positions]);
    Step::begin(source, starts, sizes, (vec![first as i32], forced), formats)
}

fn case(name: &str, formats: Formats, step: &Step) -> Case {
    let (keys, prefix) = formats.keys();
    Case {
        name: prefix + name,
        keys,
        dims: step.dims.clone(),
        inputs: Inputs::Weights,
        ..Case::default()
    }
}
