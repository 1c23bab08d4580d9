//! Texts about the faults that checks of outputs notice, and about checks that are too weak.

use super::Power;
use ulplab_core::error::counted;

/// Kinds of faults whose size is a fraction of the correct values, each with the words for it in messages.
const SHARES: [(&str, &str); 6] = [
    ("gain", "gain"),
    ("row", "in a row"),
    ("block_128", "in 128 numbers"),
    ("block_32", "in 32 numbers"),
    ("element", "in one number"),
    ("bias", "bias"),
];

impl Power {
    /// Returns the names of operation, output and type.
    pub fn name(&self) -> String {
        format!("{}: {}", self.op, self.place())
    }

    /// Returns the names of output and type.
    pub fn place(&self) -> String {
        format!("{}, {}", self.output, self.dtype)
    }

    /// Returns a text about the smallest noticed faults, in the most sensitive case and in the median case.
    pub fn text(&self) -> String {
        if let Some(bit) = self.faults.get("bit") {
            return match bit.median {
                Some(_) => "any changed bit".into(),
                None => "not every changed bit".into(),
            };
        }
        let share = |(kind, name): &(&str, &str)| Some(format!("{name} {}", self.sizes(kind, share)?));
        let shares = SHARES.iter().filter_map(share);
        let terms = self.faults.get("term").and_then(|noticed| {
            let sums = |share: f64| Some(terms(share)).filter(|many| many != ANY);
            Some(match (noticed.best.and_then(sums), noticed.median.map(sums)) {
                (None, None) if noticed.best.is_none() => return None,
                (best, Some(Some(middle))) => {
                    let best = best.filter(|best| *best != middle);
                    let best = best.map_or(String::new(), |best| format!("{best} to "));
                    format!("a missing term of sums of up to {best}{middle} terms")
                }
                (_, Some(None)) => "a missing term of any sum".into(),
                (_, None) => "a missing term in few cases only".into(),
            })
        });
        let bits = self.sizes("bits", |bits| bits.to_string());
        let bits = bits.map(|bits| match &bits[..] {
            "1" => "the last bit".into(),
            _ => format!("the last {bits} bits"),
        });
        let narrowed = [("to_bf16", "bf16"), ("to_f16", "f16")].map(|(kind, name)| {
            let noticed = self.faults.get(kind)?;
            match (noticed.best, noticed.median) {
                (_, Some(_)) => None,
                (Some(_), None) => Some(format!("rounding to {name} in few cases only")),
                (None, None) => Some(format!("rounding to {name} never")),
            }
        });
        let narrowed = narrowed.into_iter().flatten();
        let all: Vec<String> = shares.chain(terms).chain(bits).chain(narrowed).collect();
        match all.is_empty() {
            true => "not asked".into(),
            false => all.join(", "),
        }
    }

    /// Returns a text with the smallest noticed size of a kind of fault, in the most sensitive case and in the median case.
    fn sizes(&self, kind: &str, text: fn(f64) -> String) -> Option<String> {
        let noticed = self.faults.get(kind)?;
        let [best, middle] = [noticed.best, noticed.median].map(|size| size.map_or("none".into(), text));
        Some(match best == middle {
            true => best,
            false => format!("{best} to {middle}"),
        })
    }

    /// Returns the smallest noticed size of a kind of fault in the median case; infinite if no size is noticed, 0 if the kind was
    /// not measured.
    fn middle(&self, kind: &str) -> f64 {
        let noticed = self.faults.get(kind);
        noticed.map_or(0.0, |noticed| noticed.median.unwrap_or(f64::INFINITY))
    }
}

/// Returns a text with the numbers of outputs and operations for which the smallest noticed faults were measured, and with the
/// names of the other operations.
pub fn known(ops: &[&str], all: &[Power]) -> String {
    let asked = |op: &&str| all.iter().any(|power| power.op == **op && power.cases > 0);
    let (asked, unasked): (Vec<&str>, Vec<&str>) = ops.iter().partition(|op| asked(op));
    let outputs = all.iter().filter(|power| asked.contains(&power.op.as_str())).count();
    let not = unasked.join("`, `");
    let (outputs, ops) = (counted(outputs, "output"), counted(asked.len(), "operation"));
    let measured = format!("measured of {outputs} of {ops}");
    match (asked.is_empty(), unasked.is_empty()) {
        (true, _) => format!("not measured of `{not}`"),
        (false, true) => measured,
        (false, false) => format!("{measured}, and not of `{not}`"),
    }
}

/// Lists the checks that are too weak: in the median case, they miss a fault that they should notice (a gain of 1 %, or one lost
/// bit). The worst check comes first. The text for a check has the smallest fault that the check notices.
pub fn blind(all: &[Power]) -> Vec<(&'static str, Vec<String>)> {
    let of = |heading, kind: &str, should: f64, text: fn(f64) -> String| {
        let mut blind: Vec<&Power> = all.iter().filter(|power| power.middle(kind) > should).collect();
        blind.sort_by(|a, b| b.middle(kind).total_cmp(&a.middle(kind)));
        let each = |power: &&Power| format!("{} ({})", power.name(), text(power.middle(kind)));
        (heading, blind.iter().map(each).collect::<Vec<_>>())
    };
    let bits = |bits: f64| match bits.is_finite() {
        true => format!("{bits} bits"),
        false => "any number of bits".into(),
    };
    let lists = [
        of("These let a gain of 1 % pass, the worst first", "gain", 0.01, share),
        of("These let a lost bit pass, the worst first", "bits", 1.0, bits),
    ];
    lists.into_iter().filter(|(_, blind)| !blind.is_empty()).collect()
}

/// Formats a size with two digits, as a percentage if it is 0.1 % or more.
fn share(size: f64) -> String {
    match size {
        size if size.is_infinite() => "none".into(),
        size if size >= 10.0 => format!("{size:.0}"),
        size if size >= 0.1 => format!("{:.0} %", 100.0 * size),
        size if size >= 1e-3 => format!("{:.2} %", 100.0 * size),
        size => format!("{size:.1e}"),
    }
}

/// Text that [`terms`] returns for 10⁶ terms or more.
const ANY: &str = "any number";

/// Formats n = 1 / share²: in a sum of n equal terms with random signs, one term is about the fraction `share` of the sum. From
/// 10⁶ terms on, the text is [`ANY`], because no kernel sums so many terms.
fn terms(share: f64) -> String {
    match share.powi(-2) {
        many if many >= 1e6 => ANY.into(),
        many if many >= 1e4 => format!("{many:.0e}"),
        few => format!("{few:.0}"),
    }
}
