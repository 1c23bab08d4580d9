//! Builders for the launches that a composition adds to a graph.

use crate::cuda::header::{Launch, Matmul, Number};
use crate::cuda::plan::Named;

/// Builder of one launch, or of a call, which adds all launches of another operation's variant.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Put {
    pub(super) name: String,
    pub(super) launch: Launch,
    /// The called variant, `OP.VARIANT`; `None` for a launch.
    pub(super) call: Option<String>,
    /// Names in the launch, each with the buffer, part or number that replaces it.
    pub(super) names: Vec<(String, Named)>,
    /// Number of launches to leave out at the start of the called variant.
    pub(super) skipped: usize,
    /// Index of the part of scratch that a call uses, and the number of parts: the call's preparing launches write their results
    /// to this part.
    pub(super) part: Option<[i64; 2]>,
    pub(super) wrong: Option<String>,
}

/// Begins a launch of the kernel at an entry point.
pub fn kernel(name: &str, entry: &str) -> Put {
    let mut put = Put::new(name);
    put.launch.entry = Some(entry.into());
    put
}

/// Begins a launch of a matrix product by cuBLASLt.
pub fn product(name: &str, product: Matmul) -> Put {
    let mut put = Put::new(name);
    put.launch.matmul = Some(product);
    put
}

/// Begins a call of another operation's variant, `OP.VARIANT`. The call adds the launches of that variant, in which names can be
/// replaced by other buffers or numbers.
pub fn call(name: &str, variant: &str) -> Put {
    Put {
        call: Some(variant.into()),
        ..Put::new(name)
    }
}

/// Returns `a / b`, rounded up.
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

    /// Sets the grid of thread blocks, and the threads per block.
    pub fn on(mut self, blocks: impl AsRef<[i64]>, threads: i64) -> Self {
        self.launch.grid = plain(blocks.as_ref());
        self.launch.block = plain(&[threads]);
        self
    }

    /// Sets the thread blocks per cluster.
    pub fn cluster(mut self, blocks: i64) -> Self {
        self.launch.cluster = Some(plain(&[blocks]));
        self
    }

    /// Sets the bytes of dynamic shared memory.
    pub fn shared(mut self, bytes: i64) -> Self {
        self.launch.shared = Some(Number::Plain(bytes));
        self
    }

    /// Allows the launch, or all launches of a call, to start before the previous launch has ended.
    pub fn programmatic(mut self) -> Self {
        self.launch.programmatic = true;
        self
    }

    /// Marks the launch as a tap: its only purpose is to store intermediate values for the correctness check.
    pub fn tap(mut self) -> Self {
        self.launch.tap = true;
        self
    }

    /// Sets the argument names in the order of the kernel's parameters, separated by spaces.
    pub fn args(mut self, names: &str) -> Self {
        self.launch.args = list(names);
        self
    }

    /// Sets the names of arguments that only store intermediate values for the correctness check.
    pub fn taps(mut self, names: &str) -> Self {
        self.launch.taps = list(names);
        self
    }

    /// Sets the smallest number of bytes that the launch has to read and write.
    pub fn bytes(mut self, bytes: i64) -> Self {
        self.launch.bytes = Some(Number::Plain(bytes));
        self
    }

    /// Sets the number of floating-point operations of the launch's matrix products.
    pub fn flops(mut self, flops: i64) -> Self {
        self.launch.flops = Some(Number::Plain(flops));
        self
    }

    /// Replaces `name` in the launch by a buffer, a part of a buffer or a number.
    pub fn with(mut self, name: &str, meaning: impl Into<Named>) -> Self {
        self.names.push((name.into(), meaning.into()));
        self
    }

    /// Replaces several names by other names: `x = normed, w = q_a` replaces `x` by `normed`, and `w` by `q_a`.
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

    /// Leaves out the first `launches` launches of a call.
    pub fn skip(mut self, launches: usize) -> Self {
        self.skipped = launches;
        self
    }

    /// Makes a call use part `part` of its scratch, which has `of` parts. The preparing launches of the call fill this part; only
    /// the first call that uses a part adds them.
    pub fn part(mut self, part: i64, of: i64) -> Self {
        self.part = Some([part, of]);
        self
    }
}
