//! State between tokens. Every core has four banks, which are vectors in memory, and a map, which stores the order of its banks.

use super::config::Config;
use super::lanes::{BANKS, IDENTITY};
use crate::{Real, Tensor};

/// State of a batch of sequences.
#[derive(Clone, Debug, PartialEq)]
pub struct State<T> {
    /// The banks, `[B, core_count, 4, d_model]`.
    pub ram: Tensor<T>,
    /// Map of each core (a byte with the positions of its banks), `[B · core_count]`.
    pub map: Vec<u8>,
    /// Number of processed tokens; hooks get this number as the row index of the next token.
    pub tokens: usize,
}

impl<T: Real> State<T> {
    /// Creates the state before the first token, with these banks. Avoid banks of zeros: if x of a core becomes 0 by an exchange,
    /// it stays 0 in a model without residual connections.
    ///
    /// # Errors
    /// Returns an error if the shape of the banks does not match the configuration.
    pub fn new(config: &Config, ram: Tensor<T>) -> Result<Self, String> {
        let batch = ram.shape.first().copied().unwrap_or(0);
        let map = vec![IDENTITY; batch * config.core_count];
        let state = Self { ram, map, tokens: 0 };
        state.check(config, batch)?;
        Ok(state)
    }

    pub(super) fn check(&self, config: &Config, batch: usize) -> Result<(), String> {
        let (cores, expected) = (
            batch * config.core_count,
            [batch, config.core_count, BANKS, config.d_model],
        );
        if self.ram.shape != expected {
            return Err(format!("ram has shape {:?}, expected {expected:?}", self.ram.shape));
        }
        match self.map.len() == cores {
            true => Ok(()),
            false => Err(format!("{} maps for {cores} cores", self.map.len())),
        }
    }

    /// Returns a bank of a core; `row` is the index of the core among all cores of the batch.
    pub(super) fn bank_mut(&mut self, row: usize, bank: u8) -> &mut [T] {
        self.ram.row_mut(row * BANKS + usize::from(bank))
    }
}
