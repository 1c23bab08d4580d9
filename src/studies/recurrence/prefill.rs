//! Roundings of published prefill kernels of linear attention: a table with the dtype of each value.
//!
//! Values that the table does not list are f32. Products are accumulated in f32; tensor cores sum in another way, with results
//! that differ by a few ULPs. A decay is multiplied into an operand before the operand is rounded. Kernels of the gated delta
//! rule (GDN), with one decay per head, may instead multiply the sum by the decay.

use reference::ops::linear_attention::Intermediate::{self, *};
use reference::ops::linear_attention::{Chunked, Inversion, Policy};

use ulplab_core::formats::{BF16, Element, F16};

/// A dtype narrower than f32.
#[derive(Clone, Copy, Debug)]
pub enum NarrowType {
    /// Values are encoded in this element type and decoded again, with the element's rounding.
    Stored(&'static Element),
    /// TF32 operands of tensor cores: the hardware ignores the last 13 bits of an f32.
    Tf32,
}

const B: NarrowType = NarrowType::Stored(&BF16);
const H: NarrowType = NarrowType::Stored(&F16);

/// The chunked form of a published kernel, for inputs in bf16.
#[derive(Clone, Copy, Debug)]
pub struct Prefill {
    pub name: &'static str,
    pub doc: &'static str,
    pub chunk: usize,
    pub inversion: Inversion,
    /// Values that this kernel rounds in addition to the values in [`IN_BF16`], each with its type.
    pub rounds: &'static [(Intermediate, NarrowType)],
}

/// The values that every prefill kernel of [`PREFILLS`] rounds to bf16.
const IN_BF16: [Intermediate; 11] = [
    Query,
    Key,
    P,
    BetaValue,
    BetaKey,
    W,
    DecayedQuery,
    DecayedKey,
    StateOperand,
    PseudoValue,
    Output,
];

/// All published prefill kernels whose roundings are known here.
pub const PREFILLS: &[Prefill] = &[
    Prefill {
        name: "fla",
        doc: "flash-linear-attention 0.6.0, Triton: state carried in f32, all that goes through memory in bf16",
        chunk: 64,
        inversion: Inversion::Substitution,
        rounds: &[(InverseOperand, NarrowType::Tf32), (Inverse, B), (U, B)],
    },
    Prefill {
        name: "cula",
        doc: "cuLA on Hopper, C++: A and P from TF32, inverse in f16, U and accumulators on the chip in f32",
        chunk: 64,
        inversion: Inversion::Substitution,
        rounds: &[
            (ScoreOperand, NarrowType::Tf32),
            (A, H),
            (InverseOperand, H),
            (Inverse, H),
        ],
    },
    Prefill {
        name: "flash_kda",
        doc: "FlashKDA: chunks of 16, inverse by a Neumann product in f16, state carried in bf16",
        chunk: 16,
        inversion: Inversion::Neumann,
        rounds: &[
            (Beta, B),
            (ScoreOperand, B),
            (A, H),
            (InverseOperand, H),
            (Inverse, H),
            (State, B),
        ],
    },
];

/// Returns the prefill kernel with this name.
pub fn prefill(name: &str) -> Option<&'static Prefill> {
    PREFILLS.iter().find(|prefill| prefill.name == name)
}

impl Prefill {
    /// Returns the chunked form of this kernel with the given rounding policy.
    pub fn form<P>(self, policy: P) -> Chunked<P> {
        Chunked {
            chunk: self.chunk,
            inversion: self.inversion,
            policy,
        }
    }
}

impl Policy<f32> for Prefill {
    fn round(&self, what: Intermediate, values: &mut [f32], _: usize) {
        let own = self.rounds.iter().find(|(at, _)| *at == what);
        let narrow = own.map(|(_, narrow)| *narrow);
        if let Some(narrow) = narrow.or(IN_BF16.contains(&what).then_some(B)) {
            narrow.round(values);
        }
    }

    /// Adds a token's log decay to the running sum of its chunk, in f32.
    fn add_decay(&self, sum: f64, decay: f64) -> f64 {
        f64::from(sum as f32 + decay as f32)
    }
}

impl NarrowType {
    /// Rounds values in place.
    pub fn round(self, values: &mut [f32]) {
        match self {
            Self::Stored(element) => values.iter_mut().for_each(|x| *x = element.decode(element.encode(*x))),
            Self::Tf32 => values
                .iter_mut()
                .for_each(|x| *x = f32::from_bits(x.to_bits() & !0x1fff)),
        }
    }
}
