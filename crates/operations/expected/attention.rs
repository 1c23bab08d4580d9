//! Attention, o = softmax(s·q·kᵀ + mask)·v, for queries q, keys k, values v and a scale s. It supports grouped heads, causal
//! masks, sliding windows, sinks, and the log-sum-exp of each query as an output. Keys and values may be in the pages of a cache.
//! Sequences may have different lengths and may be packed ([`super::paging`]).
//!
//! Error bound: a score has the error of its sum of products. The relative error of its exponential is this error, plus 4u, plus
//! 4u per unit of the exponent (u is the unit roundoff). If the softmax weight p of a value v is wrong by δ, the output o moves
//! by δ·|v − o|. The sum of p·v has as many terms as there are keys.
//!
//! A kernel may round the softmax weights to a short type before it multiplies them by values (the argument named `p` gives the
//! type). Each of these rounding errors is independent and uniform within ±h, half an ulp, so its variance is h²/3. The ratio
//! h²/p² is largest at the lower end of a binade, and its average over a binade is half of this maximum: the average variance is
//! 1/6 of the largest h²/p², relative to p². Kernels store weights as `p_scale`·exp(score − largest score): a weight below half of
//! the smallest number of the type becomes 0, and its error is the whole weight. Where the rounding of weights dominates, the root
//! mean square and the mean of all errors are also checked ([`super::spread`]). (Blanchard, Higham and Higham, *Accurately
//! computing the log-sum-exp and softmax functions*, 2021.)

use rayon::prelude::*;
use reference::LAMBDA;

use super::draw::{Cases, FLOATS};
use super::drift::Equal;
use super::paging::{Keys, starts};
use super::sum::Terms;
use super::{Call, Operation, Output, faults, half_spacing, takes};

pub(super) const ATTENTION: Operation = Operation {
    name: "attention",
    doc: "means of values, weighted by the softmax of queries times keys",
    takes: takes! {
        q Tensor: "[B, T, H, D]; [B, H, T, D] if layout = \"bhtd\"; [tokens, H, D] with cu_seqlens_q";
        k Tensor:
            "[B, S, G, D] with G heads, each of H/G queries' heads; or [B, G, S, D]. With a block_table, pages of S tokens; \
            [tokens, G, D] with cu_seqlens_k";
        v Tensor: "[B, S, G, E], [B, G, S, E], or [tokens, G, E]";
        cu_seqlens_q Optional: "[B + 1]: where the queries of each sequence begin in q, and where the last end";
        cu_seqlens_k Optional: "[B + 1]: where the keys of each sequence begin in k and v, and where the last end";
        block_table Optional:
            "[B, P]: which pages of k and v each sequence has; their numbers count from 0, what is not used may be anything";
        seq_lens Optional: "[B]: how many keys each sequence has; all if not given";
        sinks Optional: "[H]: a score of each head that is summed up and has no value";
        scale Number(f64::NAN): "multiplied by the scores; 1/√D if it is not given";
        k_scale Number(1.0): "what k was divided by when it was stored";
        v_scale Number(1.0): "what v was divided by when it was stored";
        causal Number(0.0): "whether the last query sees all keys, and each before it one less";
        window Number(0.0): "how many keys each query sees, its own the last; 0 for all. It implies causal";
        layout Word(&["bthd", "bhtd"]): "the order of the dimensions: FlashAttention's, or torch's";
        lse_layout Word(&["as_q", "heads_first"]):
            "the order of the dimensions of lse: those of q, or [B, H, T], [H, tokens] with cu_seqlens_q (FlashAttention)";
        lse_base Word(&["e", "2"]): "whose logarithm lse is: e's (FlashAttention), or 2's (FlashInfer)";
        p Word(&["f32", "bf16", "f16", "e4m3"]): "the type that a kernel rounds weights to before it multiplies them by values";
        p_scale Number(1.0):
            "what the weight of the largest score is stored as, at least, if p is not f32: 1 for exp(s - max), 448 if a kernel \
            scales weights";
    },
    faults: faults! {
        not_causal: "later keys are not masked";
        causal_from_start: "the causal mask is aligned to the first key, not to the last";
        own_key_masked: "each query's own key is masked, too";
        no_scale: "the scale is left out" => |call| call.set("scale", 1.0);
        last_key_missing: "the last key is left out";
        other_group: "key head h mod G is read in the place of h/(H/G)";
        no_sinks of sinks: "the sinks are left out" => |call| call.leave_out("sinks");
        window_one_more of window: "the window has one key more";
        window_one_less of window: "the window has one key less";
        no_window of window: "the window is left out";
        base_two: "powers of 2 are taken in the place of powers of e";
        next_table of block_table: "the pages are those of the next sequence";
        pages_in_order of block_table: "the pages are read one after the other, not as the table says";
        last_page_missing of block_table: "the last page is left out";
        stale_length: "the lengths are those before the keys of these queries";
        next_length of seq_lens: "the length is that of the next sequence";
        unused_values of seq_lens: "values of keys that are not used are multiplied by weights of 0: they are not finite";
        no_lengths of seq_lens: "all keys that there is room for are read, whatever the lengths";
        next_start of cu_seqlens_k: "keys begin where those of the next sequence do";
        first_count of cu_seqlens_q: "masks are aligned as if all sequences had as many queries as the first";
        no_k_scale of k_scale: "k_scale is left out" => |call| call.set("k_scale", 1.0);
        no_v_scale of v_scale: "v_scale is left out" => |call| call.set("v_scale", 1.0);
        no_kv_scales of k_scale: "k_scale and v_scale are left out"
            => |call| ["k_scale", "v_scale"].into_iter().for_each(|name| call.set(name, 1.0));
    },
    cases: Some(&Cases {
        letters: &["B", "T", "S", "P", "H", "G", "D", "E"],
        sizes: &[&[2, 5, 37, 3, 4, 2, 32, 24], &[1, 64, 192, 2, 8, 2, 64, 64]],
        numbers: &[],
        varied: &[
            ("causal", 1.0),
            ("window", 3.0),
            ("scale", 0.25),
            ("k_scale", 0.5),
            ("v_scale", 0.5),
        ],
        fixed: &["lse_layout"],
        optional: &["sinks", "seq_lens", "block_table"],
        types: FLOATS,
        draw: |draw| {
            let [batch, queries, keys, pages, heads, groups, dim, out] = draw.sizes();
            draw.require(heads % groups == 0, "H is not a multiple of G");
            let heads_first = draw.is("layout", "bhtd");
            let ordered = |batch: usize, tokens: usize, heads: usize, dim: usize| match heads_first {
                true => [batch, heads, tokens, dim],
                false => [batch, tokens, heads, dim],
            };
            draw.normal("q", &ordered(batch, queries, heads, dim), 1.0);
            let paged = draw.has("block_table");
            let each = if paged { pages } else { 1 };
            let (stored, longest) = (batch * each, each * keys);
            draw.normal("k", &ordered(stored, keys, groups, dim), 1.0);
            draw.normal("v", &ordered(stored, keys, groups, out), 1.0);
            if paged {
                draw.permutation("block_table", &[batch, pages]);
            }
            if draw.has("seq_lens") || paged {
                draw.whole("seq_lens", &[batch], [queries.min(longest), longest]);
            }
            draw.normal("sinks", &[heads], 1.0);
        },
        why: "scores as sums of D products, exponentials, their sum, and sums of as many products as keys, in any order and in f32",
    }),
    compute,
    ..Operation::NONE
};

/// Sizes of a call.
struct Sizes {
    batch: usize,
    /// Number of queries per sequence; if sequences are packed, number of queries of all sequences.
    queries: usize,
    /// Start offset of each packed sequence of queries, followed by the end of the last one; `None` if sequences are not packed.
    starts: Option<Vec<usize>>,
    /// Number of pages of keys. Without a block table, each sequence is one page; packed sequences together are one page.
    pages: usize,
    /// Number of keys per page.
    page: usize,
    heads: usize,
    groups: usize,
    dim: usize,
    values: usize,
    /// True if the layout is [B, H, T, D] instead of [B, T, H, D].
    heads_first: bool,
}

impl Sizes {
    fn of(call: &Call) -> Result<Self, String> {
        let heads_first = call.word("layout") == "bhtd";
        let ragged = ["cu_seqlens_q", "cu_seqlens_k"].map(|name| call.has(name));
        let paged = call.has("block_table");
        let [of_q, of_k, of_v] = match (heads_first, ragged, paged) {
            (true, [false, false], false) => ["[B, H, T, D]", "[B, G, S, D]", "[B, G, S, E]"],
            (true, [false, false], true) => ["[B, H, T, D]", "[pages, G, S, D]", "[pages, G, S, E]"],
            (false, [false, false], false) => ["[B, T, H, D]", "[B, S, G, D]", "[B, S, G, E]"],
            (false, [false, false], true) => ["[B, T, H, D]", "[pages, S, G, D]", "[pages, S, G, E]"],
            (false, [true, true], _) => ["[T, H, D]", "[S, G, D]", "[S, G, E]"],
            (false, [true, false], true) => ["[T, H, D]", "[pages, S, G, D]", "[pages, S, G, E]"],
            _ => {
                let [q, k, v] = ["q", "k", "v"].map(|name| &call.tensor(name).shape);
                return Err(format!(
                    "attention: 'q' is {q:?}, 'k' is {k:?} and 'v' is {v:?}, expected layout = \"bthd\", and cu_seqlens_q next to \
                     cu_seqlens_k, or with a block_table"
                ));
            }
        };
        let any = ["cu_seqlens_q", "cu_seqlens_k", "block_table", "seq_lens"].map(|name| (name, ""));
        let shapes = call.shapes_of(&[&[("q", of_q), ("k", of_k), ("v", of_v)][..], &any].concat())?;
        let [queries, heads, page, groups, dim, values] = shapes.sizes(["T", "H", "S", "G", "D", "E"]);
        let batch = shapes.size("B").unwrap_or(1);
        if groups == 0 || !heads.is_multiple_of(groups) {
            let [q, k] = ["q", "k"].map(|name| &call.tensor(name).shape);
            return Err(format!(
                "attention: 'q' is {q:?} and 'k' is {k:?}, expected {of_q} and {of_k} with H a multiple of G"
            ));
        }
        let starts = starts(call, "cu_seqlens_q", queries)?;
        Ok(Self {
            batch: starts.as_ref().map_or(batch, |starts| starts.len() - 1),
            queries,
            starts,
            pages: shapes.size("pages").unwrap_or(batch),
            page,
            heads,
            groups,
            dim,
            values,
            heads_first,
        })
    }

    /// Number of queries of a sequence.
    fn count(&self, sequence: usize) -> usize {
        let starts = self.starts.as_ref();
        starts.map_or(self.queries, |starts| starts[sequence + 1] - starts[sequence])
    }

    /// Returns the batch index and the token index, in q, of query `token` of a sequence.
    fn query(&self, sequence: usize, token: usize) -> [usize; 2] {
        let starts = self.starts.as_ref();
        starts.map_or([sequence, token], |starts| [0, starts[sequence] + token])
    }

    /// Sequence, head and token of row `at` of the output.
    fn row(&self, at: usize) -> [usize; 3] {
        if let Some(starts) = &self.starts {
            let (token, head) = (at / self.heads, at % self.heads);
            // Several sequences may start at this token, but only the last of them has queries: take it.
            let sequence = starts.partition_point(|start| *start <= token) - 1;
            return [sequence, head, token - starts[sequence]];
        }
        let (b, at) = (at / (self.queries * self.heads), at % (self.queries * self.heads));
        match self.heads_first {
            true => [b, at / self.queries, at % self.queries],
            false => [b, at % self.heads, at / self.heads],
        }
    }

    /// Flat index of the first element of head `head` of token `token` in a tensor with the sizes `heads`, `tokens` and `dim`.
    fn at(&self, [batch, head, token]: [usize; 3], [heads, tokens, dim]: [usize; 3]) -> usize {
        match self.heads_first {
            true => ((batch * heads + head) * tokens + token) * dim,
            false => ((batch * tokens + token) * heads + head) * dim,
        }
    }
}

/// Result of one query. The output elements are [value, error bound, standard deviation]; the log-sum-exp follows, with its error
/// bound.
pub(super) type Row = (Vec<[f64; 3]>, (f64, f64));

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let sizes = Sizes::of(call)?;
    let keys = &Keys::of(call, sizes.batch, sizes.pages, sizes.page)?;
    call.count("window", 0..=usize::MAX, "of keys, or 0")?;
    let p_scale = call.number("p_scale");
    if p_scale <= 0.0 {
        return Err(format!("attention: p_scale = {p_scale}, expected a number above 0"));
    }
    let q = &call.tensor("q").shape;
    let of_lse = q[..q.len() - 1].to_vec();
    let of_output = [&of_lse[..], &[sizes.values]].concat();
    let rows = (0..of_lse.iter().product()).into_par_iter();
    let rows: Vec<Row> = rows.map(|at| one(call, keys, &sizes, sizes.row(at))).collect();
    let [value, error, spread] = [0, 1, 2].map(|part| {
        let elements = rows.iter().flat_map(|(row, _)| row);
        elements.map(|element| element[part]).collect::<Vec<f64>>()
    });
    let logs: Vec<(f64, f64)> = rows.iter().map(|(_, log)| *log).collect();
    let (of_lse, logs) = match call.word("lse_layout") {
        "heads_first" if !sizes.heads_first => heads_first(of_lse, &logs),
        _ => (of_lse, logs),
    };
    let (logs, of_logs) = logs.into_iter().unzip();
    Ok(vec![
        Output {
            spread: call.dtype("p").map_or(Vec::new(), |_| spread),
            ..Output::new("o", of_output, value, error)
        },
        Output::new("lse", of_lse, logs, of_logs),
    ])
}

/// Transposes numbers [..., T, H] to [..., H, T].
fn heads_first<T: Copy>(mut shape: Vec<usize>, numbers: &[T]) -> (Vec<usize>, Vec<T>) {
    let last = shape.len() - 2;
    let [tokens, heads] = [shape[last], shape[last + 1]];
    shape.swap(last, last + 1);
    let of = |at: usize| {
        let (batch, head, token) = (at / (tokens * heads), at / tokens % heads, at % tokens);
        numbers[(batch * tokens + token) * heads + head]
    };
    (shape, (0..numbers.len()).map(of).collect())
}

/// Returns the range of the keys that a query attends to, after the causal mask and the window.
fn seen(call: &Call, all: &Keys, sizes: &Sizes, [sequence, token]: [usize; 2]) -> std::ops::Range<usize> {
    let window = match (call.number("window") as usize, call.fault) {
        (0, _) | (_, Some("no_window")) => None,
        (window, Some("window_one_more")) => Some(window + 1),
        (window, Some("window_one_less")) => Some(window - 1),
        (window, _) => Some(window),
    };
    let causal = (call.flag("causal") || call.flag("window")) && !call.is("not_causal");
    let queries = sizes.count(call.pick("first_count", 0, sequence));
    let length = all.length(sequence, queries);
    let keys = all.read(length);
    let aligned = call.pick(
        "causal_from_start",
        token + 1,
        (token + 1 + length).saturating_sub(queries),
    );
    let aligned = aligned - usize::from(call.is("own_key_masked") && aligned > 0);
    let end = if causal { aligned.min(keys) } else { keys };
    let from = window.map_or(0, |window| end.saturating_sub(window));
    from..end
}

fn one(call: &Call, all: &Keys, sizes: &Sizes, [b, head, token]: [usize; 3]) -> Row {
    let Sizes { heads, groups, dim, .. } = *sizes;
    let (q, k, v) = (call.tensor("q"), call.tensor("k"), call.tensor("v"));
    let group = call.pick("other_group", head % groups, head / (heads / groups));
    let (scale, v_scale) = (call.scale(dim) * call.number("k_scale"), call.number("v_scale"));
    let base = call.pick("base_two", std::f64::consts::LN_2, 1.0);
    let [row, place] = sizes.query(b, token);
    let q = &q.data[sizes.at([row, head, place], [heads, sizes.queries, dim])..][..dim];
    let keys = seen(call, all, sizes, [b, token]);
    let places: Vec<(usize, usize)> = keys.map(|key| all.place(b, key)).collect();
    let score = |&(page, slot): &(usize, usize)| {
        let k = &k.data[sizes.at([page, group, slot], [groups, sizes.page, dim])..][..dim];
        score(call, [q, k], [scale, base])
    };
    let scores: Vec<(f64, f64)> = places.iter().map(score).collect();
    let sink = call.optional("sinks").map(|sinks| sinks.data[head] * base);
    let value = |col: usize| {
        move |&(page, slot): &(usize, usize)| {
            v.data[sizes.at([page, group, slot], [groups, sizes.page, sizes.values]) + col]
        }
    };
    let values = |col| places.iter().map(value(col));
    let (mut columns, (log, log_error)) =
        weighted(call, &scores, sink, Some(call.number("p_scale")), sizes.values, values);
    // The fault `unused_values` multiplies unused values by weights of 0. The products are 0 for finite values, else NaN.
    let unused: Vec<(usize, usize)> = all.unused(b).filter(|_| call.is("unused_values")).collect();
    for (col, [o, error, spread]) in columns.iter_mut().enumerate() {
        if log > f64::NEG_INFINITY && unused.iter().map(value(col)).any(|v| !v.is_finite()) {
            (*o, *error, *spread) = (f64::NAN, 0.0, 0.0);
        }
        (*o, *error, *spread) = (*o * v_scale, *error * v_scale.abs(), *spread * v_scale.abs());
    }
    let per = if call.word("lse_base") == "2" {
        std::f64::consts::LOG2_E
    } else {
        1.0
    };
    (columns, (log * per, log_error * per))
}

/// Returns the score of a query and a key, with its error bound: their dot product times `scale` times `base`. `base` is 1, or ln
/// 2 for kernels that compute 2^s instead of e^s.
pub(super) fn score(call: &Call, [q, k]: [&[f64]; 2], [scale, base]: [f64; 2]) -> (f64, f64) {
    let terms = Terms::of(q.iter().zip(k).map(|(q, k)| q * k), call.u);
    let score = terms.sum * scale * base;
    (score, terms.error() * scale.abs() + 3.0 * call.u * score.abs())
}

/// Computes means of values, weighted by the exponentials of scores. `scores` has pairs of a score and its error bound. A kernel
/// that rounds weights to the type `p` stores them as `p_scale`·exp(score − largest score). If `p_scale` is `None`, the kernel
/// divides the weights by their sum before it rounds them.
pub(super) fn weighted<V: Iterator<Item = f64> + Clone>(
    call: &Call,
    scores: &[(f64, f64)],
    sink: Option<f64>,
    p_scale: Option<f64>,
    columns: usize,
    values: impl Fn(usize) -> V,
) -> Row {
    let all = scores.iter().map(|(score, _)| *score).chain(sink);
    let most = all.fold(f64::NEG_INFINITY, f64::max);
    if scores.iter().any(|(score, _)| score.is_nan()) || sink.is_some_and(f64::is_nan) {
        return (vec![[f64::NAN, 0.0, 0.0]; columns], (f64::NAN, 0.0));
    }
    if most == f64::NEG_INFINITY {
        return (vec![[0.0; 3]; columns], (f64::NEG_INFINITY, 0.0));
    }
    let power = |(score, error): &(f64, f64)| {
        let exponent = score - most;
        let relative = error + (4.0 + 4.0 * exponent.abs().min(1e4) + 2.0 * most.abs().min(1e4)) * call.u;
        (exponent.exp(), relative)
    };
    let mut powers: Vec<(f64, f64)> = scores.iter().map(power).collect();
    let of_sink = sink.map(|sink| (sink - most).exp());
    let sums = Terms::of_any_scale(powers.iter().map(|(power, _)| *power).chain(of_sink), call.u);
    powers.iter_mut().for_each(|(power, _)| *power /= sums.sum);
    // Equal weights have equal errors, which add up. So group the weights by value.
    let equal = Equal::of(powers.iter().map(|(p, _)| *p));
    let of_sum = sums.error() / sums.sum + 4.0 * call.u;
    let p = call.dtype("p");
    // The kernel may scale weights before it rounds them, so the position of a weight within its binade is unknown. Allow the
    // largest relative rounding error (half a spacing at the lower end of a binade), but at least half of the smallest step of
    // the type.
    let stored_one = p_scale.map_or(1.0, |p_scale| p_scale * sums.sum);
    let least = p.map_or(0.0, |p| half_spacing(p, 0.0) / stored_one);
    let rounded = |weight: f64| match p {
        Some(p) if weight > least => (half_spacing(p, 1.0) * weight).max(least),
        _ => 0.0,
    };
    let lost = |weight: f64| if weight > least { 0.0 } else { weight };
    let column = |col: usize| {
        let all = values(col).zip(&powers);
        let terms = Terms::of_any_scale(all.clone().map(|(v, (p, _))| v * p), call.u);
        let o = terms.sum;
        let of_weights = equal.together(all.clone().map(|(v, (p, relative))| p * relative * (v - o).abs()));
        let (most, squares) = equal.sums(all.clone().map(|(v, (p, _))| rounded(*p) * v.abs()));
        let spread = (squares / 6.0).sqrt();
        // `spread` has the factor 1/6, which is an average over many different weights. A kernel that divides weights by their
        // sum before rounding may have a few equal weights in a row: use the worst-case factor 1.
        let likely = if p_scale.is_some() { spread } else { squares.sqrt() };
        let of_rounding = f64::min(most, LAMBDA * likely);
        let lost: f64 = all.map(|(v, (p, _))| lost(*p) * (v - o).abs().max(v.abs())).sum();
        let error = terms.error() + of_weights + of_rounding + lost + o.abs() * (of_sum + call.u);
        [o, error, spread]
    };
    let log_error = equal.together(powers.iter().map(|(p, relative)| p * relative));
    let log = most + sums.sum.ln();
    let columns = (0..columns).map(column).collect();
    (columns, (log, log_error + of_sum + 4.0 * call.u * log.abs()))
}
