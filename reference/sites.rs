//! The named places of a path, and what there is to know of each: the table that every path has.

use std::fmt;

/// In which role a tensor is read. DeepSeek-V4 reads one KV vector both as key and as value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Read in every role: the ordinary case.
    Both,
    /// Read as attention key only.
    Key,
    /// Read as attention value only.
    Value,
}

/// A named place in a path. It is printed `layers.12.attention.kv.window`, or by its name alone outside the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// Decoder layer, 0-based; `None` outside the layers.
    pub layer: Option<usize>,
    /// Name without the layer, as listed by the path's `SITES`.
    pub name: &'static str,
    /// Reader of the tensor that this call is for.
    pub role: Role,
    /// Number, within the sequence, of the tensor's first row: a token position, or the number of a compressed entry.
    pub first_row: usize,
}

impl Site {
    /// Names a place whose tensor begins at row 0 and is read in every role.
    pub const fn new(layer: Option<usize>, name: &'static str) -> Self {
        Self {
            layer,
            name,
            role: Role::Both,
            first_row: 0,
        }
    }

    /// Has the tensor begin at this row of the sequence.
    #[must_use]
    pub const fn from_row(self, first_row: usize) -> Self {
        Self { first_row, ..self }
    }

    /// Means one reader of the tensor.
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

/// Kind of tensor that passes at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteKind {
    /// A tensor that may be rounded, replaced or watched.
    Tensor,
    /// A discrete decision.
    Choice(Decision),
    /// A tensor computed only for those who ask for it by [`Numerics::wants`](crate::Numerics::wants); changing it changes
    /// nothing.
    Watch,
}

/// Decision that passes at a site of kind [`SiteKind::Choice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Entries of a cache that a token reads: those with the largest scores. There are as many candidates as entries, so the error
    /// of the scores predicts the agreement to expect.
    TopK {
        /// The site whose rows are multiplied with those of `key` to give the scores.
        query: &'static str,
        /// The site of the keys.
        key: &'static str,
        /// The site that says how much attention each selected entry gets, if there is one.
        mass: Option<&'static str>,
    },
    /// Experts of a token: some of a fixed and small number.
    Router,
    /// A yes (1) or no (0).
    Gate,
    /// One of a few places.
    Bank,
}

impl Decision {
    /// Says whether exactly one candidate is decided on, so that two deciders agree or not. The other decisions select sets, which agree by
    /// a share.
    pub const fn is_single(self) -> bool {
        matches!(self, Self::Gate | Self::Bank)
    }
}

/// In which layers a site is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layers {
    /// In none: once, outside of them.
    Outside,
    /// In every layer.
    Every,
    /// In layers that have one of these types, see [`Config::layer_types`](crate::paths::Config::layer_types).
    OfType(&'static [&'static str]),
}

/// When a site is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Whenever the model is run.
    Run,
    /// Once, when the model is loaded: weights, and what is made of them.
    Load,
}

/// Role of a site in the path as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Nothing special.
    Inside,
    /// The residual stream that enters a layer; putting the reference's there measures the layer by itself.
    Enters,
    /// The residual stream that leaves a layer; its error is the error by layer. A path has at most one such site.
    Leaves,
    /// Result of the path. A path has exactly one such site.
    Output,
}

/// Growth of a cache with the tokens of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Every token adds a row.
    Token,
    /// Every token adds a row, and rows are forgotten that no later token reads: the cache stops growing.
    Window,
    /// A row is added for so many tokens, see [`Config::tokens_per_entry`](crate::paths::Config::tokens_per_entry).
    Entry,
    /// None: tokens change a state of fixed size, such as that of a delta rule.
    State,
}

/// Meaning of a cached row to its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Both as key and as value of attention; [`Numerics::splits`](crate::Numerics::splits) is asked whether to keep them apart.
    KeyValue,
    /// As key of attention only.
    Key,
    /// As value of attention only.
    Value,
    /// As key of an indexer, which decides what attention reads.
    Index,
    /// As part of a state.
    State,
}

/// A cache that the tensors of a site go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Number of rows that tokens add.
    pub growth: Growth,
    /// Meaning of its rows.
    pub held: Held,
}

/// The size of a dimension; [`dims!`](crate::dims) writes several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dim {
    /// `T`: the tokens of the call.
    Tokens,
    /// `n`: the rows that the call adds to a cache.
    New,
    /// `B`: the sequences.
    Sequences,
    /// Rows whose number depends on what is computed, in words.
    Rows(&'static str),
    /// A size of the configuration by its name, see [`Config::size`](crate::paths::Config::size).
    Size(&'static str),
    /// Always the same.
    Number(usize),
    /// The product of these.
    Product(&'static [Dim]),
}

impl Dim {
    /// Gives the part that does not depend on the call; sizes are looked up by `size`.
    ///
    /// # Panics
    /// If `size` does not know a name.
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

/// One entry of a path's list of sites. [`SiteInfo::new`] gives a tensor of which there is nothing more to say, and methods add
/// what there is; [`sites!`](crate::sites!) writes a whole list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SiteInfo {
    /// As in [`Site::name`].
    pub name: &'static str,
    /// In which layers it is passed.
    pub layers: Layers,
    /// When it is passed.
    pub when: When,
    /// Kind of tensor, and the method of [`Numerics`](crate::Numerics) that it passes to.
    pub kind: SiteKind,
    /// Sizes of the dimensions, outermost first.
    pub dims: &'static [Dim],
    /// Role in the path as a whole.
    pub flow: Flow,
    /// True if a comparison of two runs includes it. The output is always included.
    pub compared: bool,
    /// The cache that it goes to, if it does.
    pub cache: Option<Cache>,
    /// Number of a row's last channels that RoPE has turned, if any.
    pub turned: Option<Dim>,
    /// Description in words.
    pub doc: &'static str,
}

impl SiteInfo {
    /// Describes a tensor that passes once, outside the layers, whenever the model is run.
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

    /// Marks a site that passes in every layer.
    #[must_use]
    pub const fn layered(self) -> Self {
        let layers = Layers::Every;
        Self { layers, ..self }
    }

    /// Marks a site that passes in layers of one of these types.
    #[must_use]
    pub const fn layered_if(self, types: &'static [&'static str]) -> Self {
        let layers = Layers::OfType(types);
        Self { layers, ..self }
    }

    /// Marks a site that passes when the model is loaded.
    #[must_use]
    pub const fn at_load(self) -> Self {
        let when = When::Load;
        Self { when, ..self }
    }

    /// A decision passes.
    #[must_use]
    pub const fn choice(self, decision: Decision) -> Self {
        let kind = SiteKind::Choice(decision);
        Self { kind, ..self }
    }

    /// Marks a site that is computed only for hooks that want it.
    #[must_use]
    pub const fn watched(self) -> Self {
        let kind = SiteKind::Watch;
        Self { kind, ..self }
    }

    /// Marks the residual stream that enters a layer.
    #[must_use]
    pub const fn enters(self) -> Self {
        let flow = Flow::Enters;
        Self { flow, ..self }
    }

    /// Marks the residual stream that leaves a layer.
    #[must_use]
    pub const fn leaves(self) -> Self {
        let flow = Flow::Leaves;
        Self { flow, ..self }
    }

    /// Marks the result of the path.
    #[must_use]
    pub const fn output(self) -> Self {
        let flow = Flow::Output;
        Self { flow, ..self }
    }

    /// Comparisons look at it.
    #[must_use]
    pub const fn compared(self) -> Self {
        Self { compared: true, ..self }
    }

    /// Marks a site whose rows go to a cache.
    #[must_use]
    pub const fn cached(self, growth: Growth, held: Held) -> Self {
        let cache = Some(Cache { growth, held });
        Self { cache, ..self }
    }

    /// RoPE has turned so many of a row's channels, the last ones.
    #[must_use]
    pub const fn turned(self, channels: Dim) -> Self {
        let turned = Some(channels);
        Self { turned, ..self }
    }

    /// Says whether the site stands once in every layer (of some type) or once in the path.
    pub const fn in_layers(&self) -> bool {
        !matches!(self.layers, Layers::Outside)
    }

    /// Gives the decision that passes, if one does.
    pub const fn decision(&self) -> Option<Decision> {
        match self.kind {
            SiteKind::Choice(decision) => Some(decision),
            SiteKind::Tensor | SiteKind::Watch => None,
        }
    }

    /// Prints its shape in words of the path's configuration, e.g. `[T, head_dim]`.
    pub fn shape(&self) -> String {
        format!("[{}]", joined(self.dims, ", "))
    }
}

/// Dimensions as they are printed: `T`, `n` and `B` are those of the call, numbers are numbers, words in braces are
/// [`Dim::Rows`], other names are sizes of the configuration, and `*` multiplies.
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

/// The list of a path's sites, one in a row, in the order in which they are passed: the name of a constant, the name of the
/// site, its [dimensions](crate::dims), what it is, and methods of [`SiteInfo`] that say the rest. It defines the constants
/// and the list.
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

        /// Every site of the path, in the order in which they are passed.
        pub const $sites: &[$crate::sites::SiteInfo] = &[
            $($crate::sites::SiteInfo::new($constant, $crate::dims![$($dims)+], $doc)$(.$method($($argument)*))*),+
        ];
    };
}
