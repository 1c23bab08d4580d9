//! Compares outputs with the expected ones, and searches for known faults that explain the differences.

use std::ops::Range;

use safetensors::Dtype;

use super::routing::MOST_CHOICES;
use super::{Call, Choice, Other, Output, bound, overflow, spread};
use ulplab_core::close::{Allowed, Comparison, compare};

/// Result of comparing an output with the expected one.
#[derive(Clone, Debug)]
pub struct Judged {
    /// Expected output.
    pub expected: Output,
    /// Error bound of each element.
    pub bounds: Vec<f64>,
    /// Comparison of the output with `expected`.
    pub comparison: Comparison,
    /// Possible explanations of the wrong elements, the best one first.
    pub like: Vec<Likeness>,
    /// One message for each statistic of all errors (mean, root mean square) that is too large for a correct kernel
    /// ([`Output::spread`]).
    pub together: Vec<String>,
}

/// A possible explanation of a wrong output.
#[derive(Clone, Debug, PartialEq)]
pub struct Likeness {
    /// Description of the explanation.
    pub what: String,
    /// Number of elements outside of the error bounds around the values that this explanation predicts.
    pub outside: usize,
    /// True if the numbers of this explanation are about the same as `expected`, although it is not a known fault: it fits only
    /// because its bounds are wider.
    pub wider: bool,
}

/// Reason why an output was not compared.
#[derive(Clone, Debug, PartialEq)]
pub enum Refused {
    /// The arguments of the call do not fit together.
    Call(String),
    /// The output's shape differs from the shape that the operation gives.
    Shape(String),
}

/// Largest fraction of the wrong elements that an explanation may leave unexplained.
const STILL_OUTSIDE: f64 = 0.02;

/// Compares the output `name` of a call, or its first output, with the expected one.
///
/// # Errors
/// Returns an error if the arguments do not fit together, the output is unknown, or its shape differs.
pub fn judge(call: &Call, name: Option<&str>, got: &[f64], shape: &[usize], dtype: Dtype) -> Result<Judged, Refused> {
    let mut expected = output(call, name).map_err(Refused::Call)?;
    if expected.shape != shape {
        let (operation, name, wanted) = (call.operation().name, expected.name, expected.shape);
        let why = format!("{operation} gives '{name}' of shape {wanted:?}, got {shape:?}");
        return Err(Refused::Shape(why));
    }
    let crowded = crowded(&expected);
    settle(&mut expected, got, dtype);
    expected.overflow(dtype);
    let mut bounds = expected.bounds(dtype);
    if expected.exact {
        // Signs of zeros must match in exact outputs. But 0 and −0 compare as equal: mark a wrong sign by a negative bound, which
        // every error exceeds.
        for ((got, want), bound) in got.iter().zip(&expected.value).zip(&mut bounds) {
            if *got == 0.0 && *want == 0.0 && got.is_sign_negative() != want.is_sign_negative() {
                *bound = -1.0;
            }
        }
    }
    let comparison = compare(got, &expected.value, Allowed::Bounds(&bounds), true);
    let together = spread::found(&expected, got, dtype);
    let mut judged = Judged {
        expected,
        bounds,
        comparison,
        like: Vec::new(),
        together,
    };
    let outside = |part: &Range<usize>| {
        let bounds = Allowed::Bounds(&judged.bounds[part.clone()]);
        compare(&got[part.clone()], &judged.expected.value[part.clone()], bounds, true).outside
    };
    let unfit: Vec<&Range<usize>> = crowded.iter().filter(|part| outside(part) > 0).collect();
    if !unfit.is_empty() && unfit.iter().map(|part| outside(part)).sum::<usize>() == judged.comparison.outside {
        let (row, name) = (unfit[0].start / unfit[0].len(), call.operation().name);
        return Err(Refused::Call(format!(
            "not judged: {name}: row {row} fits none of the {MOST_CHOICES} choices of experts that were tried, and its scores allow more; \
             expected scores that decide"
        )));
    }
    if judged.comparison.outside > 0 {
        judged.like = like(call, name, got, dtype, &judged);
    }
    Ok(judged)
}

/// Returns the ranges of an output that have [`MOST_CHOICES`] or more alternatives. Other alternatives may also be admissible
/// there, but were not tried.
pub(crate) fn crowded(expected: &Output) -> Vec<Range<usize>> {
    let parts = expected.others.chunk_by(|a, b| a.start == b.start);
    let crowded = parts.filter(|others| others.len() >= MOST_CHOICES);
    let part = |others: &[Other]| others[0].start..others[0].start + others[0].value.len();
    crowded.map(part).collect()
}

fn output(call: &Call, name: Option<&str>) -> Result<Output, String> {
    let mut outputs = (call.operation().compute)(call)?;
    let names: Vec<&str> = outputs.iter().map(|output| output.name).collect();
    let at = name.map_or(Some(0), |name| names.iter().position(|known| *known == name));
    let at = at.ok_or_else(|| {
        let (operation, name) = (call.operation().name, name.unwrap_or_default());
        format!("{operation} has no output '{name}'; it has {}", names.join(", "))
    })?;
    Ok(outputs.swap_remove(at))
}

/// Replaces expected values by admissible ones that fit `got` better, so that only wrong outputs count as wrong: alternatives and
/// choices that leave fewer elements outside of their bounds, and infinities where the bounds allow overflow.
pub(crate) fn settle(expected: &mut Output, got: &[f64], dtype: Dtype) {
    let exact = expected.exact;
    let outside = |start: usize, value: &[f64], error: &[f64]| {
        let bound = |(x, e): (&f64, &f64)| if exact { 0.0 } else { bound(dtype, *x, *e) };
        let bounds: Vec<f64> = value.iter().zip(error).map(bound).collect();
        let got = &got[start..][..value.len()];
        compare(got, value, Allowed::Bounds(&bounds), true).outside
    };
    for Other { start, value, error } in std::mem::take(&mut expected.others) {
        let all = start..start + value.len();
        let now = outside(start, &expected.value[all.clone()], &expected.error[all.clone()]);
        if now > 0 && outside(start, &value, &error) < now {
            expected.value[all.clone()].copy_from_slice(&value);
            expected.error[all].copy_from_slice(&error);
        }
    }
    for choice in std::mem::take(&mut expected.choices) {
        let all = choice.start..choice.start + choice.len;
        let chosen = choice.settle(&got[all.clone()], |x| if exact { 0.0 } else { bound(dtype, x, 0.0) });
        let error = vec![0.0; choice.len];
        if outside(choice.start, &chosen, &error) < outside(choice.start, &expected.value[all.clone()], &error) {
            expected.value[all].copy_from_slice(&chosen);
        }
    }
    if exact {
        return;
    }
    // If the error bound allows a value that overflows in this type, an infinity in the output is also admissible.
    let overflow = overflow(dtype);
    for ((value, error), got) in expected.value.iter_mut().zip(&expected.error).zip(got) {
        if got.is_infinite() && value.is_finite() && *value * got.signum() + error >= overflow {
            *value = *got;
        }
    }
}

impl Choice {
    /// Matches the output's numbers `got` with the possible numbers. Each possible number is used at most once. An output number
    /// without a match is replaced by an unused possible number.
    fn settle(&self, got: &[f64], bound: impl Fn(f64) -> f64) -> Vec<f64> {
        let mut taken = vec![false; self.of.len()];
        let mut take = |got: f64| {
            let bound = bound(got.abs());
            let from = self.of.partition_point(|x| *x < got - bound);
            let near = (from..self.of.len()).take_while(|at| self.of[*at] <= got + bound);
            let found = { near }.find(|at| !taken[*at])?;
            taken[found] = true;
            Some(self.of[found])
        };
        let found: Vec<Option<f64>> = got.iter().map(|got| take(*got)).collect();
        let rest = self.of.iter().zip(&taken).filter(|(_, taken)| !**taken);
        let mut rest = rest.map(|(x, _)| *x);
        // An element without a match gets an unused possible number, which differs from the output: so the element counts as
        // wrong.
        let mut or_left = |found: Option<f64>| found.or_else(|| rest.next()).unwrap_or(f64::NAN);
        found.into_iter().map(&mut or_left).collect()
    }
}

/// Searches for mistakes that explain a wrong output: other word arguments, known faults and simple mistakes ([`moved`]).
/// Returns all mistakes whose results leave at most a fraction [`STILL_OUTSIDE`] of the wrong elements outside of their bounds,
/// the best first.
fn like(call: &Call, name: Option<&str>, got: &[f64], dtype: Dtype, judged: &Judged) -> Vec<Likeness> {
    let limit = (judged.comparison.outside as f64 * STILL_OUTSIDE) as usize;
    let mut found = Vec::new();
    let mut try_one = |what: String, no_fault: bool, other: &[f64], bounds: &[f64]| {
        let outside = compare(got, other, Allowed::Bounds(bounds), true).outside;
        if outside <= limit {
            // Total width of the bounds. It is a sort key, because an explanation with wider bounds is less specific.
            let allowed: f64 = bounds.iter().filter(|bound| bound.is_finite()).sum();
            let here = Allowed::Bounds(&judged.bounds);
            let wider = no_fault && compare(other, &judged.expected.value, here, true).outside <= limit;
            found.push((outside, allowed, Likeness { what, outside, wider }));
        }
    };
    let words = call.operation().takes.iter().flat_map(|takes| match takes.kind {
        super::Kind::Word(words) => words.iter().map(|word| (takes.name, *word)).collect(),
        _ => Vec::new(),
    });
    let words = words.filter(|(name, word)| *word != call.word(name));
    let words = words.map(|(name, word)| {
        let what = format!("{name} = \"{word}\"");
        (what, true, call.with(None, Some((name, word))))
    });
    let faults = call.operation().faults.iter();
    let faults = faults.filter(|fault| fault.needs.is_none_or(|needs| call.has(needs)));
    let faults = faults.map(|fault| {
        let what = format!("{}: {}", fault.name, fault.doc);
        (what, false, call.with(Some(fault.name), None))
    });
    for (what, no_fault, other) in words.chain(faults) {
        // Skip the changed call if it fails or if its output has another shape, for example because another layout does not fit
        // the tensors.
        if let Ok(mut other) = output(&other, name)
            && other.shape == judged.expected.shape
        {
            settle(&mut other, got, dtype);
            try_one(what, no_fault, &other.value, &other.bounds(dtype));
        }
    }
    for (what, other, bounds) in moved(judged, got) {
        try_one(what, true, &other, &bounds);
    }
    found.sort_by(|(a, a_allowed, a_like), (b, b_allowed, b_like)| {
        let faults_first = a_like.wider.cmp(&b_like.wider);
        faults_first.then(a.cmp(b)).then(a_allowed.total_cmp(b_allowed))
    });
    found.into_iter().map(|(.., like)| like).collect()
}

/// Returns a description, the numbers and the bounds of each simple mistake: a wrong sign, all zeros, neighbouring rows, or a
/// constant factor.
fn moved(judged: &Judged, got: &[f64]) -> Vec<(String, Vec<f64>, Vec<f64>)> {
    let (want, bounds) = (&judged.expected.value, &judged.bounds);
    let cols = judged.expected.shape.last().copied().unwrap_or(1);
    let negated = want.iter().map(|x| -x).collect();
    let zeros = vec![0.0; want.len()];
    let mut all = vec![
        ("the right numbers with the other sign".into(), negated, bounds.clone()),
        ("all zeros".into(), zeros.clone(), zeros),
    ];
    if want.len() > cols && cols > 0 {
        for (what, by) in [("the next row", cols), ("the row before", want.len() - cols)] {
            let [want, bounds] = [want, bounds].map(|x| [&x[by..], &x[..by]].concat());
            all.push((format!("each row the one that is expected of {what}"), want, bounds));
        }
    }
    // Find the constant factor that fits best: a wrong or missing scale gives such a factor.
    let (mut along, mut square) = (0.0, 0.0);
    for (got, want) in got
        .iter()
        .zip(want)
        .filter(|(got, want)| got.is_finite() && want.is_finite())
    {
        along += got * want;
        square += want * want;
    }
    let factor = along / square;
    if factor.is_finite() && factor != 0.0 && (factor - 1.0).abs() > 1e-4 {
        let by = |x: &[f64]| x.iter().map(|x| x * factor).collect::<Vec<f64>>();
        // Widen the bounds: the estimated factor is only as precise as the output, and kernels may round numbers before
        // multiplying by the factor.
        let other = by(want);
        let spare = other.iter().zip(bounds);
        let spare = spare.map(|(want, bound)| 2.5 * bound * factor.abs().max(1.0) + 1e-4 * want.abs());
        let spare = spare.collect();
        all.push((format!("the right numbers times {factor:.4}"), other, spare));
    }
    all
}
