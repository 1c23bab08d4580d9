//! 16-bit floats for scales and zero points.

use safetensors::Dtype;

use super::cast::Cast;
use super::element::{BF16_CAST, F16_CAST};
use super::minifloat::Added;

/// A 16-bit float type for scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    Bf16,
}

const F16_ADDED: Added = Added::new(F16_CAST).unwrap();

impl Half {
    /// Returns the name of the type in format strings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    pub(super) const fn dtype(self) -> Dtype {
        match self {
            Self::F16 => Dtype::F16,
            Self::Bf16 => Dtype::BF16,
        }
    }

    /// Rounds to the nearest value, ties to even; numbers beyond the range become infinity.
    #[inline(always)]
    pub(super) fn nearest(self, x: f32) -> f32 {
        self.value(self.bits(x))
    }

    /// Returns the smallest value not below `x`. `x` must not be negative; it may be NaN.
    pub(super) fn up(self, x: f32) -> f32 {
        let nearest = self.nearest(x);
        // Among numbers that are not negative, a larger code means a larger number, so the next code is the next larger value.
        if nearest < x {
            self.value(self.bits(nearest) + 1)
        } else {
            nearest
        }
    }

    /// Returns the little-endian bytes of a value that the type represents exactly.
    #[inline(always)]
    pub(super) fn bytes(self, value: f32) -> [u8; 2] {
        self.bits(value).to_le_bytes()
    }

    #[inline(always)]
    fn bits(self, value: f32) -> u16 {
        (match self {
            Self::F16 => F16_ADDED.encode(value),
            Self::Bf16 => BF16_CAST.encode(value),
        }) as u16
    }

    /// Returns the value of a code.
    #[inline(always)]
    pub(super) fn value(self, code: u16) -> f32 {
        match self {
            Self::F16 => F16_CAST.decode(u32::from(code)),
            Self::Bf16 => BF16_CAST.decode(u32::from(code)),
        }
    }
}
