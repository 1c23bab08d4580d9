//! Bounds that nothing can break: a verdict by such a bound says nothing.

use safetensors::Dtype;

use crate::metrics::{Better, Bound};
use crate::text::number;

/// The largest difference of two numbers in f32: of elements, scores, and logarithms of probabilities.
const DIFFERENCE: f64 = 2.0 * f32::MAX as f64;
/// The largest ratio of norms: a [`DIFFERENCE`] over the smallest f32 above 0, times the square root of 2⁶⁴ elements.
const RATIO: f64 = DIFFERENCE / SMALLEST * 4_294_967_296.0;
/// 2⁻¹⁴⁹.
const SMALLEST: f64 = f32::from_bits(1) as f64;
/// Counts have 64 bits, and so have times, in nanoseconds.
const COUNT: f64 = u64::MAX as f64;
/// 20 log₁₀ of [`RATIO`], rounded up.
const DECIBELS: f64 = 1_870.0;

/// The least and the largest value that a metric of this name can take, NaN and infinities aside. The tolerances `atol`, `rtol` and
/// `ulp` of a comparison have a range, too. `None` for other names.
pub fn range(name: &str) -> Option<[f64; 2]> {
    Some(match name {
        "cosine" | "cosine_theory" | "net_lost" => [-1.0, 1.0],
        // 2 is the distance of x and -x.
        "diff" | "cosine_excess" => [0.0, 2.0],
        "top1" | "recall" | "recall_min" | "recall_mass" | "agreement" | "gate_agreement" | "bank_agreement"
        | "same_history" | "zeroed" => [0.0, 1.0],
        // A core has four lanes.
        "lane_distance" => [0.0, 4.0],
        "relative_l2" | "score_error" | "bound_ratio" | "rtol" => [0.0, RATIO],
        "nsr" | "gain" => [0.0, RATIO * RATIO],
        "rho" => [-RATIO, RATIO],
        // Theory is to first order: it may be far below 0.
        "recall_theory" => [-RATIO, 1.0],
        "recall_excess" => [-1.0, RATIO],
        "max_abs" | "kl" | "kl_max" | "flip_gap" | "flip_margin" | "flip_margin_max" | "atol" => [0.0, DIFFERENCE],
        "nats" | "nats_per_byte" => [0.0, DIFFERENCE],
        "perplexity" => [1.0, f64::MAX],
        "delta_nats" | "delta_nats_per_byte" => [-DIFFERENCE, DIFFERENCE],
        "sqnr" | "row_sqnr_p05" | "row_sqnr_p50" | "sqnr_theory" | "sqnr_bits" => [-DECIBELS, DECIBELS],
        "sqnr_gain" | "sqnr_excess" => [-2.0 * DECIBELS, 2.0 * DECIBELS],
        "ulp" | "ulp_p50" | "ulp_p99" | "ulp_max" | "nonfinite" | "lost" | "gained" | "flips_outside"
        | "violations" | "unequal" | "stored_bits" | "megabytes" | "weight_bits" | "weight_megabytes" => [0.0, COUNT],
        // Steps are fewer than 2⁵³, so their logarithms differ by more than 2⁻⁵³.
        "growth" => [-COUNT, COUNT],
        "us_cold" | "us_cold_p10" | "us_cold_p90" | "us_hot" | "us_graph" | "us_rotated" | "us_cached"
        | "us_claimed" | "us_limit" | "us_peer" => [0.0, COUNT / 1e3],
        "of_copy" | "of_copy_rotated" | "of_matmul" | "of_limit" | "times_peer" => [0.0, COUNT],
        _ => return None,
    })
}

/// The reason why no finite measurement can break a bound; `None` if one can. `metric`: a name as in [`range`].
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

/// The least and the largest finite number of a type, and how many numbers lie between them; `None` for types of other elements.
fn extent(dtype: Dtype) -> Option<([f64; 2], f64)> {
    // Both zeros of a float are one number, so codes up to that of the largest count twice.
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

/// The reason why no finite numbers of two types can break a bound of their difference, in absolute terms or in ulp; `None` if some can,
/// or if the bound is on something else.
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

/// The reason why no finite measurement can worsen by more than a bound allows; `None` if one can. `relative`: the bound is a share of
/// the value before, as 0.03 for 3 %.
pub fn vacuous_change(metric: &str, better: Better, most: f64, relative: bool) -> Option<String> {
    if most.is_nan() {
        return Some(format!("{metric}: NaN is no bound of a change"));
    }
    let [least, largest] = range(metric).unwrap_or([f64::NEG_INFINITY, f64::INFINITY]);
    let reach = match (relative, better) {
        (false, _) => largest - least,
        // What is never below 0 loses all of it at most.
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
