//! `ulplab dev generate`: text from a model, by the reference or by a recipe.

use std::path::{Path, PathBuf};

use reference::paths::Model;

use crate::backend::cuda::{Device, Session, shipped};
use crate::backend::recipe::Round;
use crate::backend::rounding::Rounding;
use crate::dataset::{Checkpoint, Manifest as Datasets};
use crate::experiment::file::ExperimentFile;
use crate::studies;
use crate::studies::model::Recipe;
use ulplab_core::error::{Error, Exit, Result, did_you_mean};
use ulplab_decode_step::{COMPOSITIONS, DecodeStep, Draw, Formats, Generation};

/// Generate text with the reference, and with recipes for comparison.
#[derive(Debug, clap::Args)]
pub struct GenerateArgs {
    /// Text to continue.
    #[arg(long)]
    pub prompt: String,
    /// Tokens to generate.
    #[arg(long, default_value_t = 200)]
    pub tokens: usize,
    /// Checkpoint: a name from datasets/manifest.toml, or a folder.
    #[arg(long, default_value = "dsv4-mini")]
    pub model: String,
    /// Recipe of the experiment file to generate with; may be given several times.
    #[arg(long, value_name = "NAME")]
    pub recipe: Vec<String>,
    /// Experiment with the recipes: a file, or the name of a shipped experiment.
    #[arg(long, value_name = "FILE", default_value = "kv_cache")]
    pub experiment: PathBuf,
    /// A recipe on the command line: round the matching sites to a format, e.g. 'layers.*.attention.kv.*=nvfp4'.
    #[arg(long, value_name = "SITE=FORMAT")]
    pub round: Vec<String>,
    /// Sampling temperature: 0 always takes the most probable token.
    #[arg(long, default_value_t = 0.0)]
    pub temperature: f64,
    /// Seed of the draw.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Also generate with kernels on this device. All kernels of a token are in one CUDA graph, which is replayed for each token.
    #[arg(long, value_enum)]
    pub device: Option<GenerateOn>,
    /// Variant of decode_step that generates.
    ///
    /// The default is `persistent`; with --record `records`, with --index `indexed`; with 4-bit experts `simple`. With
    /// --activations it is `w8a8`, `w8a8_records` or `w8a8_indexed`, and `served` if they have +bf16.
    #[arg(long, value_name = "NAME", requires = "device")]
    pub variant: Option<String>,
    /// Format of KV records in which kernels store and read keys: v4_fp8, v4_nvfp4, ... (`ulplab list formats` lists them).
    #[arg(long, value_name = "FORMAT", requires = "device")]
    pub record: Option<String>,
    /// Format of records in which kernels store and score index keys: index_fp8 or index_mxfp4; needs --record.
    #[arg(long, value_name = "FORMAT", requires = "record")]
    pub index: Option<String>,
    /// Format in which kernels store weight matrices: f32, bf16, fp8_b64_f32, fp8_b64_f32+mxfp4 or fp8_b64_f32+nvfp4. The format
    /// after the + is that of routed experts.
    #[arg(long, value_name = "FORMATS", requires = "device", default_value = "f32")]
    pub weights: String,
    /// Format of the activations in attention's matrix products: fp8_b128_f32, or fp8_b128_f32+bf16 [default: f32].
    ///
    /// fp8_b128_f32 is E4M3 with a scale for each 128 columns; the weights are E4M3 with a scale for each block of 128 × 128.
    /// With +bf16, the activations of all other products are bfloat16, and the weights bf16+mxfp4.
    #[arg(long, value_name = "FORMAT", requires = "device")]
    pub activations: Option<String>,
    /// Folder of the data sets [default: $ULPLAB_DATASETS, or datasets/ here or in a folder above].
    #[arg(long, value_name = "DIR")]
    pub datasets: Option<PathBuf>,
}

/// The device that generates text next to the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum GenerateOn {
    /// On a GPU.
    Cuda,
}

pub fn run(args: &GenerateArgs) -> Result<Exit> {
    let temperature = args.temperature;
    let right = temperature >= 0.0 && temperature.is_finite();
    Error::refuse(!right, format_args!("--temperature {temperature}: expected 0 or more"))?;
    let message = "--prompt is empty: the model needs at least one token to continue";
    Error::refuse(args.prompt.is_empty(), message)?;
    let datasets = Datasets::open(args.datasets.as_deref())?;
    let folder = datasets.checkpoint(&args.model)?;
    let mut checkpoint = Checkpoint::open(&folder)?;
    let tokenizer = checkpoint.tokenizer()?;
    let prompt = tokenizer.ids(&args.prompt)?;
    let recipes = recipes(args)?;
    let mut roundings = vec![("reference".to_string(), Rounding::default())];
    for recipe in &recipes {
        let wrong = |why: &str| Error::Usage(format!("recipe '{}'{why}", recipe.name));
        let rounding = recipe.resolve(&*checkpoint.config, args.seed);
        let rounding = rounding.map_err(|mistake| wrong(&format!(": {}", mistake.message)))?;
        if rounding.rounds_weights {
            return Err(wrong(" rounds weights: `ulplab sweep` measures it"));
        }
        roundings.push((recipe.name.clone(), rounding));
    }
    // Open the GPU before the reference generates text: a missing GPU is then reported at once.
    let device = args.device.map(|GenerateOn::Cuda| Device::open()).transpose()?;
    let model = checkpoint.load()?;
    let several = roundings.len() > 1 || device.is_some();
    let mut want: Option<Vec<u32>> = None;
    let mut show = |name: &str, ids: Vec<u32>| -> Result<()> {
        let (unit, count) = (tokenizer.unit(), ids.len());
        let departure = |want: &Vec<u32>| match want.iter().zip(&ids).position(|(a, b)| a != b) {
            Some(at) => format!(": departs from the reference at {unit} {at} of {count}"),
            None => ": same as the reference".to_string(),
        };
        if several {
            outln!("--- {name}{}", want.as_ref().map(departure).unwrap_or_default());
        }
        outln!("{}{}", args.prompt, tokenizer.text(&prompt, &ids)?);
        want.get_or_insert(ids);
        Ok(())
    };
    for (name, rounding) in &roundings {
        show(name, generate(&*model, rounding, &prompt, args)?)?;
    }
    if let Some(device) = &device {
        let (name, ids) = on_device(device, &folder, &prompt, args)?;
        show(&name, ids)?;
    }
    Ok(Exit::Pass)
}

/// Generates tokens with the kernels of `decode_step` on the GPU. Returns a description (kernels, formats, tokens per second) and
/// the token ids.
fn on_device(device: &Device, folder: &Path, prompt: &[u32], args: &GenerateArgs) -> Result<(String, Vec<u32>)> {
    let source = shipped::file(&DecodeStep, &[&COMPOSITIONS])?;
    let keys = match &args.record {
        Some(_) if args.index.is_some() => Some("indexed"),
        Some(_) => Some("records"),
        None => None,
    };
    let fastest = match (&args.activations, keys) {
        (Some(activations), _) if activations.contains('+') => "served",
        (Some(_), Some(keys)) => &format!("w8a8_{keys}"),
        (Some(_), None) => "w8a8",
        (None, Some(keys)) => keys,
        (None, None) if args.weights.contains('+') => "simple",
        (None, None) => "persistent",
    };
    let variant = source.named(args.variant.as_deref().unwrap_or(fastest))?;
    let generation = Generation {
        folder,
        prompt,
        tokens: args.tokens,
        temperature: args.temperature as f32,
        seed: args.seed.cast_signed(),
        formats: Formats {
            record: args.record.as_deref(),
            index: args.index.as_deref(),
            weights: &args.weights,
            activations: args.activations.as_deref(),
        },
    };
    let (case, problem) = generation.problem().map_err(Error::Usage)?;
    let session = Session::open(device)?;
    let kernels = session.load(&source, None);
    let bench = kernels.case(&case, &problem);
    let (outputs, seconds) = bench.running(variant)?.generated()?;
    let (tokens, _) = outputs.get("tokens").as_chunks();
    let ids = tokens.iter().map(|token| u32::from_le_bytes(*token)).collect();
    let rate = args.tokens as f64 / seconds;
    let weights = Some(&args.weights).filter(|weights| *weights != Formats::F32.weights);
    let formats = weights.into_iter().chain(&args.record).chain(&args.index);
    let mut formats: String = formats.map(|format| format!(", {format}")).collect();
    if let Some(format) = &args.activations {
        formats += &format!(", {format} activations");
    }
    let (op, variant, device) = (&source.op, &variant.name, &device.name);
    Ok((format!("{op}.{variant}{formats} on {device}, {rate:.0} tokens/s"), ids))
}

fn recipes(args: &GenerateArgs) -> Result<Vec<Recipe>> {
    let mut recipes = Vec::new();
    if !args.recipe.is_empty() {
        let experiment = studies::parse(&ExperimentFile::read(&args.experiment, &[])?)?.experiment;
        let known = experiment.recipes();
        for name in &args.recipe {
            let found = known.iter().find(|(known, _)| known == name);
            let file = args.experiment.display();
            let Some((_, recipe)) = found else {
                let hint = did_you_mean(name, known.iter().map(|(known, _)| *known));
                return Err(Error::Usage(format!("{file} has no recipe '{name}'{hint}")));
            };
            let wrong = |why: String| Error::Usage(format!("{file}: recipe '{name}' is {why}"));
            let recipe = serde_json::from_value::<Recipe>((*recipe).clone());
            let recipe = recipe.map_err(|why| wrong(format!("not a recipe of a model: {why}")))?;
            if let Some(step) = &recipe.step {
                let hint = "--device cuda generates by it, with --variant, --record, --index and --weights";
                return Err(wrong(format!("a whole step, {step}: {hint}")));
            }
            recipes.push(recipe);
        }
    }
    if !args.round.is_empty() {
        let round = |text: &String| match text.split_once('=') {
            Some((at, format)) => Ok(Round {
                at: at.into(),
                format: format.into(),
                ..Round::default()
            }),
            None => Err(Error::Usage(format!("--round {text}: expected SITE=FORMAT"))),
        };
        let rounds = args.round.iter().map(round).collect::<Result<_>>()?;
        recipes.push(Recipe {
            name: args.round.join(" "),
            rounds,
            ..Recipe::default()
        });
    }
    Ok(recipes)
}

/// Generates tokens: feeds the whole prompt, and then one token at a time.
fn generate(model: &dyn Model<f32>, rounding: &Rounding, prompt: &[u32], args: &GenerateArgs) -> Result<Vec<u32>> {
    let mut state = model.state(Vec::new()).map_err(Error::Reference)?;
    let mut fed = prompt.to_vec();
    let mut ids = Vec::with_capacity(args.tokens);
    let mut read = 0;
    while ids.len() < args.tokens {
        let logits = rounding.run(model, &mut *state, &fed, &mut { rounding })?;
        read += fed.len();
        let draw = Draw {
            seed: args.seed.cast_signed(),
            sequence: 0,
            position: i32::try_from(read - 1).map_err(|_| Error::Usage(format!("{read} tokens are too many")))?,
        };
        let next = pick(logits.row(logits.rows() - 1), args.temperature, draw);
        ids.push(next);
        fed = vec![next];
    }
    Ok(ids)
}

/// Returns the token with the largest logit; at a temperature above 0, a random token drawn from the softmax.
fn pick(logits: &[f32], temperature: f64, draw: Draw) -> u32 {
    let scores = logits.iter().enumerate().map(|(token, logit)| match temperature {
        0.0 => f64::from(*logit),
        _ => f64::from(*logit) / temperature + draw.noise(token),
    });
    // If several tokens have the largest score, takes the first.
    let scores = scores.enumerate();
    let best = scores.max_by(|(at, a), (other, b)| a.total_cmp(b).then(other.cmp(at)));
    best.map_or(0, |(token, _)| token) as u32
}
