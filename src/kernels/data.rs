//! What problems are filled with.

use std::sync::Mutex;

use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;

use crate::sweep::source::stream;

/// What passes at one site of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    pub layer: Option<u32>,
    pub cols: usize,
    pub values: Vec<f32>,
}

/// Looks up what passes at the sites a pattern means.
pub type Sites<'a> = dyn Fn(&str) -> Result<Vec<Rows>, String> + Send + Sync + 'a;

/// Numbers that depend on the seed and what they are for, and activations of the model.
pub struct Data<'a> {
    seed: u64,
    sites: &'a Sites<'a>,
    /// The last answer: the variants of an operation ask for the same.
    seen: Mutex<Option<(String, Vec<Rows>)>>,
}

/// Elements drawn from a stream of their own, so that any number of threads draws the same.
const CHUNK: usize = 1 << 16;

impl<'a> Data<'a> {
    pub fn new(seed: u64, sites: &'a Sites<'a>) -> Self {
        let seen = Mutex::new(None);
        Self { seed, sites, seen }
    }

    /// N(0, 1).
    pub fn normal(&self, purpose: &str, len: usize) -> Vec<f32> {
        let mut values = vec![0.0; len];
        values.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, values)| {
            let mut rng = stream(self.seed, &format!("{purpose}/{chunk}"));
            values.iter_mut().for_each(|x| *x = StandardNormal.sample(&mut rng));
        });
        values
    }

    /// Any bytes.
    pub fn bytes(&self, purpose: &str, len: usize) -> Vec<u8> {
        use rand_chacha::rand_core::Rng;
        let mut bytes = vec![0; len];
        bytes.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, bytes)| {
            stream(self.seed, &format!("{purpose}/{chunk}")).fill_bytes(bytes);
        });
        bytes
    }

    /// What passes at a site of the model in every layer that has it, first to last.
    pub fn site(&self, pattern: &str) -> Result<Vec<Rows>, String> {
        let mut seen = self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((last, rows)) = &*seen
            && last == pattern
        {
            return Ok(rows.clone());
        }
        let rows = (self.sites)(pattern)?;
        *seen = Some((pattern.into(), rows.clone()));
        Ok(rows)
    }
}
