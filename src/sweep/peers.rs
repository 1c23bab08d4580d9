//! Times of other people's code on the same cases, as `experiments/peers/kernels.py` writes them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::kernels::TIME;
use crate::error::{Error, Result, did_you_mean};
use crate::kernels::OPS;
use crate::kernels::judge::Measured;

/// Of one device, by `op/case` the peer that was fastest there.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Peers {
    /// Where it was read from.
    #[serde(skip)]
    pub file: PathBuf,
    /// blake3 of the file.
    #[serde(skip)]
    pub digest: String,
    /// The card.
    pub device: String,
    pub peers: BTreeMap<String, Peer>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Peer {
    pub name: String,
    /// Microseconds, second-level cache flushed before.
    pub us_cold: f64,
}

impl Peers {
    pub fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file).map_err(Error::io(file, "read"))?;
        let mut read: Self = serde_json::from_str(&text).map_err(|error| Error::data(file, error.to_string()))?;
        let cases = || OPS.iter().map(|op| op.cases().into_iter().map(|case| format!("{}/{}", op.name(), case.name)));
        let cases: Vec<String> = cases().flatten().collect();
        for (key, peer) in &read.peers {
            if !cases.contains(key) {
                let hint = did_you_mean(key, cases.iter().map(String::as_str));
                return Err(Error::data(file, format!("peers: '{key}' is no case of an operation{hint}")));
            }
            if !(peer.us_cold.is_finite() && peer.us_cold > 0.0) {
                let found = peer.us_cold;
                return Err(Error::data(file, format!("peers: '{key}': us_cold is {found}, expected microseconds above 0")));
            }
        }
        read.file = file.to_path_buf();
        read.digest = blake3::hash(text.as_bytes()).to_hex().to_string();
        Ok(read)
    }

    /// Whether they were timed on the card of that name.
    pub fn check_device(&self, name: &str) -> Result<()> {
        if self.device == name {
            return Ok(());
        }
        Err(Error::data(&self.file, format!("device: the peers were timed on '{}', and this is '{name}'", self.device)))
    }

    /// What stands beside a variant that takes `us_cold` on a case; nothing where nobody else was timed.
    pub fn beside(&self, op: &str, case: &str, us_cold: f64) -> Vec<Measured> {
        let measured = |metric, value| Measured {
            output: TIME,
            metric,
            value,
            n: 1,
            worst: None,
        };
        let peer = self.peers.get(&format!("{op}/{case}"));
        let both = |peer: &Peer| {
            [
                measured("us_peer", peer.us_cold),
                measured("times_peer", peer.us_cold / us_cold),
            ]
        };
        peer.into_iter().flat_map(both).collect()
    }

    /// Their names, by `op/case`.
    pub fn names(&self) -> BTreeMap<String, String> {
        let names = self.peers.iter();
        names.map(|(key, peer)| (key.clone(), peer.name.clone())).collect()
    }
}
