//! Kernel files `kernels/<op>.cu`. A file has the source of all variants of an operation, and a header that describes them.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::compositions::{Composed, Compositions};
use ulplab_core::error::{Error, Result, did_you_mean, refuse};
use ulplab_core::input;
use ulplab_run::dataset::suggestion;
use ulplab_run::entries::with_extension;
use ulplab_run::run::ceilings::Ceilings;
use ulplab_run::run::seal;

/// A kernel file: its text, header and includes.
#[derive(Clone, Debug)]
pub struct Source {
    /// Name of the operation: the stem of the file name.
    pub op: String,
    pub path: PathBuf,
    pub text: String,
    /// Paths and texts of the files that this file includes, directly or indirectly.
    pub includes: Vec<(String, String)>,
    pub header: Header,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    #[serde(rename = "variant")]
    pub variants: Vec<Variant>,
    #[serde(default, rename = "mutant")]
    pub mutants: Vec<Mutant>,
}

/// An implementation of the operation.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    pub name: String,
    pub doc: String,
    /// Conditions on the sizes of a case: the variant supports the case if all of them hold.
    #[serde(default)]
    pub needs: Vec<String>,
    /// The only supported architecture, e.g. `sm_100a`; `None` if the variant supports all architectures.
    pub arch: Option<String>,
    #[serde(default)]
    pub scratch: Vec<Scratch>,
    /// Reason why the outputs of two runs may differ; `None` for a deterministic variant.
    pub nondeterministic: Option<String>,
    /// Reason why the bits of a row may depend on the other rows of its batch; `None` for a batch-invariant variant.
    pub varies_with_batch: Option<String>,
    /// Type of the factors in the variant's matrix products. The variant's speed is compared with the GPU's peak rate for this
    /// type.
    #[serde(default)]
    pub products: Factor,
    /// Untimed launches that run once after the inputs are on the device. They prepare weights, as a model loader does.
    #[serde(default)]
    pub prepare: Vec<Launch>,
    /// Launches in the order in which they run; empty if a composition builds them.
    #[serde(default, rename = "launch")]
    pub launches: Vec<Launch>,
    /// Composition: the Rust function that builds the launches, if any.
    #[serde(skip)]
    pub composed: Option<Composed>,
}

impl Variant {
    /// True if the variant supports cards of this architecture, e.g. `sm_90a`.
    pub fn is_for(&self, arch: &str) -> bool {
        self.arch.as_ref().is_none_or(|only| only == arch)
    }
}

/// Scratch: working memory of a variant.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scratch {
    pub name: String,
    pub bytes: String,
    /// True if the memory is cleared before each run.
    #[serde(default)]
    pub zero: bool,
}

/// A launch of a kernel of the file, or a matrix product by cuBLASLt.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Launch {
    /// Name of the launch in a trace; the entry point if absent.
    pub name: Option<String>,
    pub entry: Option<String>,
    pub grid: Vec<Number>,
    pub block: Vec<Number>,
    pub cluster: Option<Vec<Number>>,
    pub shared: Option<Number>,
    pub cooperative: bool,
    pub programmatic: bool,
    /// True if the launch only stores intermediate values for the correctness check. Such launches are not timed; only
    /// compositions have them.
    #[serde(skip)]
    pub tap: bool,
    pub args: Vec<String>,
    /// Arguments that only store intermediate values for the correctness check; they are null pointers when the variant is timed.
    pub taps: Vec<String>,
    pub matmul: Option<Matmul>,
    /// Smallest number of bytes that the launch has to read and write; if absent, the total size of its buffers is used.
    pub bytes: Option<Number>,
    /// Number of floating-point operations of the launch's matrix products.
    pub flops: Option<Number>,
}

/// D = A·Bᵀ: A [m, k], B [n, k], D [m, n], rows contiguous, summed in f32.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matmul {
    pub a: String,
    pub b: String,
    pub d: String,
    pub m: Number,
    pub n: Number,
    pub k: Number,
    /// Type of A and B.
    #[serde(default)]
    pub of: Factor,
    /// Type of D.
    #[serde(default)]
    pub into: Sum,
    /// Names of the f32 scales, one scale for each row of A and of B; only for E4M3 codes.
    pub scales: Option<[String; 2]>,
}

/// Type of the factors of a matrix product.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Factor {
    #[default]
    Bf16,
    E4m3,
}

impl Factor {
    /// Returns the measured rate of large matrix products of this type, in 10¹² operations per second; `None` if it was not
    /// measured.
    pub fn rate(self, ceilings: &Ceilings) -> Option<f64> {
        match self {
            Self::Bf16 => ceilings.matmul_tflop_s,
            Self::E4m3 => ceilings.e4m3_tflop_s,
        }
    }
}

/// Type in which a matrix product stores its sums.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Sum {
    #[default]
    Bf16,
    F32,
}

impl Launch {
    pub fn name(&self) -> &str {
        let name = self.name.as_deref().or(self.entry.as_deref());
        name.unwrap_or("matmul")
    }

    pub(super) fn check(&self) -> std::result::Result<(), String> {
        if let Some(stray) = self.taps.iter().find(|tap| !self.args.contains(tap)) {
            return Err(format!("'{stray}' of taps is not in args"));
        }
        let placed = !self.grid.is_empty() || !self.block.is_empty() || !self.args.is_empty();
        match (&self.entry, &self.matmul) {
            (Some(_), None) if self.grid.is_empty() || self.block.is_empty() => Err("has no grid or no block".into()),
            (Some(_), None) => Ok(()),
            (None, Some(_)) if placed => Err("is a matmul, and has a grid, block or args".into()),
            (None, Some(matmul)) if (matmul.of == Factor::E4m3) != matmul.scales.is_some() => {
                Err("scales are for codes of e4m3, which need them".into())
            }
            (None, Some(_)) => Ok(()),
            _ => Err("expected an entry or a matmul, one of them".into()),
        }
    }
}

/// Number in a header: an expression over the sizes of the case, or a plain integer.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(untagged)]
pub enum Number {
    Plain(i64),
    Expression(String),
}

/// A planted fault in the kernels, enabled by a macro.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutant {
    pub name: String,
    pub doc: String,
    /// Variants that have the fault; all variants if empty.
    #[serde(default)]
    pub variants: Vec<String>,
}

impl Mutant {
    /// Returns the name of the macro that enables the fault.
    pub fn define(&self) -> String {
        format!("MUTANT_{}", self.name.to_uppercase())
    }

    pub fn is_of(&self, variant: &str) -> bool {
        self.variants.is_empty() || self.variants.iter().any(|name| name == variant)
    }
}

impl Header {
    /// Parses the header of a kernel file: a comment in TOML at the beginning of `text`.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let comment = text.strip_prefix("/*").and_then(|rest| rest.split_once("*/"));
        let (comment, _) = comment.ok_or("does not begin with a comment that describes its variants")?;
        toml::from_str(comment).map_err(|error| located(comment, &error))
    }
}

impl Source {
    /// Reads a kernel file. If `all` has compositions of the file's operation, assigns them to the file's variants.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or if the header has a mistake or lacks a variant of a composition.
    pub fn read(path: &Path, all: &[&Compositions]) -> Result<Self> {
        let text = input::text(path)?;
        let wrong = |why: String| Error::data(path, why);
        let mut includes = Vec::new();
        let plain = &without_parents(path);
        // Keep the error of a missing include until the header is parsed: a mistake in the header is reported first.
        let folder = plain.parent().unwrap_or(Path::new(""));
        let collected = collect(folder, plain, &text, &mut includes);
        let path = plain;
        let op = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut header = Header::parse(&text).map_err(wrong)?;
        collected?;
        if let Some(own) = all.iter().find(|compositions| compositions.op == op) {
            own.put(&mut header, folder).map_err(wrong)?;
        }
        let source = Self {
            op,
            path: path.into(),
            header,
            includes,
            text,
        };
        source.check().map_err(|why| wrong(format!("header: {why}")))?;
        Ok(source)
    }

    /// Reads all kernel files of a folder, in the order of their names.
    pub fn read_all(folder: &Path, compositions: &[&Compositions]) -> Result<Vec<Self>> {
        let paths = with_extension(folder, "read", &["cu"])?;
        paths.iter().map(|path| Self::read(path, compositions)).collect()
    }

    /// Reads the kernel files of a folder, and prints the errors of unreadable files. Returns the readable files, and true if
    /// there were errors.
    pub fn read_good(folder: &Path, compositions: &[&Compositions]) -> Result<(Vec<Self>, bool)> {
        let paths = with_extension(folder, "read", &["cu"])?;
        let read = |path| Self::read(path, compositions).inspect_err(|error| errln!("{error}"));
        let good: Vec<Self> = paths.iter().flat_map(|path| read(path)).collect();
        let broken = good.len() < paths.len();
        Ok((good, broken))
    }

    fn check(&self) -> std::result::Result<(), String> {
        let Header { variants, mutants } = &self.header;
        let unique = |what: &str, names: Vec<&String>| {
            let twice = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name));
            twice.map_or(Ok(()), |(_, name)| Err(format!("two {what} are called '{name}'")))
        };
        unique("variants", variants.iter().map(|variant| &variant.name).collect())?;
        for variant in variants {
            let name = &variant.name;
            let none = variant.launches.is_empty() && variant.composed.is_none();
            let why = format_args!("variant '{name}' has no launches; expected [[variant.launch]]");
            refuse(none, why)?;
            for launch in variant.prepare.iter().chain(&variant.launches) {
                let wrong = |why| format!("variant '{name}', launch '{}': {why}", launch.name());
                launch.check().map_err(wrong)?;
            }
        }
        unique("mutants", mutants.iter().map(|mutant| &mutant.name).collect())?;
        for mutant in mutants {
            let (name, define) = (&mutant.name, mutant.define());
            let planted = self.texts().any(|(_, text)| text.contains(&define));
            refuse(
                !planted,
                format_args!("mutant '{name}' is not in the code: no {define}"),
            )?;
            let mut named = mutant.variants.iter();
            if let Some(stray) = named.find(|name| self.variant(name).is_none()) {
                return Err(format!("mutant '{name}': no variant '{stray}'"));
            }
        }
        Ok(())
    }

    /// Returns the names and texts of this file and of all files that it includes.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        let included = self.includes.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        std::iter::once((self.op.as_str(), self.text.as_str())).chain(included)
    }

    /// Returns a digest of this file and of all files that it includes by `#include "name"`.
    pub fn digest(&self) -> blake3::Hash {
        let parts = self.texts().flat_map(|(name, text)| [name, text]);
        seal::of_parts(parts.map(str::as_bytes))
    }

    /// Returns the full name of a variant or planted fault, unique among all operations: `op.variant`.
    pub fn full_name(&self, own: &str) -> String {
        format!("{}.{own}", self.op)
    }

    /// Returns all variants with their full names.
    pub fn kernels(&self) -> impl Iterator<Item = (String, &Variant)> {
        let variants = self.header.variants.iter();
        variants.map(|variant| (self.full_name(&variant.name), variant))
    }

    /// Returns the variants that support cards of an architecture.
    pub fn variants_for(&self, arch: &str) -> impl Iterator<Item = &Variant> {
        let variants = self.header.variants.iter();
        variants.filter(move |variant| variant.is_for(arch))
    }

    /// Returns the variant with a name; the error suggests the nearest name.
    pub fn named(&self, name: &str) -> Result<&Variant> {
        self.variant(name).ok_or_else(|| {
            let names = || self.header.variants.iter().map(|variant| variant.name.as_str());
            let near = did_you_mean(name, names());
            let all = names().collect::<Vec<_>>().join(", ");
            Error::Usage(format!("{} has no variant '{name}'{near}; variants: {all}", self.op))
        })
    }

    pub fn variant(&self, name: &str) -> Option<&Variant> {
        self.header.variants.iter().find(|variant| variant.name == name)
    }
}

/// Describes a mistake in a header: adds its line, and suggests the right key if a key is misspelled.
fn located(comment: &str, error: &toml::de::Error) -> String {
    let line = error.span().and_then(|span| comment.get(..span.start));
    let line = line.map_or(String::new(), |before| {
        format!(", line {}", before.matches('\n').count() + 1)
    });
    let why = error.message().trim();
    format!("header{line}: {why}{}", suggestion(why, &[]))
}

/// Adds each file that `text` includes by `#include "name"`, directly or indirectly, to `found`: its path relative to `root`, the
/// folder of the kernel, and its text. Like the compiler, looks for `name` next to the including file first, then in `root`.
fn collect(root: &Path, file: &Path, text: &str, found: &mut Vec<(String, String)>) -> Result<()> {
    for line in text.lines() {
        let rest = line.trim().strip_prefix("#include \"");
        let Some(name) = rest.and_then(|rest| rest.strip_suffix('"')) else {
            continue;
        };
        let beside = without_parents(&file.with_file_name(name));
        let file = if beside.is_file() { beside } else { root.join(name) };
        let name = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
        if found.iter().any(|(known, _)| *known == name) {
            continue;
        }
        let text = input::text(&file)?;
        found.push((name, text.clone()));
        collect(root, &file, &text, found)?;
    }
    Ok(())
}

/// Removes `folder/..` from a path, so that a file has one name however it is included.
fn without_parents(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        let above =
            component == Component::ParentDir && matches!(plain.components().next_back(), Some(Component::Normal(_)));
        match above {
            true => drop(plain.pop()),
            false => plain.push(component),
        }
    }
    plain
}
