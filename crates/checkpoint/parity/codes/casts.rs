//! Causes that lie in the cast: rounding, ties, limits, precision.

use super::{Codes, bracket};
use crate::parity::maker::{Maker, rounded};
use crate::parity::{Cause, levels};
use ulplab_core::formats::{E2M3, E4M3, E5M2, Element};

impl Codes<'_> {
    pub(super) fn rounding(&mut self) {
        let (repr, top) = (self.repr, self.top());
        // Below or above in magnitude, by what is nearest and by the sign.
        type Way = fn(f64, bool, u16) -> Option<bool>;
        let ways: [(Cause, &str, Way); 10] = [
            (Cause::TieRule, "away from zero", |d, _, _| (d == 0.0).then_some(true)),
            (Cause::TieRule, "toward zero", |d, _, _| (d == 0.0).then_some(false)),
            (Cause::TieRule, "upward", |d, negative, _| {
                (d == 0.0).then_some(!negative)
            }),
            (Cause::TieRule, "downward", |d, negative, _| {
                (d == 0.0).then_some(negative)
            }),
            (Cause::TieRule, "to odd", |d, _, low| (d == 0.0).then_some(low % 2 == 0)),
            (Cause::Division, "rounded toward zero", |_, _, _| Some(false)),
            (Cause::Division, "rounded away from zero", |_, _, _| Some(true)),
            (Cause::Division, "rounded downward", |_, negative, _| Some(negative)),
            (Cause::Division, "rounded upward", |_, negative, _| Some(!negative)),
            (Cause::Division, "rounded to odd", |_, _, low| Some(low % 2 == 0)),
        ];
        for (cause, detail, way) in ways {
            self.hold(cause, detail, |codes, seen| {
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
        // Half a step added and cut off, in the scale of the values themselves.
        self.cast(Cause::Division, "rounded to nearest integers", |y, _| {
            repr.encode(y.round_ties_even())
        });
        for format in self.problem.format.by_casts().into_iter().skip(1) {
            let (repr, name) = (format.repr(), format.convention.map_or("", |cast| cast.name));
            self.cast(
                Cause::Saturation,
                format!("as {name} casts what is too large or no number"),
                |y, want| {
                    if y.is_finite() && y.abs() <= repr.decode(top) {
                        want
                    } else {
                        repr.encode(y)
                    }
                },
            );
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
        let mut seen: Vec<u16> = self
            .wrong
            .iter()
            .filter_map(|(cell, i)| self.seen[*cell].stored[*i])
            .collect();
        seen.sort_unstable();
        seen.dedup();
        let sign = 1u16 << (self.problem.format.element.bits - 1);
        for code in seen.into_iter().take(4) {
            let shown = repr.decode(code);
            self.cast(
                Cause::Saturation,
                format!("{shown} for values beyond {max}"),
                |y, want| {
                    if y.abs() > max { code } else { want }
                },
            );
            self.cast(
                Cause::Saturation,
                format!("{shown} for values that become {max}"),
                |_, want| {
                    if repr.decode(want).abs() == max { code } else { want }
                },
            );
        }
        self.cast(
            Cause::Saturation,
            "values beyond the largest wrap around to the other sign",
            |y, want| {
                if y.abs() > max { want ^ sign } else { want }
            },
        );
        self.hold(
            Cause::Saturation,
            format!("values near or beyond {max} wrap around, become NaN or stop elsewhere"),
            |codes, seen| {
                let code = |i: usize| match seen.stored[i] {
                    Some(stored) if seen.y[i].abs() > max || !codes.repr.decode(stored).is_finite() => stored,
                    _ => seen.want[i],
                };
                Some((0..seen.want.len()).map(code).collect())
            },
        );
        self.hold(Cause::Division, "codes are 0 where the scale is 0", |codes, seen| {
            (codes.problem.value(seen.scale) == 0.0).then(|| vec![0; seen.want.len()])
        });
    }

    /// Quotients that are computed less exactly, or rounded twice.
    pub(super) fn precision(&mut self) {
        let repr = self.repr;
        let of = |element: &'static Element| move |y: f32| element.decode(element.encode(y));
        type Round = Box<dyn Fn(f32) -> f32>;
        let twice: [(&str, Round); 8] = [
            (
                "rounded to bf16 and then again",
                Box::new(|y| half::bf16::from_f32(y).to_f32()),
            ),
            (
                "rounded to f16 and then again",
                Box::new(|y| half::f16::from_f32(y).to_f32()),
            ),
            ("rounded to TF32 and then again", Box::new(|y| rounded(y, 13))),
            (
                "truncated to bf16 and then rounded",
                Box::new(|y| f32::from_bits(y.to_bits() & 0xffff_0000)),
            ),
            ("rounded to E5M2 and then again", Box::new(of(&E5M2))),
            ("rounded to E4M3 and then again", Box::new(of(&E4M3))),
            ("rounded to E2M3 and then again", Box::new(of(&E2M3))),
            ("rounded to an integer and then again", Box::new(f32::round_ties_even)),
        ];
        for (detail, round) in twice {
            self.cast(Cause::DoubleRounding, format!("the quotient is {detail}"), |y, _| {
                repr.encode(round(y))
            });
        }
        for (rounded_to, round) in [
            ("bf16", (|x| half::bf16::from_f32(x).to_f32()) as fn(f32) -> f32),
            ("f16", |x| half::f16::from_f32(x).to_f32()),
        ] {
            self.hold(
                Cause::Division,
                format!("what values are multiplied by is rounded to {rounded_to}"),
                |codes, seen| {
                    let ones = vec![1.0; seen.x.len()];
                    let factors = codes.maker.quotients(codes.problem, &seen.cell, &ones, seen.scale);
                    let code = |(x, factor): (&f32, &f32)| repr.encode(x * round(*factor));
                    Some(seen.x.iter().zip(&factors).map(code).collect())
                },
            );
        }
        for other in self.problem.format.by_rules().into_iter().skip(1) {
            let name = other.scaling.map_or("", |scaling| scaling.scale.rule().0);
            let globals = levels::levels(self.problem, &other);
            let Some((_, globals)) = globals.into_iter().last() else {
                continue;
            };
            let maker = Maker {
                format: other,
                globals,
                input: self.maker.input,
            };
            self.hold(Cause::Division, format!("as rule {name} divides"), |codes, seen| {
                maker.codes(codes.problem, &seen.cell, seen.scale)
            });
        }
        for (detail, nudge) in [
            ("the quotient is an ulp too small, just beside a tie", 0.999_999_8f32),
            ("the quotient is an ulp too large, just beside a tie", 1.000_000_2),
        ] {
            self.cast(Cause::Division, detail, |y, _| repr.encode(y * nudge));
        }
    }
}
