//! Laws of rounding, on generated numbers.

use proptest::collection::vec;
use proptest::prelude::*;
use ulplab::formats::codec;

use super::codecs::all;
use super::oracle::nearest;

/// Finite numbers of magnitude `2^-low … 2^high`, and zero.
fn number(low: i32, high: i32) -> impl Strategy<Value = f32> {
    let magnitude = (f64::from(low)..f64::from(high), any::<bool>());
    prop_oneof![
        12 => magnitude.prop_map(|(log, negative)| (if negative { -log.exp2() } else { log.exp2() }) as f32),
        1 => Just(0.0f32),
    ]
}

fn rounded(format: &str, x: &[f32], cols: usize) -> Vec<f32> {
    let mut y = x.to_vec();
    codec(format).unwrap().round(&mut y, cols);
    y
}

/// Rules under which a second rounding changes nothing: plain casts; powers of two, as what is rounded against one
/// power is exact against the next lower one. Not so under f32 scales (`448·(amax/448)` need not be `amax`) and two
/// levels (the tensor's largest value moves), nor under `nearest`: 1.07 becomes 1, which saturates to 0.75. A single E4M3 level is stable
/// while its scale is a normal number.
const STABLE: [&str; 16] = [
    "bf16",
    "f16",
    "e4m3",
    "e5m2",
    "e4m3/b32:e8m0",
    "e5m2/b32:e8m0(floor)",
    "e2m1/b32:e8m0(floor)",
    "e2m1/b32:e8m0(ceil)",
    "e2m1/b32:e8m0(even)",
    "e2m1/b32:e8m0",
    "mxfp4",
    "fp8_b64",
    "fp8_b128",
    "int8/b32:e8m0",
    "e4m3/b128:f32(act_quant)",
    "bf16/b64:e8m0",
];

proptest! {
    #[test]
    fn rounding_twice_is_rounding_once(x in vec(number(-12, 12), 512)) {
        for format in STABLE {
            let once = rounded(format, &x, 512);
            prop_assert_eq!(&rounded(format, &once, 512), &once, "{}", format);
        }
        // v32_fp8 too has f32 scales, but rounds to bf16 first, which brings amax back exactly.
        for record in ["v4_fp8", "v41_mxfp8", "v4_bf16", "v32_fp8"] {
            let once = rounded(record, &x, 512);
            prop_assert_eq!(&rounded(record, &once, 512), &once, "{}", record);
        }
    }

    #[test]
    fn e4m3_scales_are_stable_while_normal(x in vec(number(-2, 8), 512)) {
        for format in ["nvfp4_single", "e2m1/b16:e4m3(torchao)", "e2m1/b16:e4m3(v41)", "v41_fp4"] {
            let once = rounded(format, &x, 512);
            prop_assert_eq!(&rounded(format, &once, 512), &once, "{}", format);
        }
    }

    #[test]
    fn negation_passes_through(x in vec(number(-14, 14), 512)) {
        let negated: Vec<f32> = x.iter().map(|x| -x).collect();
        for (codec, cols) in all() {
            // A table or codes from a minimum on are not symmetric.
            let element = codec.format().map(|format| format.element);
            if element.is_some_and(|element| element.needs_zero_point() || element.name == "nf4") {
                continue;
            }
            let (mut plus, mut minus) = (x.clone(), negated.clone());
            codec.round(&mut plus, cols);
            codec.round(&mut minus, cols);
            minus.iter_mut().for_each(|x| *x = -*x);
            prop_assert_eq!(&plus, &minus, "{}", codec.name());
        }
    }

    /// Within what shares a scale, order is kept.
    #[test]
    fn order_is_kept(mut x in vec(number(-14, 14), 512)) {
        x.sort_by(f32::total_cmp);
        for (codec, cols) in all() {
            if codec.name() == "nvfp4_rht" {
                continue;
            }
            let mut y = x.clone();
            codec.round(&mut y, cols);
            for (index, pair) in y.windows(2).enumerate() {
                // 16 is the smallest block, and divides the others.
                prop_assert!(index % 16 == 15 || pair[0] <= pair[1], "{}: {:?} at {}", codec.name(), pair, index);
            }
        }
    }

    /// A power of two passes through every rule without a floor, subnormals aside.
    #[test]
    fn powers_of_two_pass_through(x in vec(number(-10, 10), 512), power in -40i32..40) {
        let factor = (f64::from(power)).exp2() as f32;
        let moved: Vec<f32> = x.iter().map(|x| x * factor).collect();
        for format in [
            "bf16", "mxfp8", "mxfp8_floor", "mxfp4", "mxfp4_floor", "e2m1/b32:e8m0(nearest)", "e4m3/b32:e8m0(even)",
            "e4m3/b32:e8m0(ceil)", "int8_token", "fp8_tensor", "nvfp4", "nvfp4_token", "e2m1/b16:e4m3(modelopt)/t:f32",
        ] {
            let want: Vec<f32> = rounded(format, &x, 512).iter().map(|x| x * factor).collect();
            prop_assert_eq!(&rounded(format, &moved, 512), &want, "{} by 2^{}", format, power);
        }
    }

    /// Against the scale it got, every value has the nearest code there is: found by search over the oracle's table.
    #[test]
    fn codes_are_the_nearest(x in vec(number(-20, 6), 128)) {
        for element in ["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"] {
            for rule in ["rceil", "floor", "even", "nearest"] {
                let encoded = codec(&format!("{element}/b32:e8m0({rule})")).unwrap().encode(&x, 128);
                let (data, scales) = (encoded.part("data"), encoded.part("scale"));
                for (index, x) in x.iter().enumerate() {
                    let scale = (f64::from(scales[index / 32]) - 127.0).exp2();
                    let want = nearest(element, f64::from(*x) / scale);
                    let got = if element == "e2m1" { data[index / 2] >> (4 * (index % 2)) & 0xf } else { data[index] };
                    prop_assert_eq!(got, want, "{} {} of {} against {}", element, rule, x, scale);
                }
            }
        }
    }

    /// `rceil` picks the smallest power of two under which nothing saturates; `floor` the one that aligns exponents.
    #[test]
    fn powers_are_the_right_ones(amax in number(-30, 30)) {
        prop_assume!(amax != 0.0);
        for (element, max, exponent) in [
            ("e4m3", 448.0, 8.0), ("e5m2", 57344.0, 15.0), ("e3m2", 28.0, 4.0), ("e2m3", 7.5, 2.0), ("e2m1", 6.0, 2.0),
        ] {
            let code = |rule: &str| {
                let format = format!("{element}/b2:e8m0({rule})");
                f64::from(codec(&format).unwrap().encode(&[amax, 0.0], 2).part("scale")[0]) - 127.0
            };
            let amax = f64::from(amax.abs());
            let rceil = code("rceil").exp2();
            // The product with fl32(1/max) is off by less than two f32 steps.
            let slack = 1.0 + 2f64.powi(-22);
            prop_assert!(amax <= max * rceil * slack && amax * slack > max * rceil / 2.0);
            prop_assert_eq!(code("floor"), amax.log2().floor() - exponent);
            prop_assert_eq!(code("ceil"), amax.log2().ceil() - exponent);
        }
    }
}
