//! Detection of vacuous bounds: bounds that every measurement satisfies, so that passing them proves nothing.

use safetensors::Dtype;

use crate::metrics::range::{COUNT, DIFFERENCE, RATIO, SMALLEST};
use crate::metrics::{Better, Bound, Metric};
use crate::text::number;

/// Returns the smallest and the largest value that a metric can take, apart from NaN and infinities; `None` for an unknown name.
/// The tolerances `atol`, `rtol` and `ulp` of a comparison also have a range.
pub fn range(name: &str) -> Option<[f64; 2]> {
    match name {
        "atol" => Some([0.0, DIFFERENCE]),
        "rtol" => Some([0.0, RATIO]),
        "ulp" => Some([0.0, COUNT]),
        _ => Metric::find(name).ok().map(|metric| metric.range),
    }
}

/// Explains why every finite measurement satisfies a bound, or that the bound is NaN; `None` if a measurement can violate the
/// bound. `metric` is a name that [`range`] knows.
///
/// ```
/// use ulplab_core::vacuous::vacuous;
///
/// assert!(vacuous("cosine", ">= -1".parse()?).is_some());
/// assert!(vacuous("cosine", ">= 0.999".parse()?).is_none());
/// # Ok::<(), String>(())
/// ```
pub fn vacuous(metric: &str, bound: Bound) -> Option<String> {
    let [least, most] = range(metric).unwrap_or([f64::NEG_INFINITY, f64::INFINITY]);
    if bound.value.is_nan() {
        return Some(format!("{metric} {bound}: NaN is no bound"));
    }
    let (idle, side, end) = match bound.better {
        Better::Higher => (bound.value <= least, "below", least),
        Better::Lower => (bound.value >= most, "above", most),
    };
    idle.then(|| {
        format!(
            "{metric} {bound}: no measurement can break it, since {metric} is never {side} {}",
            number(end)
        )
    })
}

/// Returns the smallest and the largest finite value of a type, and the number of steps between them; `None` for unsupported
/// types.
fn extent(dtype: Dtype) -> Option<([f64; 2], f64)> {
    // The codes of positive floats count up from 0, so there are `code` steps on either side of zero; −0 and +0 are one value.
    let float = |most: f64, code: u64| ([-most, most], 2.0 * code as f64);
    let integer = |least: f64, most: f64| ([least, most], most - least);
    Some(match dtype {
        Dtype::F64 => float(f64::MAX, f64::MAX.to_bits()),
        Dtype::F32 => float(f32::MAX.into(), f32::MAX.to_bits().into()),
        Dtype::F16 => float(half::f16::MAX.into(), half::f16::MAX.to_bits().into()),
        Dtype::BF16 => float(half::bf16::MAX.into(), half::bf16::MAX.to_bits().into()),
        Dtype::F8_E4M3 => float(448.0, 0x7e),
        Dtype::F8_E5M2 => float(57344.0, 0x7b),
        Dtype::BOOL => integer(0.0, 1.0),
        Dtype::U8 => integer(0.0, u8::MAX.into()),
        Dtype::I8 => integer(i8::MIN.into(), i8::MAX.into()),
        Dtype::U16 => integer(0.0, u16::MAX.into()),
        Dtype::I16 => integer(i16::MIN.into(), i16::MAX.into()),
        Dtype::U32 => integer(0.0, u32::MAX.into()),
        Dtype::I32 => integer(i32::MIN.into(), i32::MAX.into()),
        _ => return None,
    })
}

/// Explains why all finite values of two types satisfy a bound on their absolute difference or their distance in ulp; `None` if
/// some values violate the bound, or for other metrics.
///
/// ```
/// use safetensors::Dtype;
/// use ulplab_core::vacuous::vacuous_between;
///
/// assert!(vacuous_between("max_abs", "<= 896".parse()?, [Dtype::F8_E4M3; 2]).is_some());
/// assert!(vacuous_between("max_abs", "<= 895".parse()?, [Dtype::F8_E4M3; 2]).is_none());
/// # Ok::<(), String>(())
/// ```
pub fn vacuous_between(metric: &str, bound: Bound, [want, got]: [Dtype; 2]) -> Option<String> {
    let ([least, most], steps) = extent(want)?;
    let apart = match metric {
        "max_abs" | "atol" => {
            let [below, above] = extent(got)?.0;
            (above - least).max(most - below)
        }
        "ulp" | "ulp_p50" | "ulp_p99" | "ulp_max" if want == got => steps,
        _ => return None,
    };
    (bound.better == Better::Lower && bound.value >= apart).then(|| {
        let types = if want == got {
            want.to_string()
        } else {
            format!("{want} and {got}")
        };
        let apart = number(apart);
        format!("{metric} {bound}: no numbers of {types} can break it, since {metric} is never above {apart} there")
    })
}

/// Explains why a metric can never worsen by more than `most`, or that `most` is NaN; `None` if the metric can. If `relative` is
/// true, `most` is a fraction of the previous value: 0.03 for 3 %.
pub fn vacuous_change(metric: &str, better: Better, most: f64, relative: bool) -> Option<String> {
    if most.is_nan() {
        return Some(format!("{metric}: NaN is no bound of a change"));
    }
    let [least, largest] = range(metric).unwrap_or([f64::NEG_INFINITY, f64::INFINITY]);
    let reach = match (relative, better) {
        (false, _) => largest - least,
        // A metric that is never negative can fall by at most 100 % of its value.
        (true, Better::Higher) if least >= 0.0 => 1.0,
        (true, _) => (largest - least) / SMALLEST,
    };
    let percent = |x: f64| {
        if relative {
            format!("{} %", number(100.0 * x))
        } else {
            number(x)
        }
    };
    (most >= reach).then(|| {
        let (most, reach) = (percent(most), percent(reach));
        format!(
            "{metric} may worsen by {most}: no measurement can break it, since it never worsens by more than {reach}"
        )
    })
}
