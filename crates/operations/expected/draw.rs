//! Inputs of an operation that are drawn at random: values that it takes, in the shapes that a case's sizes give.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;
use ulplab_core::random::{gaussian, stream};

/// Most elements of a drawn tensor. A larger tensor suggests a size in the wrong place.
const MOST: usize = 1 << 28;

/// Cases of an operation whose inputs are drawn.
pub struct Cases {
    /// The names of sizes.
    pub letters: &'static [&'static str],
    /// The sizes of each case, in the order of their names.
    pub sizes: &'static [&'static [i64]],
    /// Numbers that all cases have in the place of the defaults.
    pub numbers: &'static [(&'static str, f64)],
    /// Numbers that one more case each has.
    pub varied: &'static [(&'static str, f64)],
    /// Words that cannot be chosen, since inputs are drawn for the first of them only.
    pub fixed: &'static [&'static str],
    /// Tensors that may be left out and can be drawn.
    pub optional: &'static [&'static str],
    /// The types that inputs may have.
    pub types: &'static [&'static str],
    /// Draws the inputs of a case.
    pub draw: fn(&mut Draw),
    /// The reason for the bound, a line.
    pub why: &'static str,
}

impl Cases {
    /// The named sizes of a case.
    pub fn named(&self, case: usize) -> Vec<(&'static str, i64)> {
        let letters = self.letters.iter().copied();
        letters.zip(self.sizes[case].iter().copied()).collect()
    }
}

/// The types of inputs that most operations take.
pub(super) const FLOATS: &[&str] = &["f32", "bf16", "f16"];

/// An input that was drawn.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// Its name in calls.
    pub name: &'static str,
    /// Sizes of its dimensions.
    pub shape: Vec<usize>,
    /// Its elements, row-major.
    pub data: Vec<f64>,
    /// True if it holds whole numbers: positions, lengths, tables.
    pub whole: bool,
}

/// Draws inputs one after the other. Each has a random stream of its own.
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
    /// The inputs of an operation for these sizes, and for the words and optional tensors that a case sets.
    ///
    /// # Errors
    /// A tensor would have too many elements, or sizes do not fit together.
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

    /// The sizes of the case, in the order of their names.
    ///
    /// # Panics
    /// If the operation's cases have not as many.
    pub fn sizes<const N: usize>(&self) -> [usize; N] {
        let size = |letter: &&str| (self.size)(letter).expect("a case has all sizes");
        let whole = |letter: &&str| usize::try_from(size(letter)).expect("sizes are positive");
        let sizes: Vec<usize> = self.cases.letters.iter().map(whole).collect();
        sizes.try_into().expect("as many sizes as letters")
    }

    /// Returns whether a word has a value that is not its first.
    pub fn is(&self, name: &str, value: &str) -> bool {
        (self.word)(name).is_some_and(|word| word == value)
    }

    /// Returns whether a tensor that may be left out is given.
    pub fn has(&self, name: &str) -> bool {
        self.is(name, GIVEN)
    }

    /// Ends the draw with an error unless sizes fit together.
    pub fn require(&mut self, fits: bool, why: &str) {
        if !fits {
            self.wrong.get_or_insert_with(|| why.into());
        }
    }

    /// Draws from N(0, 1), times a factor; nothing for what may be left out and is.
    pub fn normal(&mut self, name: &'static str, shape: &[usize], factor: f64) {
        self.add(name, shape, false, |rng, len| {
            gaussian(rng, len).into_iter().map(|x| f64::from(x) * factor).collect()
        });
    }

    /// Draws evenly from the first number up to the second; nothing for what may be left out and is.
    pub fn uniform(&mut self, name: &'static str, shape: &[usize], [from, to]: [f64; 2]) {
        self.add(name, shape, false, |rng, len| {
            (0..len).map(|_| from + (to - from) * unit(rng)).collect()
        });
    }

    /// Draws whole numbers, both ends among them.
    pub fn whole(&mut self, name: &'static str, shape: &[usize], [from, to]: [usize; 2]) {
        self.add(name, shape, true, |rng, len| {
            let count = (to - from + 1) as f64;
            (0..len).map(|_| from as f64 + (count * unit(rng)).floor()).collect()
        });
    }

    /// Draws the whole numbers below the number of elements, each once.
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

/// The value of the key of a tensor that is given, and of one that is left out.
pub const GIVEN: &str = "given";
/// The value of the key of a tensor that is left out.
pub const NONE: &str = "none";

fn unit(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}
