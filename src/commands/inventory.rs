//! `ulplab list` and `ulplab doctor`: known names, and the state of this machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use reference::paths::{self, PATHS};
use reference::{SiteInfo, SiteKind};

use crate::backend::cuda::{Device, Toolkit};
use crate::backend::recipe::Ranges;
use crate::commands::kernels;
use crate::dataset::Manifest as Datasets;
use crate::entries::with_extension;
use crate::experiment::file::ExperimentFile;
use crate::report::REPORTS;
use crate::shipped;
use ulplab_core::error::{Error, Exit, Result, counted};
use ulplab_core::formats::{
    AFFINE_RULES, CASTS, ELEMENTS, F32_RULES, FORMATS, HALF_RULES, NVFP4_RULES, NVFP4_SINGLE_RULES, POWER_RULES,
    RECORDS,
};
use ulplab_core::input;
use ulplab_core::layouts::LAYOUTS;
use ulplab_core::metrics::METRICS;

/// List the names that ulplab knows, one per line, each with a description.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    pub kind: ListKind,
    /// List only the sites of this model: a data set, or a folder with config.json.
    #[arg(long, value_name = "NAME|FOLDER")]
    pub model: Option<String>,
    /// Folder of the data sets [default: $ULPLAB_DATASETS, or datasets/ here or in a folder above].
    #[arg(long, value_name = "DIR")]
    pub datasets: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum ListKind {
    /// Number formats and KV records.
    Formats,
    /// Types of a single number, and the libraries' casts to them.
    Elements,
    /// Rules that pick scales, by type of scale.
    Rules,
    /// Orders of scales in memory.
    Layouts,
    /// Metrics.
    Metrics,
    /// Named tensors of models that can be rounded or recorded, by family; --model shows those of one model.
    Sites,
    /// Checkpoints and texts.
    Datasets,
    /// Operations and their GPU kernels, as `ulplab kernels list` shows them.
    Kernels,
    /// Shipped experiments; `ulplab sweep NAME` runs one.
    Experiments,
    /// Report files of a run.
    Reports,
}

pub fn list(args: &ListArgs) -> Result<Exit> {
    let other = !matches!(args.kind, ListKind::Sites);
    Error::refuse(args.model.is_some() && other, "--model is for `ulplab list sites`")?;
    let row = |(name, doc): (&str, &str)| (name.to_string(), doc.to_string());
    let rows: Vec<Row> = match args.kind {
        ListKind::Formats => {
            let records = RECORDS.iter().map(|record| (record.name, record.doc));
            let formats = FORMATS.iter().map(|format| (format.name, format.doc));
            records.chain(formats).map(row).collect()
        }
        ListKind::Layouts => LAYOUTS.iter().map(|layout| row((layout.name, layout.doc))).collect(),
        ListKind::Elements => elements(),
        ListKind::Rules => rules(),
        ListKind::Metrics => METRICS.iter().map(|metric| row((metric.name, metric.doc))).collect(),
        ListKind::Sites => return list_sites(args),
        ListKind::Datasets => {
            let datasets = Datasets::open(args.datasets.as_deref())?.datasets.into_iter();
            datasets.map(|(name, dataset)| (name, dataset.about)).collect()
        }
        ListKind::Kernels => return kernels::list::run(&kernels::list::ListArgs::default()),
        ListKind::Experiments => experiments()?,
        ListKind::Reports => REPORTS.iter().map(|report| row((report.file, report.doc))).collect(),
    };
    print(&rows, "");
    Ok(Exit::Pass)
}

/// A name and its description.
type Row = (String, String);

fn print(rows: &[Row], indent: &str) {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, doc) in rows {
        outln!("{indent}{name:width$}  {doc}");
    }
}

/// Prints the sites of each family of models, or of the one model that `--model` names.
fn list_sites(args: &ListArgs) -> Result<Exit> {
    let Some(model) = &args.model else {
        for (at, path) in PATHS.iter().enumerate() {
            let types = (path.model_types)().join(", ");
            let space = if at == 0 { "" } else { "\n" };
            outln!("{space}models whose config.json has the model_type {types}");
            let sites: Vec<Row> = path.sites.iter().map(|site| row(path, site)).collect();
            print(&sites, "  ");
        }
        return Ok(Exit::Pass);
    };
    let datasets = Datasets::open(args.datasets.as_deref())?;
    let file = datasets.checkpoint(model)?.join("config.json");
    let text = input::text(&file)?;
    let wrong = |why| Error::config(&file, why);
    let config = paths::find(&text).and_then(|path| path.config(&text)).map_err(wrong)?;
    let mut layers: BTreeMap<&str, Vec<Option<usize>>> = BTreeMap::new();
    for (site, layer) in config.places() {
        layers.entry(site.name).or_default().push(layer);
    }
    let rows = config.path().sites.iter().filter_map(|site| {
        let layers = layers.get(site.name)?;
        let (name, doc) = row(config.path(), site);
        let some = site.in_layers() && layers.len() < config.layers();
        let numbers = some.then(|| Ranges::of(layers.iter().flatten().copied().collect::<Vec<usize>>()));
        let numbers = numbers.map_or(String::new(), |numbers| format!("; in layers {numbers}"));
        Some((name, doc + &numbers))
    });
    print(&rows.collect::<Vec<_>>(), "");
    Ok(Exit::Pass)
}

/// Returns the name and the question of each shipped experiment.
fn experiments() -> Result<Vec<Row>> {
    const ANY: &str = "experiments/smoke.toml";
    let any = shipped::find(ANY).ok_or_else(|| Error::Setup(format!("{ANY} not found")))?;
    let folder = any.parent().unwrap_or(Path::new("."));
    let row = |file: PathBuf| {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, ExperimentFile::read(&file, &[])?.head()?.question))
    };
    let files = with_extension(folder, "list", &["toml"])?;
    files.into_iter().map(row).collect()
}

/// Returns the element types and the casts to them, spelled as in format strings.
fn elements() -> Vec<Row> {
    let elements = ELEMENTS.iter().flat_map(|element| {
        let own = (element.name.to_string(), element.doc.to_string());
        let casts = CASTS.iter().filter(|cast| cast.repr(element).is_some());
        let casts = casts.map(|cast| (format!("{}({})", element.name, cast.name), cast.doc.to_string()));
        std::iter::once(own).chain(casts)
    });
    let table = "your own table of 4, 8, 16 or 256 ascending values";
    elements.chain([("lut(…)".to_string(), table.to_string())]).collect()
}

/// Returns the rules for scales, spelled as in format strings.
fn rules() -> Vec<Row> {
    let mut all = Vec::from_iter(POWER_RULES.iter().map(|rule| ("e8m0(rule)", rule.name, rule.doc)));
    all.extend(F32_RULES.iter().map(|rule| ("f32(rule)", rule.name, rule.doc)));
    all.extend(HALF_RULES.iter().map(|rule| ("f16(rule)", rule.name, rule.doc)));
    let (affine, single) = (AFFINE_RULES.iter(), NVFP4_SINGLE_RULES.iter());
    all.extend(affine.map(|rule| ("uint4/…:f16(rule)", rule.name, rule.doc)));
    all.extend(single.map(|rule| ("e4m3(rule)", rule.name, rule.doc)));
    all.extend(NVFP4_RULES.iter().map(|rule| ("e4m3(rule)/t:f32", rule.name, rule.doc)));
    let row = |(form, name, doc): (&str, &str, &str)| (form.replace("rule", name), doc.to_string());
    all.into_iter().map(row).collect()
}

/// Check what a run needs (complete data sets, a writable folder), and report what the machine has.
#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    /// Folder of the data sets [default: $ULPLAB_DATASETS, or datasets/ here or in a folder above].
    #[arg(long, value_name = "DIR")]
    pub datasets: Option<PathBuf>,
}

pub fn doctor(args: &DoctorArgs) -> Result<Exit> {
    let (version, threads) = (env!("CARGO_PKG_VERSION"), rayon::current_num_threads());
    outln!("ulplab {version}, {threads} threads");
    let mut healthy = true;
    let mut check = |what: &str, outcome: Result<String>| match outcome {
        Ok(found) => outln!("ok    {what}: {found}"),
        Err(error) => {
            healthy = false;
            outln!("FAIL  {what}: {error}");
        }
    };
    match Datasets::open(args.datasets.as_deref()) {
        Ok(datasets) => {
            for name in datasets.datasets.keys() {
                let files = datasets.verify(name);
                let verified = files.map(|files| format!("{} as in the manifest", counted(files.len(), "file")));
                check(&format!("data set {name}"), verified);
            }
        }
        Err(error) => check("data sets", Err(error)),
    }
    let probe = PathBuf::from("runs").join(".doctor");
    let writable = std::fs::create_dir_all(&probe).and_then(|()| std::fs::remove_dir(&probe));
    let writable = writable.map(|()| "can be written".into());
    check("runs folder", writable.map_err(Error::io("runs", "write")));
    // `doctor` passes without NVRTC or a GPU, because only kernels need them.
    let optional = |what: &str, outcome: Result<String>| match outcome {
        Ok(found) => outln!("ok    {what}: {found}"),
        Err(Error::Setup(why)) => outln!("none  {what}: {why}"),
        Err(error) => outln!("none  {what}: {error}"),
    };
    let compiler = |toolkit: Toolkit| {
        let ((major, minor), folder) = (toolkit.version, toolkit.folder.display());
        format!("{major}.{minor} in {folder}")
    };
    optional("NVRTC", Toolkit::open().map(compiler));
    optional("GPU", Device::open().map(|device| device.describe()));
    Ok(if healthy { Exit::Pass } else { Exit::Setup })
}

/// Returns the name of a site as experiments write it, and a line about the site: shape, description and kind.
fn row(path: &paths::Path, site: &SiteInfo) -> Row {
    let layers = match site.in_layers() && path.reads_tokens() {
        true => "layers.*.",
        false => "",
    };
    let kind = match site.kind {
        SiteKind::Tensor => "",
        SiteKind::Choice(_) => " (a decision)",
        SiteKind::Watch => " (watched only)",
    };
    let doc = format!("{} {}{kind}", site.shape(), site.doc);
    (format!("{layers}{}", site.name), doc)
}
