//! Sites: the named tensors and decisions of a path (the implementation of one kind of model). Every path has a table of its
//! sites with their properties.

use std::fmt;

/// Role in which a tensor is read. DeepSeek-V4 reads one KV vector both as key and as value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The tensor is read as key and as value, or it has only one role (the usual case).
    Both,
    /// The tensor is read as attention key only.
    Key,
    /// The tensor is read as attention value only.
    Value,
}

/// A named tensor or decision in the data flow of a path. Its printed form is `layers.12.attention.kv.window`, or only the name
/// outside the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// Decoder layer, 0-based; `None` outside the layers.
    pub layer: Option<usize>,
    /// Name without the layer, as listed by the path's `SITES`.
    pub name: &'static str,
    /// Role in which the tensor is read here, as key or as value of attention; `Both` if it is read as both, or has only one role.
    pub role: Role,
    /// Index, within the sequence, of the first row of the tensor: a token position, or the index of a compressed entry.
    pub first_row: usize,
}

impl Site {
    /// Creates a site whose tensor begins at row 0 and is read in every role.
    pub const fn new(layer: Option<usize>, name: &'static str) -> Self {
        Self {
            layer,
            name,
            role: Role::Both,
            first_row: 0,
        }
    }

    /// Sets the index of the first row of the tensor.
    #[must_use]
    pub const fn from_row(self, first_row: usize) -> Self {
        Self { first_row, ..self }
    }

    /// Sets the role in which the tensor is read.
    #[must_use]
    pub const fn read_as(self, role: Role) -> Self {
        Self { role, ..self }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "layers.{layer}.{}", self.name),
            None => f.write_str(self.name),
        }
    }
}

/// Kind of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteKind {
    /// A tensor that a hook may round, replace or observe.
    Tensor,
    /// A discrete decision.
    Choice(Decision),
    /// A tensor that is computed only if [`Numerics::wants`](crate::Numerics::wants) returns true. Changing the tensor does not
    /// change the computation.
    Watch,
}

/// Kind of decision at a site of kind [`SiteKind::Choice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Selection of the cache entries that a token reads: those with the k largest scores. All cached entries are candidates.
    /// With so many candidates, the error of the scores predicts how many selected entries two runs have in common.
    TopK {
        /// Name of the site of the queries. Its rows are multiplied with the rows of `key` to get the scores.
        query: &'static str,
        /// Name of the site of the keys.
        key: &'static str,
        /// Name of the site of the attention mass of each selected entry; `None` if the path has no such site.
        mass: Option<&'static str>,
    },
    /// Selection of the experts of a token, from a small fixed number of experts.
    Router,
    /// A binary decision: yes (1) or no (0).
    Gate,
    /// Selection of one of a few memory banks.
    Bank,
}

impl Decision {
    /// Returns true if exactly one candidate is selected, so that two runs either agree or disagree. The other decisions select
    /// sets, which may agree in only some of their elements.
    pub const fn is_single(self) -> bool {
        matches!(self, Self::Gate | Self::Bank)
    }
}

/// Layers that have a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layers {
    /// No layer: the site is called once, outside of the layers.
    Outside,
    /// Every layer.
    Every,
    /// Layers of one of these types, see [`Config::layer_types`](crate::paths::Config::layer_types).
    OfType(&'static [&'static str]),
}

/// Time at which a site is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// In every run of the model.
    Run,
    /// Once, when the model is loaded: sites of weights, and of tensors computed from weights.
    Load,
}

/// Relation of a site to the residual stream and the output of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The tensor is neither the residual stream between layers nor the output.
    Inside,
    /// The residual stream that enters a layer. To measure the error of one layer alone, this tensor is replaced by the
    /// reference's tensor.
    Enters,
    /// The residual stream that leaves a layer; its error is reported per layer. A path has at most one such site.
    Leaves,
    /// Output of the path. A path has exactly one such site.
    Output,
}

/// Growth of a cache with the number of tokens of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Every token adds a row.
    Token,
    /// Every token adds a row, and rows that no later token reads are dropped: the size of the cache is bounded.
    Window,
    /// Every group of [`Config::tokens_per_entry`](crate::paths::Config::tokens_per_entry) tokens adds a row.
    Entry,
    /// No growth: tokens update a state of fixed size, such as the state of a delta rule.
    State,
}

/// Way in which attention or a recurrence uses a cached row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Both key and value of attention; [`Numerics::splits`](crate::Numerics::splits) decides whether two separate copies are
    /// kept.
    KeyValue,
    /// Key of attention only.
    Key,
    /// Value of attention only.
    Value,
    /// Key of an indexer, which selects the entries that attention reads.
    Index,
    /// Part of a recurrent state.
    State,
}

/// A cache that stores the tensors of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Growth of the cache with the number of tokens.
    pub growth: Growth,
    /// Use of the cached rows.
    pub held: Held,
}

/// Size of one dimension of a tensor. The macro [`dims!`](crate::dims) creates a list of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dim {
    /// `T`: number of tokens of the call.
    Tokens,
    /// `n`: number of rows that the call adds to a cache.
    New,
    /// `B`: number of sequences.
    Sequences,
    /// Number of rows that is known only during the computation; the string describes the rows.
    Rows(&'static str),
    /// Name of a size of the configuration, see [`Config::size`](crate::paths::Config::size).
    Size(&'static str),
    /// Constant number.
    Number(usize),
    /// Product of sizes.
    Product(&'static [Dim]),
}

impl Dim {
    /// Returns the size as a number; 1 if the size depends on the call, e.g. the number of tokens. `size` maps the name of a size
    /// of the configuration to its value.
    ///
    /// # Panics
    /// If `size` returns `None` for a name.
    pub fn fixed(self, size: &dyn Fn(&str) -> Option<usize>) -> usize {
        match self {
            Self::Tokens | Self::New | Self::Sequences | Self::Rows(_) => 1,
            Self::Size(name) => size(name).unwrap_or_else(|| panic!("the configuration has no size '{name}'")),
            Self::Number(number) => number,
            Self::Product(factors) => factors.iter().map(|factor| factor.fixed(size)).product(),
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokens => f.write_str("T"),
            Self::New => f.write_str("n"),
            Self::Sequences => f.write_str("B"),
            Self::Rows(words) | Self::Size(words) => f.write_str(words),
            Self::Number(number) => write!(f, "{number}"),
            Self::Product(factors) => f.write_str(&joined(factors, " · ")),
        }
    }
}

fn joined(dims: &[Dim], between: &str) -> String {
    dims.iter().map(Dim::to_string).collect::<Vec<_>>().join(between)
}

/// One entry of a path's list of sites. [`SiteInfo::new`] creates an entry with default properties, and the other methods set
/// properties; the macro [`sites!`](crate::sites!) writes a whole list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SiteInfo {
    /// Name, as in [`Site::name`].
    pub name: &'static str,
    /// Layers that have the site.
    pub layers: Layers,
    /// Time at which the site is called.
    pub when: When,
    /// Kind of the site; decides which method of [`Numerics`](crate::Numerics) is called.
    pub kind: SiteKind,
    /// Sizes of the dimensions, outermost first.
    pub dims: &'static [Dim],
    /// Relation of the site to the residual stream and the output of the model.
    pub flow: Flow,
    /// True if comparisons of two runs include the site. The output is always included.
    pub compared: bool,
    /// Cache that stores the tensors of the site; `None` if the tensors are not cached.
    pub cache: Option<Cache>,
    /// Number of channels that RoPE has rotated (the last channels of each row); `None` if RoPE is not applied.
    pub turned: Option<Dim>,
    /// Description of the tensor or decision in words.
    pub doc: &'static str,
}

impl SiteInfo {
    /// Creates an entry for a tensor outside the layers, whose site is called once in every run.
    pub const fn new(name: &'static str, dims: &'static [Dim], doc: &'static str) -> Self {
        Self {
            name,
            layers: Layers::Outside,
            when: When::Run,
            kind: SiteKind::Tensor,
            dims,
            flow: Flow::Inside,
            compared: false,
            cache: None,
            turned: None,
            doc,
        }
    }

    /// Marks a site that every layer has.
    #[must_use]
    pub const fn layered(self) -> Self {
        let layers = Layers::Every;
        Self { layers, ..self }
    }

    /// Marks a site that exists only in layers of these types.
    #[must_use]
    pub const fn layered_if(self, types: &'static [&'static str]) -> Self {
        let layers = Layers::OfType(types);
        Self { layers, ..self }
    }

    /// Marks a site that is called when the model is loaded.
    #[must_use]
    pub const fn at_load(self) -> Self {
        let when = When::Load;
        Self { when, ..self }
    }

    /// Marks a site of a discrete decision.
    #[must_use]
    pub const fn choice(self, decision: Decision) -> Self {
        let kind = SiteKind::Choice(decision);
        Self { kind, ..self }
    }

    /// Marks a site that is computed only if [`Numerics::wants`](crate::Numerics::wants) returns true.
    #[must_use]
    pub const fn watched(self) -> Self {
        let kind = SiteKind::Watch;
        Self { kind, ..self }
    }

    /// Marks the site of the residual stream that enters a layer.
    #[must_use]
    pub const fn enters(self) -> Self {
        let flow = Flow::Enters;
        Self { flow, ..self }
    }

    /// Marks the site of the residual stream that leaves a layer.
    #[must_use]
    pub const fn leaves(self) -> Self {
        let flow = Flow::Leaves;
        Self { flow, ..self }
    }

    /// Marks the site of the output of the path.
    #[must_use]
    pub const fn output(self) -> Self {
        let flow = Flow::Output;
        Self { flow, ..self }
    }

    /// Marks a site that comparisons of two runs include.
    #[must_use]
    pub const fn compared(self) -> Self {
        Self { compared: true, ..self }
    }

    /// Marks a site whose rows are stored in a cache.
    #[must_use]
    pub const fn cached(self, growth: Growth, held: Held) -> Self {
        let cache = Some(Cache { growth, held });
        Self { cache, ..self }
    }

    /// Sets the number of channels that RoPE has rotated (the last channels of each row).
    #[must_use]
    pub const fn turned(self, channels: Dim) -> Self {
        let turned = Some(channels);
        Self { turned, ..self }
    }

    /// Returns true if the site is called once per layer (of some type); false if it is called once, outside the layers.
    pub const fn in_layers(&self) -> bool {
        !matches!(self.layers, Layers::Outside)
    }

    /// Returns the kind of decision; `None` if the site is not a decision.
    pub const fn decision(&self) -> Option<Decision> {
        match self.kind {
            SiteKind::Choice(decision) => Some(decision),
            SiteKind::Tensor | SiteKind::Watch => None,
        }
    }

    /// Returns the shape as text, with names of the path's configuration, e.g. `[T, head_dim]`.
    pub fn shape(&self) -> String {
        format!("[{}]", joined(self.dims, ", "))
    }
}

/// Creates a list of [`Dim`], the dimensions of a tensor. `T`, `n` and `B` are sizes of the call (tokens, new cache rows,
/// sequences), numbers are constants, words in braces are [`Dim::Rows`], other names are sizes of the configuration, and `*`
/// multiplies.
///
/// ```
/// use reference::{SiteInfo, dims};
///
/// let query = SiteInfo::new("query", dims![T, num_attention_heads, 2 * head_dim], "queries");
/// assert_eq!(query.shape(), "[T, num_attention_heads, 2 · head_dim]");
/// let stored = SiteInfo::new("stored", dims![{rows that are exchanged}, d_model], "what is stored");
/// assert_eq!(stored.shape(), "[rows that are exchanged, d_model]");
/// ```
#[macro_export]
macro_rules! dims {
    (@one T) => { $crate::sites::Dim::Tokens };
    (@one n) => { $crate::sites::Dim::New };
    (@one B) => { $crate::sites::Dim::Sequences };
    (@one {$($word:tt)+}) => { $crate::sites::Dim::Rows(stringify!($($word)+)) };
    (@one $number:literal) => { $crate::sites::Dim::Number($number) };
    (@one $size:ident) => { $crate::sites::Dim::Size(stringify!($size)) };
    (@of $one:tt) => { $crate::dims!(@one $one) };
    (@of $($factor:tt),+) => { $crate::sites::Dim::Product(&[$($crate::dims!(@one $factor)),+]) };
    ($($first:tt $(* $more:tt)*),+) => { &[$($crate::dims!(@of $first $(, $more)*)),+] };
}

/// Defines the list of a path's sites, one per row, in the order of their calls. A row has the name of a constant, the name of
/// the site, the [dimensions](crate::dims) of the tensor, a description, and methods of [`SiteInfo`] that set properties of the
/// site. The macro defines the constants and the list.
///
/// ```
/// use reference::sites::{Growth, Held};
///
/// reference::sites! { pub SITES =
///     KEYS: "attention.keys" [T, num_key_value_heads, head_dim] "keys after RoPE" .layered().cached(Growth::Token, Held::Key);
///     LOGITS: "logits" [T, vocab_size] "logits" .output();
/// }
///
/// assert_eq!((SITES.len(), SITES[1].name), (2, LOGITS));
/// assert!(SITES[0].in_layers() && SITES[0].cache.is_some());
/// ```
#[macro_export]
macro_rules! sites {
    (pub $sites:ident = $($constant:ident: $name:literal [$($dims:tt)+] $doc:literal $(.$method:ident($($argument:tt)*))*;)+) => {
        $(
            #[doc = concat!("The site of ", $doc, ".")]
            pub const $constant: &str = $name;
        )+

        /// Every site of the path, in the order in which the sites are called.
        pub const $sites: &[$crate::sites::SiteInfo] = &[
            $($crate::sites::SiteInfo::new($constant, $crate::dims![$($dims)+], $doc)$(.$method($($argument)*))*),+
        ];
    };
}
