//! Scales: rules that compute the stored scale of a block, and the factor of its elements, from the block's largest magnitude.
//!
//! Each library's rule is a row of a table. Unless a rule says otherwise, a NaN or an infinity in a block makes the scale NaN,
//! and all decoded values of the block are NaN. If the scale stayed finite, a cast to an element without NaN would hide the NaN.

use safetensors::Dtype;

use super::cast::{Cast, Limits, Operation};
use super::element::{Element, UE4M3_CAST};
use super::f32_scale::{F32_RULES, F32Rule, HALF_RULES};
use super::half::Half;
use super::nvfp4::{Level, NVFP4_RULES, NVFP4_SINGLE_RULES, Nvfp4Rule};
use super::power::{POWER_RULES, PowerRule, e8m0_value};
use super::zero_point::{AFFINE_RULES, Affine, read};

/// A stored scale: its type and the rule that computes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// A power of two in one byte (OCP MX v1.0 §5.4.1).
    E8m0(&'static PowerRule),
    /// A scale stored as f32.
    F32(&'static F32Rule),
    /// A scale stored as f16 or bf16.
    Half(Half, &'static F32Rule),
    /// A scale with a zero point, for unsigned codes.
    Affine(Affine),
    /// FP8 E4M3 without a sign, the block scale of NVFP4.
    E4m3(&'static Nvfp4Rule),
}

impl Scale {
    /// Returns the scales of type `kind` for an element, one for each rule, the default first; empty for an unknown kind.
    /// `two_levels` is true if the format also has a global scale.
    pub fn table(kind: &str, element: &Element, two_levels: bool) -> Vec<Self> {
        let half = [Half::F16, Half::Bf16].into_iter().find(|half| half.name() == kind);
        match (kind, half) {
            ("f32", _) | (_, Some(_)) if element.needs_zero_point() => {
                let affine = |rule| Self::Affine(Affine { half, rule });
                AFFINE_RULES.iter().copied().map(affine).collect()
            }
            (_, Some(half)) => HALF_RULES.iter().copied().map(|rule| Self::Half(half, rule)).collect(),
            ("e8m0", _) => POWER_RULES.iter().copied().map(Self::E8m0).collect(),
            ("f32", _) => F32_RULES.iter().copied().map(Self::F32).collect(),
            ("e4m3", _) if two_levels => NVFP4_RULES.iter().copied().map(Self::E4m3).collect(),
            ("e4m3", _) => NVFP4_SINGLE_RULES.iter().copied().map(Self::E4m3).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the size of one scale in bytes.
    pub const fn bytes(&self) -> usize {
        match self {
            Self::E8m0(_) | Self::E4m3(_) => 1,
            Self::F32(_) | Self::Affine(Affine { half: None, .. }) => 4,
            Self::Half(..) | Self::Affine(_) => 2,
        }
    }

    /// Returns the type of the scales in files.
    pub(super) fn dtype(&self) -> Dtype {
        match self {
            Self::E8m0(_) => Dtype::F8_E8M0,
            Self::F32(_) => Dtype::F32,
            Self::Half(half, _) => half.dtype(),
            Self::Affine(affine) => affine.dtype(),
            Self::E4m3(_) => Dtype::F8_E4M3,
        }
    }

    /// Returns the name of the scale's type in format strings.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::E8m0(_) => "e8m0",
            Self::F32(_) => "f32",
            Self::Half(half, _) => half.name(),
            Self::Affine(affine) => affine.half.map_or("f32", Half::name),
            Self::E4m3(_) => "e4m3",
        }
    }

    /// Returns the name and the description of the rule.
    pub const fn rule(&self) -> (&'static str, &'static str) {
        match self {
            Self::E8m0(rule) => (rule.name, rule.doc),
            Self::F32(rule) | Self::Half(_, rule) => (rule.name, rule.doc),
            Self::Affine(affine) => (affine.rule.name, affine.rule.doc),
            Self::E4m3(rule) => (rule.name, rule.doc),
        }
    }

    /// Returns the operation that scales elements before their cast. Scales with a zero point use [`Affine::apply`] instead.
    pub(super) fn division(&self) -> Operation {
        match self {
            Self::E8m0(_) | Self::Affine(_) => Operation::by(false),
            Self::F32(rule) | Self::Half(_, rule) => rule.operation(),
            Self::E4m3(rule) => rule.operation(),
        }
    }

    /// Computes the scale of each block from `amax`, the bits of the block's largest magnitude. Fills `stored` with the bytes of
    /// the scales, and `factors` with the number by which each block's elements are multiplied or divided. `x` holds the
    /// elements, in blocks of `width`; only rules that try several scales read them.
    #[inline(always)]
    pub(super) fn encode(
        &self,
        amax: &[u32],
        (x, width): (&[f32], usize),
        target: &Target,
        stored: &mut [u8],
        factors: &mut [f32],
    ) {
        match self {
            Self::E8m0(rule) => rule.encode(amax, &target.limits, stored, factors),
            Self::F32(rule) => rule.encode(amax, &target.limits, |x| (x, x.to_le_bytes()), stored, factors),
            Self::Half(half, rule) => rule.encode(amax, &target.limits, |x| rule.in_half(*half, x), stored, factors),
            Self::Affine(_) => unreachable!("zero points need more than the largest magnitude"),
            Self::E4m3(rule) => rule.encode(amax, (x, width), &target.level, stored, factors),
        }
    }

    /// Returns the number by which encoding multiplies or divides the elements of a block. `amax` holds the bits of the block's
    /// largest magnitude, and `bytes` the block's stored scale.
    pub(super) fn factor(&self, bytes: &[u8], amax: u32, level: &Level) -> f32 {
        match self {
            Self::E8m0(rule) => rule.factor(bytes[0]),
            Self::F32(rule) => rule.factor(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
            Self::Half(half, rule) => rule.factor(half.value(u16::from_le_bytes([bytes[0], bytes[1]]))),
            Self::Affine(_) => self.value(bytes),
            Self::E4m3(rule) => rule.factor(rule.division, amax, UE4M3_CAST.decode(u32::from(bytes[0])), level),
        }
    }

    /// Returns the factor by which decoding multiplies codes, for the stored scale `bytes`; a global scale is not included. If
    /// the rule stores the factor of encoding, this is the inverse of the stored number.
    pub fn value(&self, bytes: &[u8]) -> f32 {
        if let Self::E4m3(_) = self {
            return UE4M3_CAST.decode(u32::from(bytes[0]));
        }
        let mut factor = [0.0];
        self.decode(bytes, &Level::ONE, &mut factor);
        let (divide, [factor]) = (self.multiplication().divide, factor);
        if divide { 1.0 / factor } else { factor }
    }

    /// Returns the operation with which decoding scales the values of codes.
    pub(super) fn multiplication(&self) -> Operation {
        match self {
            Self::F32(rule) | Self::Half(_, rule) => rule.inverse(),
            Self::E8m0(_) | Self::E4m3(_) | Self::Affine(_) => Operation::by(false),
        }
    }

    /// Reads stored scales as the numbers by which decoding multiplies or divides codes.
    #[inline(always)]
    pub(super) fn decode(&self, stored: &[u8], level: &Level, factors: &mut [f32]) {
        match self {
            Self::E8m0(_) => read(stored, |[code]| e8m0_value(code), factors),
            Self::F32(_) => read(stored, f32::from_le_bytes, factors),
            Self::Half(half, _) => read(stored, |bytes| half.value(u16::from_le_bytes(bytes)), factors),
            Self::Affine(affine) => affine.read_scales(stored, factors),
            Self::E4m3(rule) => {
                let value = |[code]: [u8; 1]| rule.decode(UE4M3_CAST.decode(u32::from(code)), level);
                read(stored, value, factors);
            }
        }
    }
}

/// Inputs of a scale rule: limits of the element, and factors of the global scale.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub limits: Limits,
    pub level: Level,
}

impl Target {
    /// Returns the inputs of a scale rule for blocks without a global scale.
    pub fn alone(element: &Element) -> Self {
        Self {
            limits: element.limits(),
            level: Level::ONE,
        }
    }
}
