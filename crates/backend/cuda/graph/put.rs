//! Launches that a composition writes, on their way into a graph.

use crate::cuda::header::{Launch, Matmul, Number};
use crate::cuda::plan::Named;

/// A launch, or all launches of another operation's variant, on their way into a graph.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Put {
    pub(super) name: String,
    pub(super) launch: Launch,
    /// `OP.VARIANT`
    pub(super) call: Option<String>,
    /// Meanings of names of the launch.
    pub(super) names: Vec<(String, Named)>,
    /// Launches of a call that are left out, from the first on.
    pub(super) skipped: usize,
    /// The part of its scratch that a call prepares and uses, and how many there are.
    pub(super) part: Option<[i64; 2]>,
    pub(super) wrong: Option<String>,
}

/// A launch of an entry point.
pub fn kernel(name: &str, entry: &str) -> Put {
    let mut put = Put::new(name);
    put.launch.entry = Some(entry.into());
    put
}

/// A product of matrices by cuBLASLt.
pub fn product(name: &str, product: Matmul) -> Put {
    let mut put = Put::new(name);
    put.launch.matmul = Some(product);
    put
}

/// The launches of a variant of another operation, `OP.VARIANT`, with other meanings of its names.
pub fn call(name: &str, variant: &str) -> Put {
    Put {
        call: Some(variant.into()),
        ..Put::new(name)
    }
}

/// Rounds a quotient up.
pub fn ceil(a: i64, b: i64) -> i64 {
    (a + b - 1).div_euclid(b)
}

fn plain(numbers: &[i64]) -> Vec<Number> {
    numbers.iter().copied().map(Number::Plain).collect()
}

fn list(words: &str) -> Vec<String> {
    words.split_whitespace().map(String::from).collect()
}

impl Put {
    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    /// Sets the blocks, and the threads of each.
    pub fn on(mut self, blocks: impl AsRef<[i64]>, threads: i64) -> Self {
        self.launch.grid = plain(blocks.as_ref());
        self.launch.block = plain(&[threads]);
        self
    }

    /// Blocks of a cluster.
    pub fn cluster(mut self, blocks: i64) -> Self {
        self.launch.cluster = Some(plain(&[blocks]));
        self
    }

    /// Bytes of dynamic shared memory.
    pub fn shared(mut self, bytes: i64) -> Self {
        self.launch.shared = Some(Number::Plain(bytes));
        self
    }

    /// Lets the launch, or all launches of a call, start before the launch before it has ended.
    pub fn programmatic(mut self) -> Self {
        self.launch.programmatic = true;
        self
    }

    /// Marks a launch that keeps values for the judgement only.
    pub fn tap(mut self) -> Self {
        self.launch.tap = true;
        self
    }

    /// Names of its arguments, in the order of the function, with spaces between them.
    pub fn args(mut self, names: &str) -> Self {
        self.launch.args = list(names);
        self
    }

    /// Names of arguments that keep values for the judgement only.
    pub fn taps(mut self, names: &str) -> Self {
        self.launch.taps = list(names);
        self
    }

    /// Bytes that it must move.
    pub fn bytes(mut self, bytes: i64) -> Self {
        self.launch.bytes = Some(Number::Plain(bytes));
        self
    }

    /// Operations of products of matrices.
    pub fn flops(mut self, flops: i64) -> Self {
        self.launch.flops = Some(Number::Plain(flops));
        self
    }

    /// Gives a name of the launch a meaning.
    pub fn with(mut self, name: &str, meaning: impl Into<Named>) -> Self {
        self.names.push((name.into(), meaning.into()));
        self
    }

    /// Gives several names their meanings: `x = normed, w = q_a`.
    pub fn names(mut self, pairs: &str) -> Self {
        for pair in pairs.split(',') {
            match pair.split_once('=') {
                Some((name, meaning)) => {
                    let meaning = meaning.trim();
                    let number = meaning.parse().map(Named::Number);
                    self.names.push((name.trim().into(), number.unwrap_or(meaning.into())));
                }
                None => self.wrong = Some(format!("names has '{}'; expected 'name = meaning'", pair.trim())),
            }
        }
        self
    }

    /// Leaves out the first launches of a call.
    pub fn skip(mut self, launches: usize) -> Self {
        self.skipped = launches;
        self
    }

    /// Selects a part, of so many, of the scratch that a call prepares; a part is prepared when it is first used.
    pub fn part(mut self, part: i64, of: i64) -> Self {
        self.part = Some([part, of]);
        self
    }
}
