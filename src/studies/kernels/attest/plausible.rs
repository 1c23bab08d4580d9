//! Checks of attestations: entries that no run on a card can have written.

use jiff::Timestamp;
use ulplab_core::metrics::METRICS;

use super::{Attestation, VariantResult, VerifiedFile};

/// The first CUDA that kernels are compiled by.
const OLDEST_CUDA: u32 = 12;

impl Attestation {
    /// Returns the first entry that no run on a card can have written.
    pub(super) fn implausible(&self) -> Option<String> {
        if self.device.trim().is_empty() {
            return Some("'device' is empty, expected the name of the card".into());
        }
        let of_op = |(op, verified): (&String, &VerifiedFile)| Some(format!("'{op}': {}", verified.implausible()?));
        self.ops.iter().find_map(of_op)
    }
}

impl VerifiedFile {
    /// Returns the first entry that no run on a card can have written.
    fn implausible(&self) -> Option<String> {
        let is_version = |text: &str| {
            let (major, minor) = text.split_once('.').unwrap_or_default();
            major.parse::<u32>().is_ok_and(|major| major >= OLDEST_CUDA) && minor.parse::<u32>().is_ok()
        };
        let is_arch = |text: &str| {
            let number = text.strip_prefix("sm_").map(|rest| rest.trim_end_matches(['a', 'f']));
            number.is_some_and(|number| number.parse::<u32>().is_ok_and(|number| number >= 70))
        };
        let is_digest = |text: &str| text.len() == 64 && text.chars().all(|c| c.is_ascii_hexdigit());
        let named = |key: &str, found: &str, expected: &str| format!("{key} is '{found}', expected {expected}");
        let version = format!("a version of CUDA from {OLDEST_CUDA}.0 on");
        let wrong = |right: bool, key: &str, found: &str, expected: &str| (!right).then(|| named(key, found, expected));
        wrong(
            self.at.parse::<Timestamp>().is_ok(),
            "at",
            &self.at,
            "a time in RFC 3339",
        )
        .or_else(|| wrong(is_version(&self.driver), "driver", &self.driver, &version))
        .or_else(|| wrong(is_version(&self.nvrtc), "nvrtc", &self.nvrtc, &version))
        .or_else(|| wrong(is_arch(&self.arch), "arch", &self.arch, "an architecture, as sm_90a"))
        .or_else(|| wrong(is_digest(&self.kernels), "kernels", &self.kernels, "a blake3"))
        .or_else(|| wrong(is_digest(&self.judgement), "judgement", &self.judgement, "a blake3"))
        .or_else(|| {
            let wrong = |(name, result): (&String, &VariantResult)| {
                Some(format!("variant '{name}': {}", result.implausible()?))
            };
            self.variants.iter().find_map(wrong)
        })
    }
}

impl VariantResult {
    /// Returns the first number that a right kernel cannot have.
    fn implausible(&self) -> Option<String> {
        if self.cases == 0 {
            return Some("cases is 0, and nothing is verified by none".into());
        }
        if let Some(ratio) = self.bound_ratio.filter(|ratio| !(0.0..=1.0).contains(ratio)) {
            return Some(format!("bound_ratio is {ratio}, expected 0 to 1"));
        }
        let times = self
            .times
            .iter()
            .flat_map(|(case, times)| times.iter().map(move |time| (case, time)));
        let mut wrong = times.filter(|(_, (name, value))| {
            let known = METRICS.iter().any(|metric| metric.name == *name);
            !(known && value.is_finite() && **value >= 0.0)
        });
        let (case, (name, value)) = wrong.next()?;
        Some(format!(
            "times of case '{case}': {name} is {value}, expected a metric with a number"
        ))
    }
}
