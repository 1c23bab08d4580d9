//! Units of a kernel file, the parts that are compiled separately: each entry point by itself, or the whole file.

use std::collections::BTreeSet;

use super::header::Source;

impl Source {
    /// True if the macro `KERNEL` declares all entry points, so that each can be compiled without the others.
    pub fn has_units(&self) -> bool {
        let mut lines = self.texts().flat_map(|(_, text)| text.lines());
        let mut declared = false;
        let whole = lines.any(|line| {
            declared |= line.trim_start().starts_with("KERNEL(");
            line.contains("__global__") && !line.starts_with("#define KERNEL")
        });
        declared && !whole
    }

    /// Returns the names of the entry points that `KERNEL` declares. Replaces the macro parameters in a name, such as `T` in
    /// `norm_##T`, by the values of the case's keys, e.g. `bf16`, in order.
    pub fn declared(&self, keys: &[(&str, String)]) -> Vec<String> {
        let named = |rest: &str| {
            let mut parts = rest.split([',', ')']).next().unwrap_or_default().split("##");
            let mut name = parts.next().unwrap_or_default().to_string();
            let mut values = keys.iter().map(|(_, value)| value.as_str());
            for part in parts {
                let parameter = part.chars().all(|c| c.is_uppercase());
                name += if parameter { values.next().unwrap_or(part) } else { part };
            }
            name
        };
        let declared = self.texts().flat_map(|(_, text)| text.split("KERNEL(").skip(1));
        declared.map(named).collect()
    }

    /// Returns the units to compile for entry points: each entry point by itself, or `""` for the whole file.
    pub fn units<'a>(&self, entries: impl IntoIterator<Item = &'a str>) -> BTreeSet<&'a str> {
        match self.has_units() {
            true => entries.into_iter().collect(),
            false => BTreeSet::from([""]),
        }
    }
}
