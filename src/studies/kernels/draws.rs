//! Draws of a case: inputs of the same sizes from different seeds. Many draws show how often a correct kernel is rejected by
//! chance.

use ulplab_core::error::Result;
use ulplab_core::metrics::{Bound, MAX_ABS, Metric, VIOLATIONS};
use ulplab_core::record::{Failure, Record, Worst};
use ulplab_operations::ops::{Case, Problem};

/// Site of the record that counts the draws (random inputs) with a violation.
pub const DRAWS: &str = "draws";

/// A case with random inputs from one seed.
#[derive(Clone, Copy)]
pub struct Draw<'a> {
    pub case: &'a Case,
    pub problem: &'a Problem,
    pub seed: u64,
    /// True if a capsule (a file that reproduces a failure) is written when the outputs fail. Only the first failing draw gets
    /// one.
    pub keep: bool,
}

/// Records of one cell (a kernel on a case), merged over all its random inputs: the worst value of each output and metric, and
/// the total number of elements.
#[derive(Default)]
pub struct Drawn {
    /// True if several random inputs are planned; messages about failures then name the seed.
    several: bool,
    records: Vec<Record>,
    draws: u64,
    /// Number of random inputs whose outputs have a violation.
    wrong: u64,
    /// Seed of the first inputs whose outputs have a violation.
    first: Option<u64>,
}

impl Drawn {
    pub fn new(planned: u64) -> Self {
        Self {
            several: planned > 1,
            ..Self::default()
        }
    }

    /// Merges the records that were measured on the inputs with this seed.
    ///
    /// # Errors
    /// Returns an error if a metric is unknown.
    pub fn add(&mut self, seed: u64, mut records: Vec<Record>) -> Result<()> {
        self.draws += 1;
        if self.several {
            name_draw(seed, &mut records);
        }
        let is_wrong = |record: &Record| record.metric == VIOLATIONS.name && record.value != 0.0;
        if records.iter().any(is_wrong) {
            self.wrong += 1;
            self.first.get_or_insert(seed);
        }
        // Match records of different seeds by site, metric and order: an output that is checked in two ways has two records of
        // the same metric.
        let mut compared = vec![false; self.records.len()];
        for mut record in records {
            let kept = self.records.iter_mut().zip(&mut compared);
            let same = |(kept, compared): &(&mut Record, &mut bool)| {
                !**compared && kept.site == record.site && kept.metric == record.metric
            };
            let Some((kept, compared)) = kept.into_iter().find(same) else {
                self.records.push(record);
                compared.push(true);
                continue;
            };
            *compared = true;
            record.n += kept.n;
            let bound = Bound {
                better: Metric::find(&record.metric)?.better,
                value: kept.value,
            };
            match bound.worse(record.value, kept.value) {
                true => *kept = record,
                false => kept.n = record.n,
            }
        }
        Ok(())
    }

    /// True if no inputs so far led to a violation.
    pub fn is_right(&self) -> bool {
        self.wrong == 0
    }

    /// True if the runs so far gave no record: the variant then does not support the case.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the merged records of the cell. If there were several random inputs, adds a record with the number of inputs that
    /// led to a violation.
    pub fn records(self) -> Vec<Record> {
        let mut records = self.records;
        let Some(like) = records.first().filter(|_| self.draws > 1) else {
            return records;
        };
        let failure = self.first.map(|seed| {
            let (wrong, draws) = (self.wrong, self.draws);
            Box::new(Failure {
                message: format!("{wrong} of {draws} draws are wrong, the first with seed {seed}"),
                ..Failure::default()
            })
        });
        records.push(Record {
            site: DRAWS.into(),
            metric: VIOLATIONS.name.into(),
            value: self.wrong as f64,
            n: self.draws,
            failure,
            ..Record::blank(&like.cell, &like.recipe, like.phase, &like.window)
        });
        records
    }
}

/// Adds the seed of the inputs to failure messages, and the worst element of an output to all records of the output. A merged
/// cell may have the records of different metrics from different seeds, so each record must name the worst element itself.
fn name_draw(seed: u64, records: &mut [Record]) {
    let errors = records.iter().filter(|record| record.metric == MAX_ABS.name);
    let elements = errors.map(|record| (record.site.clone(), record.worst.clone()));
    let elements: Vec<(String, Option<Worst>)> = elements.collect();
    for record in records {
        if let Some(failure) = &mut record.failure {
            failure.message = format!("seed {seed}: {}", failure.message);
        }
        let of_site = || elements.iter().find(|(site, _)| *site == record.site)?.1.clone();
        record.worst = record.worst.take().or_else(of_site);
    }
}
