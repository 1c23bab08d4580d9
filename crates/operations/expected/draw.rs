//! Random inputs of an operation for a test case (a set of sizes and settings): values that the operation allows, in tensors
//! whose shapes follow from the sizes.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;
use ulplab_core::random::{gaussian, stream};

/// Maximum number of elements of a drawn tensor. A larger tensor suggests sizes in the wrong order.
const MOST: usize = 1 << 28;

/// Test cases of an operation, with inputs that are drawn at random.
pub struct Cases {
    /// Names of the sizes.
    pub letters: &'static [&'static str],
    /// Sizes of each case, in the order of `letters`.
    pub sizes: &'static [&'static [i64]],
    /// Number arguments that all cases set to a value other than the default.
    pub numbers: &'static [(&'static str, f64)],
    /// Number arguments that additional cases vary, one per case: the name, and the value in that case.
    pub varied: &'static [(&'static str, f64)],
    /// Names of word arguments that cases cannot set: random inputs are drawn only for their default values.
    pub fixed: &'static [&'static str],
    /// Names of optional tensors that cases may have.
    pub optional: &'static [&'static str],
    /// Element types that inputs may have.
    pub types: &'static [&'static str],
    /// Function that draws all inputs of a case.
    pub draw: fn(&mut Draw),
    /// Reason for the operation's error bound, in one line; messages show it.
    pub why: &'static str,
}

impl Cases {
    /// Returns the name and the value of each size of a case.
    pub fn named(&self, case: usize) -> Vec<(&'static str, i64)> {
        let letters = self.letters.iter().copied();
        letters.zip(self.sizes[case].iter().copied()).collect()
    }
}

/// Element types that most operations allow for inputs.
pub(super) const FLOATS: &[&str] = &["f32", "bf16", "f16"];

/// An input that was drawn.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// Name of the argument.
    pub name: &'static str,
    /// Sizes of the dimensions.
    pub shape: Vec<usize>,
    /// Elements, row-major.
    pub data: Vec<f64>,
    /// True if the elements are integers, such as positions, lengths or page numbers.
    pub whole: bool,
}

/// Draws the inputs of a case one after the other. Each input has its own random stream.
pub struct Draw<'a> {
    seed: u64,
    operation: &'static str,
    cases: &'a Cases,
    size: &'a dyn Fn(&str) -> Option<i64>,
    word: &'a dyn Fn(&str) -> Option<String>,
    drawn: Vec<Drawn>,
    wrong: Option<String>,
}

impl<'a> Draw<'a> {
    /// Draws all inputs of an operation. `size` looks up a size of the case by its name. `word` looks up a word argument of the
    /// case by its name; for an optional tensor, `word` returns [`GIVEN`] or [`NONE`].
    ///
    /// # Errors
    /// Returns an error if a tensor would have too many elements, or if the sizes do not fit together.
    pub fn inputs(
        (operation, cases): (&'static str, &'a Cases),
        seed: u64,
        size: &'a dyn Fn(&str) -> Option<i64>,
        word: &'a dyn Fn(&str) -> Option<String>,
    ) -> Result<Vec<Drawn>, String> {
        let mut draw = Draw {
            seed,
            operation,
            cases,
            size,
            word,
            drawn: Vec::new(),
            wrong: None,
        };
        (cases.draw)(&mut draw);
        match draw.wrong {
            Some(wrong) => Err(format!("{operation}: {wrong}")),
            None => Ok(draw.drawn),
        }
    }

    /// Returns the sizes of the case, in the order of [`Cases::letters`].
    ///
    /// # Panics
    /// Panics if the operation's cases do not have `N` sizes.
    pub fn sizes<const N: usize>(&self) -> [usize; N] {
        let size = |letter: &&str| (self.size)(letter).expect("a case has all sizes");
        let whole = |letter: &&str| usize::try_from(size(letter)).expect("sizes are positive");
        let sizes: Vec<usize> = self.cases.letters.iter().map(whole).collect();
        sizes.try_into().expect("as many sizes as letters")
    }

    /// Returns true if the case sets the word argument `name` to `value`. Do not test for the default: for a case that omits the
    /// argument, the result is always false.
    pub fn is(&self, name: &str, value: &str) -> bool {
        (self.word)(name).is_some_and(|word| word == value)
    }

    /// Returns true if the case has this optional tensor.
    pub fn has(&self, name: &str) -> bool {
        self.is(name, GIVEN)
    }

    /// Makes [`Draw::inputs`] return the error message `why` if `fits` is false.
    pub fn require(&mut self, fits: bool, why: &str) {
        if !fits {
            self.wrong.get_or_insert_with(|| why.into());
        }
    }

    /// Draws a tensor from N(0, 1), times a factor. Draws nothing if the tensor is optional and the case omits it.
    pub fn normal(&mut self, name: &'static str, shape: &[usize], factor: f64) {
        self.add(name, shape, false, |rng, len| {
            gaussian(rng, len).into_iter().map(|x| f64::from(x) * factor).collect()
        });
    }

    /// Draws a tensor uniformly from `from` up to `to`. Draws nothing if the tensor is optional and the case omits it.
    pub fn uniform(&mut self, name: &'static str, shape: &[usize], [from, to]: [f64; 2]) {
        self.add(name, shape, false, |rng, len| {
            (0..len).map(|_| from + (to - from) * unit(rng)).collect()
        });
    }

    /// Draws a tensor of integers from `from` to `to`, inclusive.
    pub fn whole(&mut self, name: &'static str, shape: &[usize], [from, to]: [usize; 2]) {
        self.add(name, shape, true, |rng, len| {
            let count = (to - from + 1) as f64;
            (0..len).map(|_| from as f64 + (count * unit(rng)).floor()).collect()
        });
    }

    /// Draws a random permutation of the integers below the number of elements.
    pub fn permutation(&mut self, name: &'static str, shape: &[usize]) {
        self.add(name, shape, true, |rng, len| {
            let mut all: Vec<f64> = (0..len).map(|at| at as f64).collect();
            for at in (1..len).rev() {
                all.swap(at, ((at + 1) as f64 * unit(rng)) as usize);
            }
            all
        });
    }

    fn add(
        &mut self,
        name: &'static str,
        shape: &[usize],
        whole: bool,
        draw: impl FnOnce(&mut ChaCha8Rng, usize) -> Vec<f64>,
    ) {
        if !whole && self.cases.optional.contains(&name) && !self.has(name) {
            return;
        }
        let mut sizes = shape.iter();
        let elements = sizes.try_fold(1usize, |product, size| product.checked_mul(*size));
        let Some(len) = elements.filter(|len| *len <= MOST) else {
            return self.require(
                false,
                &format!("'{name}' would be {shape:?}, expected at most {MOST} elements"),
            );
        };
        let mut rng = stream(self.seed, &format!("{}/{name}", self.operation));
        self.drawn.push(Drawn {
            name,
            shape: shape.into(),
            data: draw(&mut rng, len),
            whole,
        });
    }
}

/// Setting of an optional tensor in cases that include the tensor.
pub const GIVEN: &str = "given";
/// Setting of an optional tensor in cases that omit the tensor.
pub const NONE: &str = "none";

fn unit(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}
