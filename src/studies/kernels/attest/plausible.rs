//! Finds entries of attestations (stored results of runs on a GPU) that no run on a GPU can have written.

use jiff::Timestamp;
use ulplab_core::metrics::METRICS;

use super::{Attestation, VariantResult, VerifiedFile};

/// Oldest major version of CUDA that compiles the kernels.
const OLDEST_CUDA: u32 = 12;

impl Attestation {
    /// Returns a message about the first value that no run on a GPU can have written; `None` if all values are plausible.
    pub(super) fn implausible(&self) -> Option<String> {
        if self.device.trim().is_empty() {
            return Some("'device' is empty, expected the name of the card".into());
        }
        let of_op = |(op, verified): (&String, &VerifiedFile)| Some(format!("'{op}': {}", verified.implausible()?));
        self.ops.iter().find_map(of_op)
    }
}

impl VerifiedFile {
    /// Same as [`Attestation::implausible`], for the entry of one kernel file.
    fn implausible(&self) -> Option<String> {
        let is_time = |text: &str| text.parse::<Timestamp>().is_ok();
        let is_version = |text: &str| {
            let (major, minor) = text.split_once('.').unwrap_or_default();
            major.parse::<u32>().is_ok_and(|major| major >= OLDEST_CUDA) && minor.parse::<u32>().is_ok()
        };
        let is_arch = |text: &str| {
            let number = text.strip_prefix("sm_").map(|rest| rest.trim_end_matches(['a', 'f']));
            number.is_some_and(|number| number.parse::<u32>().is_ok_and(|number| number >= 70))
        };
        let is_digest = |text: &str| text.len() == 64 && text.chars().all(|c| c.is_ascii_hexdigit());
        let version = format!("a version of CUDA from {OLDEST_CUDA}.0 on");
        let expected: [(bool, &str, &str, &str); 6] = [
            (is_time(&self.at), "at", &self.at, "a time in RFC 3339"),
            (is_version(&self.driver), "driver", &self.driver, &version),
            (is_version(&self.nvrtc), "nvrtc", &self.nvrtc, &version),
            (is_arch(&self.arch), "arch", &self.arch, "an architecture, as sm_90a"),
            (is_digest(&self.kernels), "kernels", &self.kernels, "a blake3"),
            (is_digest(&self.judgement), "judgement", &self.judgement, "a blake3"),
        ];
        let wrong = expected.iter().find(|(right, ..)| !right);
        let wrong = wrong.map(|(_, key, found, expected)| format!("{key} is '{found}', expected {expected}"));
        wrong.or_else(|| {
            let wrong = |(name, result): (&String, &VariantResult)| {
                Some(format!("variant '{name}': {}", result.implausible()?))
            };
            self.variants.iter().find_map(wrong)
        })
    }
}

impl VariantResult {
    /// Returns a message about the first number that a correct kernel cannot have; `None` if all numbers are plausible.
    fn implausible(&self) -> Option<String> {
        if self.cases == 0 {
            return Some("cases is 0, and nothing is verified by none".into());
        }
        if let Some(ratio) = self.bound_ratio.filter(|ratio| !(0.0..=1.0).contains(ratio)) {
            return Some(format!("bound_ratio is {ratio}, expected 0 to 1"));
        }
        for (case, times) in &self.times {
            let known = |name: &String| METRICS.iter().any(|metric| metric.name == *name);
            let right = |name, value: &f64| known(name) && value.is_finite() && *value >= 0.0;
            if let Some((name, value)) = times.iter().find(|(name, value)| !right(name, value)) {
                let what = format!("{name} is {value}, expected a metric with a number");
                return Some(format!("times of case '{case}': {what}"));
            }
        }
        None
    }
}
