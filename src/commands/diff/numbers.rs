//! Pairs of records of two runs, and their changes.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use serde::Serialize;

use ulplab_core::list::grouped;
use ulplab_core::metrics::{self, Better, Metric, OF_COPY, OF_COPY_ROTATED, OF_LIMIT, OF_MATMUL, TIMES_PEER};
use ulplab_core::record::{Phase, Record, Worst};

/// A record of BASE, and the record of NEW with the same key.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    pub base: &'a Record,
    pub new: &'a Record,
}

/// The records of two runs, paired by key.
pub struct Pairs<'a> {
    pub both: Vec<Pair<'a>>,
    pub only_base: Vec<&'a Record>,
    pub only_new: Vec<&'a Record>,
}

/// The change of one record from BASE to NEW.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    pub recipe: String,
    pub phase: Phase,
    pub site: String,
    pub metric: String,
    pub layer: Option<u32>,
    pub window: String,
    #[serde(with = "ulplab_core::record::nullable")]
    pub base: f64,
    #[serde(with = "ulplab_core::record::nullable")]
    pub new: f64,
    /// Worsening in the unit of the metric; below 0 if NEW is better. Infinite if the value became NaN.
    #[serde(with = "ulplab_core::record::nullable")]
    pub worsening: f64,
    /// Worsening in per cent of the magnitude of the value in BASE.
    #[serde(with = "ulplab_core::record::nullable")]
    pub per_cent: f64,
}

/// Summary of many pairs of records: counts, and the worst changes.
#[derive(Debug, Serialize)]
pub struct Numbers {
    pub both: usize,
    pub bit_equal: usize,
    pub only_base: usize,
    pub only_new: usize,
    /// Number of values that are NaN only in NEW.
    pub newly_nan: usize,
    /// Number of values that are NaN only in BASE.
    pub no_longer_nan: usize,
    /// Number of combinations (recipe, phase, site and metric) in which a record worsens.
    pub worse: usize,
    /// Number of combinations (recipe, phase, site and metric) in which no record worsens and at least one improves.
    pub better: usize,
    /// The records that worsen most, up to the number to print: of each combination (recipe, phase, site and metric), the worst
    /// record. Records that became NaN come first, then metrics of the model's output, then the largest worsening. Of several
    /// metrics that are functions of each other, only one is kept per site.
    pub worst: Vec<Change>,
}

/// True if a metric is a time or computed from times, so that it differs from run to run even if nothing else does.
pub fn timed(metric: &str) -> bool {
    let shares = [&OF_COPY, &OF_COPY_ROTATED, &OF_MATMUL, &OF_LIMIT, &TIMES_PEER];
    Metric::find(metric).is_ok_and(|metric| metric.unit == "µs" || shares.iter().any(|share| share.name == metric.name))
}

impl Pair<'_> {
    /// True if all measurements are bit-equal. All NaN count as equal.
    pub fn equal(&self) -> bool {
        let measured = |record: &Record| {
            let plain = |worst: &Worst| (worst.index.clone(), bits(worst.want), bits(worst.got));
            let counts = (record.n, record.nonfinite_want, record.nonfinite_got);
            (bits(record.value), counts, record.worst.as_ref().map(plain))
        };
        measured(self.base) == measured(self.new)
    }

    pub fn newly_nan(&self) -> bool {
        self.new.value.is_nan() && !self.base.value.is_nan()
    }

    fn no_longer_nan(&self) -> bool {
        self.base.value.is_nan() && !self.new.value.is_nan()
    }

    /// Returns the worsening in the unit of the metric; below 0 if NEW is better. For an unknown metric, any change is a
    /// worsening.
    pub fn worsening(&self) -> f64 {
        let (base, new) = (self.base.value, self.new.value);
        match Metric::find(&self.base.metric).map(|metric| metric.better) {
            _ if base == new || base.is_nan() && new.is_nan() => 0.0,
            _ if new.is_nan() => f64::INFINITY,
            _ if base.is_nan() => f64::NEG_INFINITY,
            Ok(Better::Higher) => base - new,
            Ok(Better::Lower) => new - base,
            Err(_) => (new - base).abs(),
        }
    }

    /// Returns the worsening in per cent of the value in BASE; infinite if that value is 0 or the worsening is infinite.
    pub fn per_cent(&self) -> f64 {
        match self.worsening() {
            0.0 => 0.0,
            infinite if infinite.is_infinite() => infinite,
            worsening => worsening / self.base.value.abs() * 100.0,
        }
    }

    /// Orders two pairs by their worsening. A value that became NaN is worst; then the worsening in per cent decides, and if that
    /// is equal, the absolute worsening.
    pub fn by_worsening(&self, other: &Self) -> Ordering {
        let nan = self.newly_nan().cmp(&other.newly_nan());
        let per_cent = || self.per_cent().total_cmp(&other.per_cent());
        nan.then_with(per_cent)
            .then_with(|| self.worsening().total_cmp(&other.worsening()))
    }

    pub fn change(&self) -> Change {
        let record = self.base;
        Change {
            recipe: record.recipe.clone(),
            phase: record.phase,
            site: record.site.clone(),
            metric: record.metric.clone(),
            layer: record.layer,
            window: record.window.clone(),
            base: record.value,
            new: self.new.value,
            worsening: self.worsening(),
            per_cent: self.per_cent(),
        }
    }
}

/// Returns the bits of a number. All NaN have the same bits, since files do not keep NaN payloads.
fn bits(value: f64) -> u64 {
    if value.is_nan() { f64::NAN } else { value }.to_bits()
}

/// Returns the pair with the largest worsening; of several such pairs, the first.
pub fn worst<'p, 'a>(pairs: impl IntoIterator<Item = &'p Pair<'a>>) -> Option<&'p Pair<'a>>
where
    'a: 'p,
{
    let worse = |a: &'p Pair<'a>, b: &'p Pair<'a>| if b.by_worsening(a).is_gt() { b } else { a };
    pairs.into_iter().reduce(worse)
}

impl<'a> Pairs<'a> {
    /// Pairs records by recipe, phase, window, layer, site and metric. If several records of a run have the same key, the first
    /// is paired with the first of the other run, and so on.
    pub fn new(base: &'a [Record], new: &'a [Record]) -> Self {
        let mut partners: HashMap<_, &Record> = keyed(new).collect();
        let (mut both, mut only_base) = (Vec::new(), Vec::new());
        for (key, base) in keyed(base) {
            match partners.remove(&key) {
                Some(new) => both.push(Pair { base, new }),
                None => only_base.push(base),
            }
        }
        // The records that only NEW has, in the order of the run.
        let only_new = keyed(new).filter(|(key, _)| partners.contains_key(key));
        Self {
            both,
            only_base,
            only_new: only_new.map(|(_, record)| record).collect(),
        }
    }

    /// Summarizes the pairs of records, with the `top` worst changes: only times if `times` is true, else all records except
    /// times.
    pub fn numbers(&self, times: bool, top: usize) -> Numbers {
        let of_kind = |record: &Record| timed(&record.metric) == times;
        let both: Vec<&Pair> = self.both.iter().filter(|pair| of_kind(pair.base)).collect();
        let count = |which: &dyn Fn(&Pair) -> bool| both.iter().filter(|pair| which(pair)).count();
        let alone = |records: &[&Record]| records.iter().filter(|record| of_kind(record)).count();
        let key = |Pair { base, .. }: &Pair<'a>| (&base.recipe, base.phase, &base.site, &base.metric);
        let groups = grouped(both.iter().map(|pair| (key(pair), *pair)));
        let worse = groups.iter().filter_map(|(_, group)| worst(group.iter().copied()));
        let mut worse: Vec<&Pair> = worse.collect();
        worse.retain(|pair| pair.worsening() > 0.0);
        // Values that became NaN come first, for every metric.
        worse.sort_by(|a, b| {
            let nan = b.newly_nan().cmp(&a.newly_nan());
            nan.then_with(|| rank(a).cmp(&rank(b))).then_with(|| b.by_worsening(a))
        });
        let places = worse.len();
        without_echoes(&mut worse);
        let better = |(_, group): &&(_, Vec<&Pair>)| {
            let any = |of: fn(f64) -> bool| group.iter().any(|pair| of(pair.worsening()));
            any(|worsening| worsening < 0.0) && !any(|worsening| worsening > 0.0)
        };
        Numbers {
            both: both.len(),
            bit_equal: count(&|pair| pair.equal()),
            only_base: alone(&self.only_base),
            only_new: alone(&self.only_new),
            newly_nan: count(&|pair| pair.newly_nan()),
            no_longer_nan: count(&|pair| pair.no_longer_nan()),
            worse: places,
            better: groups.iter().filter(better).count(),
            worst: worse.iter().take(top).map(|pair| pair.change()).collect(),
        }
    }
}

/// Metrics that are printed first: metrics of a model's output, and then the common error metrics of a tensor.
const FIRST: [&Metric; 12] = [
    &metrics::KL,
    &metrics::DELTA_NATS,
    &metrics::NATS,
    &metrics::TOP1,
    &metrics::NET_LOST,
    &metrics::LOST,
    &metrics::FLIPS_OUTSIDE,
    &metrics::RECALL,
    &metrics::RECALL_MIN,
    &metrics::RELATIVE_L2,
    &metrics::COSINE,
    &metrics::SQNR,
];
/// Groups of redundant metrics. The first group has functions of the ratio of error energy to signal energy (`diff` only
/// approximately), the second group metrics of the loss. One metric of each group is enough per site.
const SAME_NEWS: [&[&Metric]; 2] = [
    &[&metrics::RELATIVE_L2, &metrics::SQNR, &metrics::NSR, &metrics::DIFF],
    &[
        &metrics::DELTA_NATS,
        &metrics::NATS,
        &metrics::DELTA_NATS_PER_BYTE,
        &metrics::NATS_PER_BYTE,
        &metrics::PERPLEXITY,
    ],
];

/// Returns the index of the metric called `name`.
fn position(metrics: &[&Metric], name: &str) -> Option<usize> {
    metrics.iter().position(|metric| metric.name == name)
}

fn rank(pair: &Pair) -> usize {
    position(&FIRST, &pair.base.metric).unwrap_or(usize::MAX)
}

/// Drops a record if an earlier record has the same information: both have the same recipe, phase and site, metrics of the same
/// group of [`SAME_NEWS`], and both or neither became NaN.
fn without_echoes<'a>(worse: &mut Vec<&Pair<'a>>) {
    let mut seen = HashSet::new();
    worse.retain(|pair| {
        let record: &'a Record = pair.base;
        let same = SAME_NEWS
            .iter()
            .position(|same| position(same, &record.metric).is_some());
        let place = (&record.recipe, record.phase, &record.site, pair.newly_nan(), same);
        same.is_none() || seen.insert(place)
    });
}

type Key<'a> = (&'a str, Phase, &'a str, Option<u32>, &'a str, &'a str);

/// Returns each record with its key and the number of earlier records with the same key. Key and number together are unique.
fn keyed(records: &[Record]) -> impl Iterator<Item = ((Key<'_>, usize), &Record)> {
    let mut seen: HashMap<Key, usize> = HashMap::new();
    records.iter().map(move |record| {
        let (recipe, window) = (&*record.recipe, &*record.window);
        let (site, metric) = (&*record.site, &*record.metric);
        let key = (recipe, record.phase, window, record.layer, site, metric);
        let count = seen.entry(key).or_insert(0);
        *count += 1;
        ((key, *count), record)
    })
}
