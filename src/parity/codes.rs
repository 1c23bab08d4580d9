//! Why codes are not those of their scales: casts, orders, other scales, other inputs, held against every code that
//! differs and every one that does not.

use super::choose::{Tried, choose};
use super::maker::{INPUTS, Maker, rounded};
use super::place::Place;
use super::problem::{Cell, Problem, spread};
use super::recode;
use super::verify::{Tally, View};
use super::{Cause, Example, Finding};
use crate::formats::{Element, Repr};

/// Cells that are looked at, of those with wrong codes and of the others.
const WRONG: usize = 256;
const RIGHT: usize = 128;
/// Elements that are looked at.
const ELEMENTS: usize = 1 << 13;

/// A cell whose codes are looked at.
struct Seen {
    cell: Cell,
    /// The input of the maker.
    x: Vec<f32>,
    /// What the cast sees of it.
    y: Vec<f32>,
    /// The scale the codes are held against, and the maker's own.
    scale: u32,
    own: u32,
    /// The codes before any recoding that the fit has found.
    want: Vec<u16>,
    stored: Vec<Option<u16>>,
}

/// Explanations are tried for these.
struct Codes<'a> {
    problem: &'a Problem<'a>,
    maker: &'a Maker,
    view: &'a View<'a>,
    repr: Repr,
    seen: Vec<Seen>,
    /// Elements that differ and that do not, as cell and index in it.
    wrong: Vec<(usize, usize)>,
    right: Vec<(usize, usize)>,
    tried: Vec<Tried>,
}

/// The findings on codes.
pub fn classify(problem: &Problem, maker: &Maker, view: &View, tally: &Tally) -> Vec<Finding> {
    if tally.elements.is_empty() {
        return Vec::new();
    }
    let place = tally.hits.place();
    let mut codes = Codes::new(problem, maker, view, tally, &place);
    codes.try_all();
    let (chosen, open) = choose(&codes.tried, codes.wrong.len());
    let looked = codes.wrong.len().max(1);
    let count = |of: usize| (of as u128 * tally.wrong_codes as u128).div_ceil(looked as u128) as usize;
    let finding = |cause, detail: String, others: Vec<String>, some: &[usize]| Finding {
        cause,
        detail,
        others,
        place: place.text("row", "column"),
        count: count(some.len()).min(tally.wrong_codes),
        of: problem.grid.rows * problem.grid.cols,
        unit: "codes",
        example: some.first().map(|index| codes.example(codes.wrong[*index])),
    };
    let mut findings: Vec<Finding> = chosen
        .iter()
        .map(|chosen| {
            finding(
                chosen.cause,
                chosen.detail.clone(),
                chosen.others.clone(),
                &chosen.explained,
            )
        })
        .collect();
    if !open.is_empty() {
        let (cause, detail) = codes.evidence(&open);
        findings.push(finding(cause, detail, Vec::new(), &open));
    }
    findings
}

/// The codes below and above a number in magnitude, without sign; equal where there is nothing to round.
fn bracket(repr: Repr, top: u16, y: f32) -> (u16, u16) {
    let y = y.abs();
    let near = repr.encode(y).min(top);
    let value = repr.decode(near);
    if value == y || (value < y && near == top) || y.is_nan() {
        (near, near)
    } else if value < y {
        (near, near + 1)
    } else {
        (near - 1, near)
    }
}

impl<'a> Codes<'a> {
    fn new(problem: &'a Problem<'a>, maker: &'a Maker, view: &'a View<'a>, tally: &Tally, place: &Place) -> Self {
        let mut codes = Self {
            problem,
            maker,
            view,
            repr: maker.format.repr(),
            seen: Vec::new(),
            wrong: Vec::new(),
            right: Vec::new(),
            tried: Vec::new(),
        };
        let number = |most: usize| (ELEMENTS / problem.grid.tile.1.min(128)).clamp(16, most);
        let wrong = spread(tally.elements.len(), number(WRONG)).into_iter();
        let mut cells: Vec<Cell> = wrong.map(|at| problem.cell_of(tally.elements[at])).collect();
        let right = spread(problem.grid.rows * problem.grid.cols, number(RIGHT)).into_iter();
        cells.extend(right.map(|at| problem.cell_of(at)));
        cells.sort_by_key(|cell| cell.at);
        cells.dedup();
        for cell in cells {
            let Some(seen) = codes.see(cell) else { continue };
            let index = codes.seen.len();
            for i in 0..cell.len {
                let Some(stored) = seen.stored[i] else { continue };
                let at = cell.at + i;
                if stored != view.code_as_stored(seen.want[i]) {
                    codes.wrong.push((index, i));
                } else if place.contains(at / problem.grid.cols, at % problem.grid.cols) {
                    codes.right.push((index, i));
                }
            }
            codes.seen.push(seen);
        }
        codes
    }

    fn see(&self, cell: Cell) -> Option<Seen> {
        let Self {
            problem, maker, view, ..
        } = *self;
        let (own, stored) = match maker.format.scaling {
            None => (0, 0),
            Some(_) => {
                let stored = view.scale(problem, cell.group);
                let own = maker.scale(problem, cell.group).or(stored)?;
                (own, stored.unwrap_or(own))
            }
        };
        if problem.value(stored).is_nan() {
            return None;
        }
        let scale = if view.under_stored { stored } else { own };
        let x = maker.values(problem, &cell)?;
        let y = maker.quotients(problem, &cell, &x, scale);
        let want = y.iter().map(|y| self.repr.encode(*y)).collect();
        let stored = (cell.at..cell.at + cell.len).map(|at| view.code(problem, at)).collect();
        Some(Seen {
            cell,
            x,
            y,
            scale,
            own,
            want,
            stored,
        })
    }

    fn hold(&mut self, cause: Cause, detail: impl Into<String>, predict: impl Fn(&Self, &Seen) -> Option<Vec<u16>>) {
        let predicted: Vec<Option<Vec<u16>>> = self.seen.iter().map(|seen| predict(self, seen)).collect();
        let is = |&(cell, i): &(usize, usize)| {
            let code = predicted[cell].as_ref().map(|codes| self.view.code_as_stored(codes[i]));
            (code, code == self.seen[cell].stored[i])
        };
        let explains: Vec<bool> = self.wrong.iter().map(|at| is(at).1).collect();
        if !explains.contains(&true) {
            return;
        }
        let alarm = |at: &&(usize, usize)| matches!(is(at), (Some(_), false));
        let alarms = self.right.iter().filter(alarm).count() as f64 / self.right.len().max(1) as f64;
        let detail = detail.into();
        self.tried.push(Tried {
            cause,
            detail,
            explains,
            alarms,
        });
    }

    /// Each code from its quotient and the code that is expected.
    fn cast(&mut self, cause: Cause, detail: impl Into<String>, cast: impl Fn(f32, u16) -> u16) {
        self.hold(cause, detail, |_, seen| {
            Some(seen.y.iter().zip(&seen.want).map(|(y, want)| cast(*y, *want)).collect())
        });
    }

    fn try_all(&mut self) {
        self.rounding();
        self.limits();
        self.precision();
        self.scales();
        self.recodes();
        self.orders();
        self.inputs();
        self.never_written();
        self.steps();
    }

    /// The code of a magnitude with the sign of a number.
    fn signed(&self, magnitude: u16, negative: bool) -> u16 {
        let bits = self.problem.format.element.bits;
        let mask = ((1u32 << bits) - 1) as u16;
        match (self.repr, negative) {
            (_, false) => magnitude,
            (Repr::Integer(_), true) => magnitude.wrapping_neg() & mask,
            (_, true) => magnitude | 1 << (bits - 1),
        }
    }

    fn top(&self) -> u16 {
        self.repr.encode(self.problem.format.element.max())
    }

    fn rounding(&mut self) {
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

    fn limits(&mut self) {
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
    fn precision(&mut self) {
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
            ("rounded to E5M2 and then again", Box::new(of(&crate::formats::E5M2))),
            ("rounded to E4M3 and then again", Box::new(of(&crate::formats::E4M3))),
            ("rounded to E2M3 and then again", Box::new(of(&crate::formats::E2M3))),
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
            let globals = super::search::levels(self.problem, &other);
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

    /// Other scales than those the codes stand under.
    fn scales(&mut self) {
        if self.maker.format.scaling.is_none() {
            return;
        }
        self.hold(
            Cause::Stale,
            "made with the scale the rule gives, not the one that is stored",
            |codes, seen| codes.maker.codes(codes.problem, &seen.cell, seen.own),
        );
        let (down, across) = self.problem.grid.count;
        for (name, dr, dc) in [
            ("of the block before", 0isize, -1isize),
            ("of the next block", 0, 1),
            ("of the row before", -1, 0),
            ("of the next row", 1, 0),
        ] {
            self.hold(
                Cause::Stale,
                format!("made with the scale {name}"),
                move |codes, seen| {
                    let [r, c] = codes.problem.grid.place(seen.cell.group);
                    let (r, c) = (r.checked_add_signed(dr)?, c.checked_add_signed(dc)?);
                    let inside = r < down && c < across;
                    let scale = codes.view.scale(codes.problem, r * across + c).filter(|_| inside)?;
                    codes.maker.codes(codes.problem, &seen.cell, scale)
                },
            );
        }
        for (detail, group) in [
            (
                "made with the scale of the first block",
                (|_, _| 0) as fn(usize, usize) -> usize,
            ),
            ("made with the scale of the first block of the row", |group, across| {
                group / across * across
            }),
            ("made with the scale of the first row", |group, across| group % across),
        ] {
            self.hold(Cause::Stale, detail, move |codes, seen| {
                let scale = codes.view.scale(codes.problem, group(seen.cell.group, across))?;
                codes.maker.codes(codes.problem, &seen.cell, scale)
            });
        }
        let repr = self.repr;
        self.hold(Cause::Scaling, "made without any scale", |_, seen| {
            Some(seen.x.iter().map(|x| repr.encode(*x)).collect())
        });
        self.hold(Cause::Scaling, "made with the reciprocals of the scales", |_, seen| {
            let code = |(x, y): (&f32, &f32)| repr.encode(if *y == 0.0 { 0.0 } else { x * (x / y) });
            Some(seen.x.iter().zip(&seen.y).map(code).collect())
        });
        if self.maker.format.global.is_some() {
            self.hold(
                Cause::GlobalScale,
                "codes are made without the global scale",
                |codes, seen| {
                    let scale = codes.problem.value(seen.scale);
                    Some(seen.x.iter().map(|x| repr.encode(x / scale)).collect())
                },
            );
        }
        let element = self.problem.format.element.max();
        let mut factors = vec![
            2.0,
            0.5,
            4.0,
            0.25,
            8.0,
            0.125,
            16.0,
            1.0 / 16.0,
            1.5,
            0.75,
            2.0 / 3.0,
            4.0 / 3.0,
            0.9,
            1.1,
        ];
        factors
            .extend([240.0, 448.0, 57344.0, 127.0, 6.0, 7.0, 127.5, 128.0, 256.0, 8.0].map(|max: f32| max / element));
        factors.extend([element, 1.0 / element]);
        for factor in factors.into_iter().filter(|factor: &f32| (factor - 1.0).abs() > 1e-6) {
            let what = recode::factor_name(f64::from(factor), 1e-4);
            self.cast(Cause::Scaling, format!("quotients are {what}"), |y, _| {
                repr.encode(y * factor)
            });
        }
    }

    fn recodes(&mut self) {
        let bits = self.problem.format.element.bits;
        for recode in recode::of_codes(self.repr, bits) {
            self.cast(recode.cause, format!("codes are {}", recode.name), |_, want| {
                (recode.apply)(want.into()) as u16
            });
        }
        for other in recode::others(self.problem.format.element) {
            self.cast(Cause::Encoding, format!("codes are {}", other.name), |y, _| {
                other.encode(y)
            });
        }
    }

    /// Codes at other places of their cell, or of other cells.
    fn orders(&mut self) {
        for (detail, at) in PERMUTED {
            self.hold(Cause::Layout, *detail, |_, seen| {
                let n = seen.want.len();
                Some((0..n).map(|i| seen.want[at(i, n).min(n - 1)]).collect())
            });
        }
        if self.problem.format.element.bits == 4 {
            self.hold(Cause::NibbleOrder, "in some blocks", |_, seen| {
                Some(
                    (0..seen.want.len())
                        .map(|i| seen.want[(i ^ 1).min(seen.want.len() - 1)])
                        .collect(),
                )
            });
        }
        let (rows, cols) = (self.problem.grid.rows as isize, self.problem.grid.cols as isize);
        let width = self.problem.grid.tile.1.min(128) as isize;
        for (detail, cause, by) in [
            ("the codes of the row before", Cause::Stale, -cols),
            ("the codes of the next row", Cause::Stale, cols),
            ("the codes of the block before", Cause::Stale, -width),
            ("the codes of the next block", Cause::Stale, width),
            ("the codes of two rows before", Cause::Stale, -2 * cols),
            ("the codes of two rows on", Cause::Stale, 2 * cols),
            ("the codes of the element before: one place late", Cause::Layout, -1),
            ("the codes of the next element: one place early", Cause::Layout, 1),
            ("two places late", Cause::Layout, -2),
            ("two places early", Cause::Layout, 2),
        ] {
            self.hold(cause, detail, |codes, seen| {
                let start = isize::try_from(seen.cell.at).ok()? + by;
                let whole = start >= 0 && start + seen.want.len() as isize <= rows * cols;
                let start = usize::try_from(start).ok().filter(|_| whole)?;
                let code = |at: usize| {
                    let cell = Cell {
                        len: 1,
                        at,
                        group: codes.problem.grid.group_of(at),
                    };
                    let scale = codes.maker.scale(codes.problem, cell.group).unwrap_or(seen.scale);
                    Some(codes.maker.codes(codes.problem, &cell, scale)?[0])
                };
                (start..start + seen.want.len()).map(code).collect()
            });
        }
    }

    fn inputs(&mut self) {
        for input in INPUTS {
            let maker = Maker {
                input: Some(input),
                ..self.maker.clone()
            };
            self.hold(input.cause, format!("the input is {}", input.detail), |codes, seen| {
                maker.codes(codes.problem, &seen.cell, seen.scale)
            });
        }
    }

    fn never_written(&mut self) {
        let mut stored: Vec<u16> = self
            .wrong
            .iter()
            .filter_map(|(cell, i)| self.seen[*cell].stored[*i])
            .collect();
        stored.sort_unstable();
        let runs = stored.chunk_by(|a, b| a == b);
        if let Some(run) = runs.max_by_key(|run| run.len()) {
            let code = run[0];
            let shown = self.show(code);
            self.cast(
                Cause::Missing,
                format!("all codes are {shown}: never written, or written over"),
                |_, _| code,
            );
        }
    }

    /// One step off, some up and some down.
    fn steps(&mut self) {
        let (repr, top) = (self.repr, self.top());
        let distance = |&(cell, i): &(usize, usize)| {
            let seen = &self.seen[cell];
            let (low, high) = bracket(repr, top, seen.y[i]);
            let (low, high) = (f64::from(repr.decode(low)), f64::from(repr.decode(high)));
            let stored = repr.decode(seen.stored[i]?);
            let same = stored == 0.0 || (stored < 0.0) == (seen.y[i] < 0.0);
            let stored = f64::from(stored).abs();
            let far = (stored - f64::from(seen.y[i].abs())).abs() / (high - low);
            (same && high > low && (stored == low || stored == high)).then_some((far, stored == high))
        };
        let distances: Vec<(f64, bool)> = self.wrong.iter().filter_map(distance).collect();
        if distances.len() * 20 < self.wrong.len() * 19 || distances.is_empty() {
            return;
        }
        let mean = distances.iter().map(|(far, _)| far).sum::<f64>() / distances.len() as f64;
        let most = distances.iter().map(|(far, _)| *far).fold(0.0, f64::max);
        let up = distances.iter().filter(|(_, up)| *up).count() as f64 / distances.len() as f64;
        let (cause, detail) = if most < 0.5 + 1e-4 {
            (Cause::Division, "the quotient is an ulp or two off, just beside a tie")
        } else if most < 0.75 && (mean - 0.5) < 0.6 * (most - 0.5) {
            (
                Cause::Division,
                "the quotient is less exact than f32: only values near a tie differ",
            )
        } else if (0.6..0.72).contains(&mean) && (0.3..0.7).contains(&up) {
            (
                Cause::Stochastic,
                "rounded up or down at random, the nearer one more often",
            )
        } else {
            return;
        };
        self.hold(cause, detail, |_, seen| {
            let code = |(stored, want): (&Option<u16>, &u16)| stored.unwrap_or(*want);
            Some(seen.stored.iter().zip(&seen.want).map(code).collect())
        });
    }

    /// What is seen of codes that nothing explains.
    fn evidence(&self, open: &[usize]) -> (Cause, String) {
        let code = |index: &usize| {
            let (cell, i) = self.wrong[*index];
            (
                self.view.code_as_stored(self.seen[cell].want[i]),
                self.seen[cell].stored[i].unwrap_or(0),
            )
        };
        if let Some(detail) = self.table() {
            return (Cause::Encoding, detail);
        }
        if let Some(detail) = self.lanes() {
            return (Cause::Layout, detail);
        }
        let pairs: Vec<(u16, u16)> = open.iter().map(code).collect();
        let sign = 1u16 << (self.problem.format.element.bits - 1);
        let of = |what: fn(u16, u16, u16) -> bool| {
            let count = pairs.iter().filter(|(want, stored)| what(*want, *stored, sign)).count();
            100 * count / pairs.len().max(1)
        };
        let steps = of(|want, stored, sign| (want ^ stored) & sign == 0 && want.abs_diff(stored) == 1);
        let signs = of(|want, stored, sign| want ^ stored == sign);
        let zeros = of(|_, stored, sign| stored & !sign == 0);
        let mut seen = Vec::new();
        for (share, what) in [
            (steps, "one step off"),
            (signs, "of the other sign"),
            (zeros, "stored as 0"),
        ] {
            if share > 0 {
                seen.push(format!("{share} % are {what}"));
            }
        }
        let same = self.permuted_cells();
        if same > 0.9 {
            return (
                Cause::Layout,
                "the right codes at other places of their block, in an order that has no name here".into(),
            );
        }
        let seen = if seen.is_empty() {
            "most are several steps off".into()
        } else {
            seen.join(", ")
        };
        (Cause::Unknown, format!("codes no cause explains: {seen}"))
    }

    /// Whether every code is stored as another, always the same.
    fn table(&self) -> Option<String> {
        let mut counts = std::collections::BTreeMap::<u16, std::collections::BTreeMap<u16, usize>>::new();
        for (cell, i) in self.wrong.iter().chain(&self.right) {
            let seen = &self.seen[*cell];
            *counts
                .entry(seen.want[*i])
                .or_default()
                .entry(seen.stored[*i]?)
                .or_default() += 1;
        }
        let (mut same, mut all, mut table) = (0, 0, Vec::new());
        for (want, stored) in &counts {
            let (to, most) = stored.iter().max_by_key(|(_, count)| **count)?;
            all += stored.values().sum::<usize>();
            same += most;
            if self.view.code_as_stored(*want) != *to {
                table.push(format!("{want:#04x} as {to:#04x}"));
            }
        }
        // As many codes would be alike by chance only if there are few.
        let enough = all >= 20 * counts.len() && table.len() >= 2;
        (enough && same * 50 >= all * 49).then(|| {
            let shown = table.iter().take(4).cloned().collect::<Vec<_>>().join(", ");
            format!(
                "codes are stored as others, always the same: {shown}{}",
                if table.len() > 4 { ", …" } else { "" }
            )
        })
    }

    /// Whether the elements of every block are in one other order.
    fn lanes(&self) -> Option<String> {
        let width = self.problem.grid.tile.1.min(128);
        let cells: Vec<&Seen> = self.seen.iter().filter(|seen| seen.want.len() == width).collect();
        if cells.len() < 16 {
            return None;
        }
        let same = |i: usize, j: usize| {
            let alike = |seen: &&&Seen| seen.stored[i] == Some(self.view.code_as_stored(seen.want[j]));
            cells.iter().filter(alike).count()
        };
        let from: Option<Vec<usize>> = (0..width)
            .map(|i| (0..width).find(|j| same(i, *j) * 50 >= cells.len() * 49))
            .collect();
        let from = from?;
        let shown: Vec<String> = from.iter().take(16).map(ToString::to_string).collect();
        Some(format!(
            "the elements of every {width} are stored in another order: {}{}",
            shown.join(" "),
            if width > 16 { " …" } else { "" }
        ))
    }

    /// The share of cells whose codes are the expected ones in another order.
    fn permuted_cells(&self) -> f64 {
        let mut cells: Vec<usize> = self.wrong.iter().map(|(cell, _)| *cell).collect();
        cells.dedup();
        let permuted = |cell: &&usize| {
            let seen = &self.seen[**cell];
            let mut want: Vec<u16> = seen.want.iter().map(|code| self.view.code_as_stored(*code)).collect();
            let mut stored: Vec<u16> = seen.stored.iter().flatten().copied().collect();
            want.sort_unstable();
            stored.sort_unstable();
            want == stored
        };
        cells.iter().filter(permuted).count() as f64 / cells.len().max(1) as f64
    }

    fn show(&self, code: u16) -> String {
        format!("{code:#04x} ({})", self.repr.decode(code))
    }

    fn example(&self, (cell, i): (usize, usize)) -> Example {
        let seen = &self.seen[cell];
        let (at, cols) = (seen.cell.at + i, self.problem.grid.cols);
        let want = self.view.code_as_stored(seen.want[i]);
        Example {
            place: vec![at / cols, at % cols],
            source: vec![seen.x[i]],
            stored: self.show(seen.stored[i].unwrap_or(0)),
            expected: format!("{} for the quotient {}", self.show(want), seen.y[i]),
        }
    }
}

type Permuted = (&'static str, fn(usize, usize) -> usize);

const PERMUTED: &[Permuted] = &[
    ("every two elements are exchanged", |i, _| i ^ 1),
    ("every two pairs of elements are exchanged", |i, _| i ^ 2),
    ("every two fours of elements are exchanged", |i, _| i ^ 4),
    ("every four elements are in reverse order", |i, _| i ^ 3),
    ("every eight elements are in reverse order", |i, _| i ^ 7),
    ("the halves of blocks are exchanged", |i, n| (i + n / 2) % n),
    ("blocks are in reverse order", |i, n| n - 1 - i),
    ("blocks are rotated by one element", |i, n| (i + 1) % n),
    ("blocks are rotated by one element the other way", |i, n| {
        (i + n - 1) % n
    }),
    ("the halves of blocks are interleaved", |i, n| i / 2 + i % 2 * (n / 2)),
    ("even elements come before odd ones in blocks", |i, n| {
        i * 2 % n + i * 2 / n
    }),
];
