//! Tries causes in the cast of quotients (elements divided by their scale) to codes: rounding, ties, limits, precision.

use super::{Codes, bracket};
use crate::parity::maker::Maker;
use crate::parity::rounded::{cut_to_bf16, through, to_bf16, to_f16, to_tf32};
use crate::parity::{Cause, levels};
use ulplab_core::formats::{E2M3, E4M3, E5M2};

/// A rounding mode: returns true to round a number up in magnitude, false to round it down, and `None` to keep the expected code.
/// Arguments: signed distance from the middle between the two nearest codes, true if the number is negative, and the code of
/// smaller magnitude.
type Way = fn(f64, bool, u16) -> Option<bool>;

const WAYS: &[(Cause, &str, Way)] = &[
    (Cause::TieRule, "away from zero", |d, _, _| tie(d, true)),
    (Cause::TieRule, "toward zero", |d, _, _| tie(d, false)),
    (Cause::TieRule, "upward", |d, negative, _| tie(d, !negative)),
    (Cause::TieRule, "downward", |d, negative, _| tie(d, negative)),
    (Cause::TieRule, "to odd", |d, _, low| tie(d, low % 2 == 0)),
    (Cause::Division, "rounded toward zero", |_, _, _| Some(false)),
    (Cause::Division, "rounded away from zero", |_, _, _| Some(true)),
    (Cause::Division, "rounded downward", |_, negative, _| Some(negative)),
    (Cause::Division, "rounded upward", |_, negative, _| Some(!negative)),
    (Cause::Division, "rounded to odd", |_, _, low| Some(low % 2 == 0)),
];

fn tie(distance: f64, up: bool) -> Option<bool> {
    (distance == 0.0).then_some(up)
}

/// Additional roundings of the quotient before the cast: words for reports, and the function that rounds.
const TWICE: [(&str, fn(f32) -> f32); 8] = [
    ("rounded to bf16 and then again", to_bf16),
    ("rounded to f16 and then again", to_f16),
    ("rounded to TF32 and then again", to_tf32),
    ("truncated to bf16 and then rounded", cut_to_bf16),
    ("rounded to E5M2 and then again", |y| through(&E5M2, y)),
    ("rounded to E4M3 and then again", |y| through(&E4M3, y)),
    ("rounded to E2M3 and then again", |y| through(&E2M3, y)),
    ("rounded to an integer and then again", f32::round_ties_even),
];

impl Codes<'_> {
    pub(super) fn rounding(&mut self) {
        let (repr, top) = (self.repr, self.top());
        for (cause, detail, way) in WAYS {
            self.hold(*cause, *detail, |codes, seen| {
                let code = |(y, want): (&f32, &u16)| {
                    let (low, high) = bracket(repr, top, *y);
                    let middle = (f64::from(repr.decode(low)) + f64::from(repr.decode(high))) / 2.0;
                    match way(f64::from(y.abs()) - middle, y.is_sign_negative(), low) {
                        Some(up) if low != high => codes.signed(if up { high } else { low }, y.is_sign_negative()),
                        _ => *want,
                    }
                };
                Some(seen.y.iter().zip(&seen.want).map(code).collect())
            });
        }
        // Simulate rounding of the scaled values to integers before the cast.
        self.cast(Cause::Division, "rounded to nearest integers", |y, _| {
            repr.encode(y.round_ties_even())
        });
        for format in self.problem.format.by_casts().into_iter().skip(1) {
            let (repr, name) = (format.repr(), format.convention.map_or("", |cast| cast.name));
            let detail = format!("as {name} casts what is too large or no number");
            self.cast(Cause::Saturation, detail, |y, want| {
                let fits = y.is_finite() && y.abs() <= repr.decode(top);
                if fits { want } else { repr.encode(y) }
            });
        }
    }

    pub(super) fn limits(&mut self) {
        let (repr, max) = (self.repr, self.problem.format.element.max());
        let value = |(cell, i): &(usize, usize)| {
            let code = self.seen[*cell].stored[*i].unwrap_or(0);
            Some(repr.decode(code).abs()).filter(|value| value.is_finite())
        };
        let all = self.wrong.iter().chain(&self.right);
        let clamp = all.filter_map(value).fold(0.0, f32::max);
        if clamp > 0.0 && clamp < max {
            self.cast(Cause::Saturation, format!("at {clamp} instead of {max}"), |y, _| {
                repr.encode(y.clamp(-clamp, clamp))
            });
        }
        let mut seen = self.wrong_codes();
        seen.dedup();
        let sign = 1u16 << (self.problem.format.element.bits - 1);
        for code in seen.into_iter().take(4) {
            let shown = repr.decode(code);
            let detail = format!("{shown} for values beyond {max}");
            self.cast(
                Cause::Saturation,
                detail,
                |y, want| {
                    if y.abs() > max { code } else { want }
                },
            );
            let detail = format!("{shown} for values that become {max}");
            self.cast(Cause::Saturation, detail, |_, want| {
                if repr.decode(want).abs() == max { code } else { want }
            });
        }
        let detail = "values beyond the largest wrap around to the other sign";
        self.cast(Cause::Saturation, detail, |y, want| {
            if y.abs() > max { want ^ sign } else { want }
        });
        let detail = format!("values near or beyond {max} wrap around, become NaN or stop elsewhere");
        self.hold(Cause::Saturation, detail, |codes, seen| {
            let code = |i: usize| match seen.stored[i] {
                Some(stored) if seen.y[i].abs() > max || !codes.repr.decode(stored).is_finite() => stored,
                _ => seen.want[i],
            };
            Some((0..seen.want.len()).map(code).collect())
        });
        self.hold(Cause::Division, "codes are 0 where the scale is 0", |codes, seen| {
            (codes.problem.value(seen.scale) == 0.0).then(|| vec![0; seen.want.len()])
        });
    }

    /// Tests causes in the division of an element by its scale: an additional rounding, a rounded reciprocal, another rule's
    /// division, an error of one ulp.
    pub(super) fn precision(&mut self) {
        let repr = self.repr;
        for (detail, round) in TWICE {
            self.cast(Cause::DoubleRounding, format!("the quotient is {detail}"), |y, _| {
                repr.encode(round(y))
            });
        }
        for (to, round) in [("bf16", to_bf16 as fn(f32) -> f32), ("f16", to_f16)] {
            let detail = format!("what values are multiplied by is rounded to {to}");
            self.hold(Cause::Division, detail, |codes, seen| {
                let ones = vec![1.0; seen.x.len()];
                let factors = codes.maker.quotients(codes.problem, &seen.cell, &ones, seen.scale);
                let code = |(x, factor): (&f32, &f32)| repr.encode(x * round(*factor));
                Some(seen.x.iter().zip(&factors).map(code).collect())
            });
        }
        for other in self.problem.format.by_rules().into_iter().skip(1) {
            let name = other.scaling.map_or("", |scaling| scaling.scale.rule().0);
            let Some(own) = levels::levels(self.problem, &other).pop() else {
                continue;
            };
            let input = self.maker.input;
            let maker = Maker { input, ..own };
            self.hold(Cause::Division, format!("as rule {name} divides"), |codes, seen| {
                maker.codes(codes.problem, &seen.cell, seen.scale)
            });
        }
        for (size, nudge) in [("small", 0.999_999_8f32), ("large", 1.000_000_2)] {
            let detail = format!("the quotient is an ulp too {size}, just beside a tie");
            self.cast(Cause::Division, detail, |y, _| repr.encode(y * nudge));
        }
    }
}
