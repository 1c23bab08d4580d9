//! Which rules of the tables made the bytes.

use super::storage::Convention;
use crate::formats::{Encoded, Format, Global, GlobalScale, Group, Scale};
use crate::packed::{Grid, codes};

/// The bytes in the format's own order.
pub struct Canonical<'a> {
    pub x: &'a [f32],
    pub grid: Grid,
    pub codes: Vec<u16>,
    /// Bytes of all scales.
    pub scales: Vec<u8>,
    /// What the buffers do not hold is not judged.
    pub known_codes: Vec<bool>,
    pub known_scales: Vec<bool>,
    pub globals: Vec<f32>,
    pub convention: Option<Convention>,
}

/// One rule beside what is stored.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub format: Format,
    pub wrong_scales: usize,
    pub wrong_codes: usize,
    /// Blocks with a wrong scale or code.
    pub wrong_blocks: usize,
    /// The global scales mean something else than what the rule stores.
    pub wrong_globals: usize,
    /// No scale is more than one code off, no element more than one step.
    pub close: bool,
}

impl Candidate {
    pub fn exact(&self) -> bool {
        self.wrong_blocks + self.wrong_globals == 0
    }

    /// Whether the library's kernel may differ from the rule, and does by no more than it may.
    pub fn tolerated(&self) -> bool {
        let approximate = matches!(self.format.scaling.map(|s| s.scale), Some(Scale::E4m3(rule)) if rule.approximate);
        approximate && self.close && self.wrong_globals == 0
    }

    /// The rule, and the cast if it is not the element's own.
    pub fn name(&self) -> String {
        let rule = self.format.scaling.map(|scaling| scaling.scale.rule().0);
        match (rule, self.format.convention) {
            (Some(rule), None) => rule.into(),
            (Some(rule), Some(cast)) => format!("{rule} with the cast of {}", cast.name),
            (None, Some(cast)) => format!("the cast of {}", cast.name),
            (None, None) => format!("the cast to {}", self.format.element.name),
        }
    }
}

impl Canonical<'_> {
    /// All rules of the format's table with the element's own cast, and with every other cast where the scales are right
    /// and codes are not; the format's own first.
    pub fn candidates(&self, format: &Format) -> Vec<Candidate> {
        let mut all = Vec::new();
        for format in format.by_rules() {
            let own = self.candidate(&format);
            let others = match own.wrong_scales == 0 && own.wrong_codes > 0 {
                true => format
                    .by_casts()
                    .into_iter()
                    .skip(1)
                    .map(|format| self.candidate(&format))
                    .collect(),
                false => Vec::new(),
            };
            all.push(own);
            all.extend(others.into_iter().filter(Candidate::exact));
        }
        all
    }

    fn candidate(&self, format: &Format) -> Candidate {
        let (want, wrong_globals) = self.encode(format);
        let want_codes = codes(format, want.part("data"));
        let mut candidate = Candidate {
            format: *format,
            wrong_scales: 0,
            wrong_codes: 0,
            wrong_blocks: 0,
            wrong_globals,
            close: true,
        };
        let mut wrong = vec![false; self.grid.len()];
        for (group, wrong) in wrong.iter_mut().enumerate() {
            let (stored, want) = (
                self.scale(format, &self.scales, group),
                self.scale(format, want.part("scale"), group),
            );
            if self.known_scales[group] && stored != want {
                candidate.wrong_scales += 1;
                candidate.close &= stored.abs_diff(want) <= 1;
                *wrong = true;
            }
        }
        let sign = 1 << (format.element.bits - 1);
        for (at, (stored, want)) in self.codes.iter().zip(&want_codes).enumerate() {
            let group = self.grid.group_of(at);
            if stored != want && self.known_codes[at] && !self.is_nan(format, group) {
                candidate.wrong_codes += 1;
                // Codes next to each other, or zeros of both signs.
                let apart = (stored & !sign).abs_diff(want & !sign);
                candidate.close &= apart <= 1 && ((stored ^ want) & sign == 0 || (stored | want) & !sign <= 1);
                wrong[group] = true;
            }
        }
        candidate.wrong_blocks = wrong.iter().filter(|wrong| **wrong).count();
        candidate
    }

    /// What a rule makes of the source under the stored global scales, and how many of those mean something else to it.
    pub fn encode(&self, format: &Format) -> (Encoded, usize) {
        let cols = self.grid.cols;
        let Some(Scale::E4m3(rule)) = format
            .scaling
            .map(|scaling| scaling.scale)
            .filter(|_| format.global.is_some())
        else {
            return (format.encode(self.x, cols, GlobalScale::Own), 0);
        };
        match self.convention {
            Some(convention) if convention.stored != rule.stored || convention.factor != 1.0 => {
                let globals: Vec<f32> = (0..self.globals.len()).map(|at| self.translate(format, at)).collect();
                (
                    format.encode(self.x, cols, GlobalScale::Stored(&globals)),
                    globals.len(),
                )
            }
            _ => (format.encode(self.x, cols, GlobalScale::Stored(&self.globals)), 0),
        }
    }

    /// A global scale as the rule of `format` stores it.
    fn translate(&self, format: &Format, at: usize) -> f32 {
        let (global, own) = (self.globals[at], self.own_amax(format, at));
        let amax = match self.convention.map(|convention| convention.stored) {
            _ if self.convention.is_some_and(|convention| convention.factor != 1.0) => own,
            _ if self.meaning(own).to_bits() == global.to_bits() => own,
            Some(Global::Decode) => global * 2688.0,
            Some(Global::Encode) => 2688.0 / global,
            _ => global,
        };
        format.global_of(amax).unwrap_or(1.0)
    }

    /// What is stored of a largest magnitude by the convention that was found.
    fn meaning(&self, amax: f32) -> f32 {
        match self.convention.map(|convention| convention.stored) {
            Some(Global::Decode) => amax / 2688.0,
            Some(Global::Encode) => (2688.0 / amax).min(f32::MAX),
            _ => amax,
        }
    }

    /// The global scales that are not of the largest magnitude they stand above: calibrated, or wrong.
    pub fn foreign_globals(&self, format: &Format) -> usize {
        let told = self.convention.is_some_and(|convention| convention.factor == 1.0);
        let foreign = |at: &usize| self.meaning(self.own_amax(format, *at)).to_bits() != self.globals[*at].to_bits();
        if told {
            (0..self.globals.len()).filter(foreign).count()
        } else {
            0
        }
    }

    /// The largest magnitude under a global scale; NaN beats all.
    pub fn own_amax(&self, format: &Format, at: usize) -> f32 {
        let cols = self.grid.cols;
        let part = match format.global {
            Some(Group::Token) => &self.x[at * cols..(at + 1) * cols],
            _ => self.x,
        };
        f32::from_bits(part.iter().map(|x| x.abs().to_bits()).max().unwrap_or(0))
    }

    /// The bits of a scale; all NaN are one.
    pub fn scale(&self, format: &Format, bytes: &[u8], group: usize) -> u32 {
        let Some(scaling) = format.scaling else { return 0 };
        let size = scaling.scale.bytes();
        let bytes = &bytes[group * size..(group + 1) * size];
        match (bytes, scaling.scale.value(bytes).is_nan()) {
            (&[a, b, c, d], false) => u32::from_le_bytes([a, b, c, d]),
            (&[byte], _) => u32::from(byte),
            _ => 0x7fc0_0000,
        }
    }

    /// Whether the stored scale is NaN, so that its codes mean nothing.
    pub fn is_nan(&self, format: &Format, group: usize) -> bool {
        format.scaling.is_some_and(|scaling| {
            let size = scaling.scale.bytes();
            scaling
                .scale
                .value(&self.scales[group * size..(group + 1) * size])
                .is_nan()
        })
    }
}
