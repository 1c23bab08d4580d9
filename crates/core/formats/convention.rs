//! Casts to number formats as libraries perform them. Libraries differ, since a format does not define e.g. the rounding of ties
//! or the result of an overflow.

use super::element::{Element, Integer, Repr, Whole, element};
use super::minifloat::{FloatCast, NanCode, Overflow, Policy, Ties, Zeros};
use super::power::PowerCast;

/// Casts from f32 as one library performs them.
#[derive(Debug)]
pub struct Convention {
    /// Name in format strings and on the command line, e.g. `torch` in `e4m3(torch)`.
    pub name: &'static str,
    /// One line that names the library, and the differences between its casts and the default casts.
    pub doc: &'static str,
    /// Casts, each with the name of its element.
    pub casts: &'static [(&'static str, Rounding)],
}

/// A library's cast, which may differ from the element's default cast.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rounding {
    /// A cast to a float element.
    Float(Policy),
    /// A cast to an integer element.
    Integer(Whole),
    /// A cast to E8M0, a bare power of two.
    Power(PowerCast),
}

impl Convention {
    /// Returns the representation of `element` with this library's cast; `None` if the library has no cast to the element.
    pub fn repr(&self, element: &Element) -> Option<Repr> {
        let (_, rounding) = self.casts.iter().find(|(name, _)| *name == element.name)?;
        match (element.repr, *rounding) {
            (Repr::Float(FloatCast { float, .. }), Rounding::Float(policy)) => {
                Some(Repr::Float(FloatCast { float, policy }))
            }
            (Repr::Integer(integer), Rounding::Integer(whole)) => Some(Repr::Integer(Integer { whole, ..integer })),
            (Repr::Power(_), Rounding::Power(cast)) => Some(Repr::Power(cast)),
            _ => None,
        }
    }

    /// Returns the elements to which this library has casts.
    pub fn elements(&self) -> impl Iterator<Item = &'static Element> {
        self.casts.iter().filter_map(|(name, _)| element(name))
    }
}

impl PartialEq for Convention {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

const fn float(name: &'static str, policy: Policy) -> (&'static str, Rounding) {
    (name, Rounding::Float(policy))
}

const fn away(nan: u32) -> Policy {
    Policy::satfinite(nan).ties(Ties::Away).zeros(Zeros::UnsignedIfExact)
}

/// Policy of ml_dtypes for formats without NaN: a NaN becomes a zero of the opposite sign.
const FLIPPED: Policy = Policy::satfinite(0).nan(NanCode::FlippedZero);

/// The conventions of all libraries. Each differs from the default casts of its elements for some inputs.
pub const CASTS: &[Convention] = &[
    Convention {
        name: "nosat",
        doc: "CUDA headers with __NV_NOSAT, PTX without .satfinite: overflow gives infinity, or NaN if the type has no infinity",
        casts: &[
            float("e4m3", Policy::special(NanCode::Code(0x7f))),
            float("e5m2", Policy::special(NanCode::Code(0x7f))),
            ("e8m0", Rounding::Power(PowerCast::UP.special())),
        ],
    },
    Convention {
        name: "rz",
        doc: "CUDA headers, PTX cvt.rz.satfinite.ue8m0x2: rounds down to a power of two",
        casts: &[("e8m0", Rounding::Power(PowerCast::DOWN))],
    },
    Convention {
        name: "rz_nosat",
        doc: "rounds down to a power of two; infinity gives NaN",
        casts: &[("e8m0", Rounding::Power(PowerCast::DOWN.special()))],
    },
    Convention {
        name: "ml_dtypes",
        doc: "ml_dtypes 0.6: E4M3 and E5M2 overflow to NaN or infinity and keep the sign of NaN; FP6 and FP4 turn NaN into a \
              zero of the opposite sign; e8m0 rounds to nearest and turns 0 and negative numbers into NaN",
        casts: &[
            float("e4m3", Policy::special(NanCode::Signed(0x7f))),
            float("e5m2", Policy::special(NanCode::Signed(0x7e))),
            float("e3m2", FLIPPED),
            float("e2m3", FLIPPED),
            float("e2m1", FLIPPED),
            ("e8m0", Rounding::Power(PowerCast::HALF_UP.positive_only())),
        ],
    },
    Convention {
        name: "torch",
        doc: "torch 2.15 `.to`: E4M3 saturates, also for infinities; E5M2 does not saturate; NaN keeps its sign; e8m0 \
              rounds to nearest",
        casts: &[
            float("e4m3", Policy::satfinite(0).nan(NanCode::Signed(0x7f))),
            float("e5m2", Policy::special(NanCode::Signed(0x7f))),
            ("e8m0", Rounding::Power(PowerCast::HALF_UP)),
        ],
    },
    Convention {
        name: "torch_old",
        doc: "torch up to about 2.11 `.to`: E4M3 overflows to NaN",
        casts: &[float("e4m3", Policy::special(NanCode::Signed(0x7f)))],
    },
    Convention {
        name: "te_reference",
        doc: "TransformerEngine's Python reference: NaN becomes 0, −0 becomes +0",
        casts: &[float("e2m1", Policy::satfinite(0).zeros(Zeros::UnsignedIfExact))],
    },
    Convention {
        name: "modelopt",
        doc: "ModelOpt NVFP4: −0 becomes +0; NaN is undefined",
        casts: &[float("e2m1", Policy::satfinite(0x7).zeros(Zeros::UnsignedIfExact))],
    },
    Convention {
        name: "modelopt_mxfp4",
        doc: "ModelOpt MXFP4: ties toward zero; zeros become −0; NaN is undefined",
        casts: &[float(
            "e2m1",
            Policy::satfinite(0x7).ties(Ties::Zero).zeros(Zeros::NegativeIfExact),
        )],
    },
    Convention {
        name: "deepgemm",
        doc: "DeepGEMM FP4: ties toward zero; zeros lose their sign; NaN becomes 0",
        casts: &[float(
            "e2m1",
            Policy::satfinite(0).ties(Ties::Zero).zeros(Zeros::Unsigned),
        )],
    },
    Convention {
        name: "microxcaling",
        doc: "microxcaling `nearest`: ties away from zero, −0 becomes +0; infinities are preserved if the type \
              has them; in int8 the f32 just below 1/2 becomes 1",
        casts: &[
            float("e4m3", away(0x7f)),
            float("e5m2", away(0x7f).infinity(Overflow::Special)),
            float("e3m2", away(0x1f)),
            float("e2m3", away(0x1f)),
            float("e2m1", away(0x7)),
            ("mxint8", Rounding::Integer(Whole::HalfAdded)),
        ],
    },
    Convention {
        name: "microxcaling_floor",
        doc: "microxcaling `floor` of int8: toward zero",
        casts: &[("mxint8", Rounding::Integer(Whole::TowardZero))],
    },
];

/// Returns the casts of the library called `name`, e.g. `torch`; `None` if the name is unknown.
pub fn convention(name: &str) -> Option<&'static Convention> {
    CASTS.iter().find(|convention| convention.name == name)
}
