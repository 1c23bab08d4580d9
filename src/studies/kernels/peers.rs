//! Times of peers (third-party implementations) and of limits (kernels that only move the bytes) on the cases of the kernels. The
//! times are read from a file that `experiments/peers/kernels.py` writes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::time;
use crate::ops::OPS;
use ulplab_core::error::{Error, Result, did_you_mean, refuse};
use ulplab_core::input;
use ulplab_core::metrics::{OF_LIMIT, TIMES_PEER, US_LIMIT, US_PEER};
use ulplab_operations::ops::judge::Measured;

/// The fastest peer (third-party implementation) on each case, on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct Peers {
    /// The file with the times.
    pub file: PathBuf,
    /// blake3 of the file.
    pub digest: String,
    /// Name of the GPU.
    pub device: String,
    /// The fastest peer, by `op/case`.
    pub fastest: BTreeMap<String, Peer>,
    /// The fastest kernel that moves a case's bytes without computing, by `op/case`.
    pub limits: BTreeMap<String, Peer>,
    /// Names of peers (third-party implementations) that were not timed.
    pub left_out: Vec<String>,
    /// Reasons why Python could not import an operation's peers, by operation.
    pub absent: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Peer {
    pub name: String,
    /// Time in microseconds with a flushed L2 cache.
    pub us_cold: f64,
}

/// Content of the file before its entries are checked.
#[derive(Deserialize)]
struct PeersFile {
    device: String,
    #[serde(default = "first")]
    method: u32,
    peers: BTreeMap<String, serde_json::Value>,
    #[serde(default)]
    limits: BTreeMap<String, serde_json::Value>,
    #[serde(default)]
    left_out: Vec<String>,
    #[serde(default)]
    absent: BTreeMap<String, String>,
}

/// Version of the method that measures times with a flushed L2 cache: `METHOD` of `experiments/peers/kernels_stopwatch.py`.
/// Version 1 did not evict lines that a kernel had asked the L2 cache to keep.
const METHOD: u32 = 2;

fn first() -> u32 {
    1
}

impl Peers {
    pub fn read(file: &Path) -> Result<Self> {
        let text = input::text(file)?;
        let raw: PeersFile =
            serde_json::from_str(&text).map_err(|error| Error::data(file, format!("not a file of peers: {error}")))?;
        let message = format_args!(
            "method: found {}, expected {METHOD}: its cold times are not to be compared with those of this version; \
             `ulplab kernels bench` times the peers again",
            raw.method
        );
        refuse(raw.method != METHOD, message).map_err(|why| Error::data(file, why))?;
        let mut cases = Vec::new();
        for op in OPS.iter() {
            let own = op.cases().into_iter();
            cases.extend(own.map(|case| format!("{}/{}", op.name(), case.name)));
        }
        let peer = |(key, value): (String, serde_json::Value)| {
            let wrong = |message: String| Error::data(file, format!("peers: '{key}'{message}"));
            if !cases.contains(&key) {
                let hint = did_you_mean(&key, cases.iter().map(String::as_str));
                return Err(wrong(format!(" is no case of an operation{hint}")));
            }
            let peer: Peer = serde_json::from_value(value).map_err(|error| wrong(format!(": {error}")))?;
            let why = format_args!(": us_cold is {}, expected microseconds above 0", peer.us_cold);
            refuse(!(peer.us_cold.is_finite() && peer.us_cold > 0.0), why).map_err(wrong)?;
            Ok((key, peer))
        };
        Ok(Self {
            file: file.to_path_buf(),
            digest: blake3::hash(text.as_bytes()).to_hex().to_string(),
            device: raw.device,
            fastest: raw.peers.into_iter().map(peer).collect::<Result<_>>()?,
            limits: raw.limits.into_iter().map(peer).collect::<Result<_>>()?,
            left_out: raw.left_out,
            absent: raw.absent,
        })
    }

    /// Checks that the peers were timed on the GPU `name`.
    pub fn check_device(&self, name: &str) -> Result<()> {
        let device = &self.device;
        let message = format_args!("device: the peers were timed on '{device}', and this is '{name}'");
        refuse(device != name, message).map_err(|why| Error::data(&self.file, why))
    }

    /// Returns the reason why a run with these peers (other implementations) is incomplete; `None` if all peers were timed.
    pub fn incomplete(&self) -> Option<String> {
        let file = self.file.display();
        let left_out = self.left_out.first().map(|first| {
            let count = self.left_out.len();
            format!("{file}: left_out: {count} peers were not tried, such as '{first}'")
        });
        left_out.or_else(|| {
            let (op, why) = self.absent.first_key_value()?;
            let count = self.absent.len();
            let lack = format!("{count} operations lack their peers");
            Some(format!("{file}: absent: {lack}, such as '{op}': {why}"))
        })
    }

    /// Returns the times of the limit (a kernel that only moves the case's bytes) and of the fastest peer on a case, and the
    /// ratio of each to `us_cold`, the time of a variant. A limit or peer that was not timed is skipped.
    pub fn beside(&self, op: &str, case: &str, us_cold: f64) -> impl Iterator<Item = Measured> {
        let key = format!("{op}/{case}");
        let both = [
            (&self.limits, &US_LIMIT, &OF_LIMIT),
            (&self.fastest, &US_PEER, &TIMES_PEER),
        ];
        both.into_iter()
            .filter_map(move |(times, us, ratio)| Some((times.get(&key)?.us_cold, us, ratio)))
            .flat_map(move |(other, us, ratio)| [time(us, other), time(ratio, other / us_cold)])
    }

    /// Returns the names of the fastest peers, by `op/case`.
    pub fn names(&self) -> BTreeMap<String, String> {
        let peers = self.fastest.iter();
        peers.map(|(key, peer)| (key.clone(), peer.name.clone())).collect()
    }
}
