//! What loops, grids and offsets of every operation depend on, and which of it no case has.
//!
//! Sizes, indices and counts are taken from the cases and from the bytes of their inputs. What is missing is listed with the reason,
//! and the list must be exact: it cannot grow by accident, and what a new case adds must be struck off.

use std::collections::BTreeSet;

use ulplab::ops::{Buffer, Case, Problem};
use ulplab::studies::kernels::power::smallest_first;

use super::{buffer, problems_of, with_own_cases};

/// An operation's sizes, and inputs that are no numbers to compute with.
struct Ranges {
    op: &'static str,
    /// The sizes that loops and grids go over, first the one that counts independent rows.
    extents: &'static [&'static str],
    /// Sizes that follow from others, widths of elements, and switches.
    others: &'static [&'static str],
    /// Inputs that name places, how many of each row count if not all do, and where the places are.
    names: &'static [(&'static str, Option<&'static str>, Places)],
    /// Inputs that say how much of a row there is, and whether they say where it ends.
    counts: &'static [(&'static str, Counts)],
}

/// How many places there are.
#[derive(Clone, Copy)]
enum Places {
    /// The first dimension of a buffer.
    Rows(&'static str),
    /// The tokens of all pages of a buffer, or of each row's own.
    Tokens(&'static str),
    /// A size.
    Size(&'static str),
}

#[derive(Clone, Copy, PartialEq)]
enum Counts {
    Lengths,
    /// Starts of rows and the end of the last, or ends of all.
    Ends,
}
use Counts::{Ends, Lengths};
use Places::{Rows, Size, Tokens};

/// Tokens of a page.
const PAGE: i64 = ulplab::formats::PAGE as i64;

const fn ranges(op: &'static str, extents: &'static [&'static str], others: &'static [&'static str]) -> Ranges {
    Ranges {
        op,
        extents,
        others,
        names: &[],
        counts: &[],
    }
}

const RANGES: &[Ranges] = &[
    Ranges {
        names: &[("position", None, Size("P"))],
        ..ranges("compressor", &["B", "m", "D", "R", "N", "P"], &["S", "W", "overlap"])
    },
    ranges(
        "decode_step",
        &[
            "B", "V", "C", "Rq", "H", "D", "G", "Ro", "Wn", "HI", "DI", "topk", "E", "K", "I", "layers",
        ],
        &[
            "R",
            "S",
            "P",
            "Ns",
            "Nh",
            "ms",
            "mh",
            "HD",
            "lead",
            "hashes",
            "sparse",
            "heavy",
            "wide",
            "records",
            "indexed",
            "eight",
            "sixteen",
            "banks",
            "window_pages_of_row",
            "csa_pages_of_row",
            "hca_pages_of_row",
            "weight_bits",
            "routed_bits",
        ],
    ),
    Ranges {
        names: &[("indices", None, Rows("state"))],
        ..ranges("delta_decode", &["B", "H", "G", "K", "V", "slots"], &["vk", "size"])
    },
    Ranges {
        names: &[("indices", None, Rows("state"))],
        counts: &[("starts", Ends)],
        ..ranges(
            "delta_handover",
            &["N", "T", "H", "K", "V"],
            &["HV", "chunks", "one", "G", "size", "index", "in_vk", "out_vk"],
        )
    },
    Ranges {
        counts: &[("starts", Ends)],
        ..ranges(
            "delta_prefill",
            &["N", "T", "H", "HV", "K", "V"],
            &["chunks", "G", "size", "index", "in_vk", "out_vk"],
        )
    },
    ranges("dequantize", &["T", "C"], &["W"]),
    ranges("diagonal_ssm", &["H", "S", "N"], &[]),
    Ranges {
        names: &[("experts", None, Size("E"))],
        ..ranges("experts", &["B", "E", "K", "D", "I"], &[])
    },
    ranges("fp4_gemm", &["B", "N", "K"], &[]),
    ranges("fp8_gemm", &["B", "N", "K"], &[]),
    ranges("hyper_head", &["B", "C"], &[]),
    Ranges {
        names: &[("table", None, Rows("pages"))],
        counts: &[("count", Lengths)],
        ..ranges("index_records", &["B", "H", "N"], &[])
    },
    Ranges {
        counts: &[("count", Lengths)],
        ..ranges("index_scores", &["B", "H", "D", "N"], &["size"])
    },
    ranges("linear", &["B", "G", "N", "K"], &["size"]),
    ranges("mhc_post", &["B", "C"], &[]),
    ranges("mhc_pre", &["T", "C"], &["size"]),
    Ranges {
        names: &[("experts", None, Size("E"))],
        ..ranges("moe_fp4", &["B", "E", "K", "D", "I"], &[])
    },
    ranges("quantize", &["T", "C"], &["W", "S", "FIND"]),
    Ranges {
        names: &[
            ("window_slots", Some("window_count"), Tokens("window_pages")),
            ("slots", Some("count"), Tokens("pages")),
        ],
        counts: &[("window_count", Lengths), ("count", Lengths)],
        ..ranges(
            "record_attention",
            &["B", "H", "Wn", "K"],
            &["window_own", "own", "window_listed", "listed", "size"],
        )
    },
    Ranges {
        names: &[("slots", None, Tokens("pages"))],
        ..ranges("record_read", &["T", "C"], &["out_bytes", "slot_bytes"])
    },
    Ranges {
        names: &[("slots", None, Tokens("pages"))],
        ..ranges("record_write", &["T", "C"], &["slot_bytes"])
    },
    ranges("rmsnorm", &["T", "C"], &["S"]),
    ranges("rmsnorm_quantize", &["T", "C"], &["W", "S"]),
    ranges("rope", &["T", "H", "D", "R"], &["size"]),
    Ranges {
        names: &[("token", None, Size("V")), ("table", None, Size("E"))],
        ..ranges("router", &["B", "E", "K", "V"], &[])
    },
    ranges("sample", &["B", "V"], &[]),
    Ranges {
        counts: &[("ends", Ends)],
        ..ranges("scale_layout", &["H", "W", "G"], &["row_groups", "col_groups", "bytes"])
    },
    Ranges {
        names: &[("indices", Some("count"), Size("N"))],
        counts: &[("count", Lengths)],
        ..ranges("sparse_attention", &["B", "H", "D", "Wn", "N", "K"], &["size"])
    },
    ranges("state_transpose", &["B", "H", "K", "V"], &["size"]),
    ranges(
        "swap_ffn",
        &["B", "C", "D", "F", "E", "J"],
        &["begin", "end", "RES", "rule", "size"],
    ),
    ranges("swiglu", &["T", "C"], &[]),
    ranges("swiglu_quantize", &["T", "C"], &["W"]),
    Ranges {
        counts: &[("count", Lengths)],
        ..ranges("top_k", &["B", "N", "K"], &[])
    },
    ranges("wgmma", &["M", "N", "K"], &[]),
];

const OF_MODEL: &str = "heads of the model are 64; fewer are odd, and a warp or a block takes one";
const FIXED: &str = "the kernels are made for these sizes";
const SHORT: &str = "windows are shorter than a tile, or whole ones; the entries beside them have rests";
const BLOCKS: &str = "codes have a scale for 32 numbers, so that rows are whole blocks";
const HANDED: &str = "delta_prefill has sequences of all lengths, delta_decode has slots of all kinds";
const NOT_YET: &str = "no case has it yet";

/// What no case has, and why.
const MISSING: &[(&str, &str, &str)] = &[
    (
        "compressor",
        "a rest of m",
        "rates of the model are 4 and 128; one thread goes over a window",
    ),
    (
        "compressor",
        "the last of position",
        "the last row of the tables may be beyond the last token",
    ),
    ("decode_step", "a rest of DI", NOT_YET),
    ("decode_step", "a rest of G", "groups of heads are two"),
    (
        "decode_step",
        "a rest of H",
        "six heads fit a warp, and the attention alone has more",
    ),
    ("decode_step", "a rest of HI", OF_MODEL),
    ("decode_step", "a rest of Wn", SHORT),
    (
        "decode_step",
        "a rest of topk",
        "top_k alone has the sizes of the model",
    ),
    (
        "decode_step",
        "sizes that all differ",
        "the small model has some sizes twice; operations alone have them apart",
    ),
    ("delta_decode", "a rest of H", OF_MODEL),
    ("delta_handover", "a rest of H", OF_MODEL),
    ("delta_handover", "a rest of K", FIXED),
    ("delta_handover", "a rest of N", NOT_YET),
    ("delta_handover", "a rest of V", FIXED),
    ("delta_handover", "different lengths in starts", HANDED),
    ("delta_handover", "negative of indices", HANDED),
    ("delta_handover", "nothing in starts", HANDED),
    ("delta_handover", "one in starts", HANDED),
    (
        "delta_handover",
        "sizes that all differ",
        "K = V = 128 is what both kernels are made for; each alone has others",
    ),
    ("delta_prefill", "a rest of H", OF_MODEL),
    ("delta_prefill", "a rest of HV", OF_MODEL),
    (
        "delta_prefill",
        "a rest of K",
        "the kernels by tiles are made for 128, and 24 is no multiple of 16",
    ),
    ("diagonal_ssm", "a rest of H", NOT_YET),
    ("diagonal_ssm", "one row", NOT_YET),
    ("index_scores", "a rest of H", OF_MODEL),
    ("moe_fp4", "a rest of D", BLOCKS),
    ("moe_fp4", "a rest of I", BLOCKS),
    ("record_attention", "a rest of Wn", SHORT),
    (
        "record_read",
        "a rest of C",
        "records have 512 channels, and those of an index 128",
    ),
    (
        "record_write",
        "a rest of C",
        "records have 512 channels, and those of an index 128",
    ),
    (
        "rope",
        "a rest of R",
        "six channels are a rest alone, 64 and 128 are the models' own",
    ),
    ("sparse_attention", "a rest of H", OF_MODEL),
    ("sparse_attention", "a rest of Wn", SHORT),
    ("state_transpose", "a rest of B", "a thread block has one matrix"),
    ("state_transpose", "a rest of H", "a thread block has one matrix"),
    (
        "swap_ffn",
        "a rest of B",
        "no loop runs over tokens: rows are those of all tokens together, and have rests",
    ),
    ("top_k", "a rest of K", "K is 32, 512 or 1024, as the kernels are made"),
    ("wgmma", "a rest of K", FIXED),
    ("wgmma", "a rest of N", FIXED),
    (
        "wgmma",
        "one row",
        "each case has many products, so that all of the card's processors take part",
    ),
];

/// Numbers that loops take at once, at least and as a rule.
const TILES: [i64; 2] = [8, 32];

/// What sizes alone tell: one row, an odd number of rows, sizes that all differ, and each size with a rest beyond whole tiles; where all
/// are smaller than a tile, an odd one.
fn missing_sizes(ranges: &Ranges, cases: &[Case]) -> Vec<String> {
    let size = |case: &Case, name: &str| case.dims.iter().find(|(dim, _)| *dim == name).map(|(_, size)| *size);
    let of = |name: &str| {
        cases
            .iter()
            .filter_map(|case| size(case, name))
            .collect::<BTreeSet<i64>>()
    };
    let rows = of(ranges.extents[0]);
    let apart = |case: &Case| {
        let sizes: Vec<i64> = ranges.extents.iter().filter_map(|name| size(case, name)).collect();
        sizes.iter().collect::<BTreeSet<_>>().len() == sizes.len()
    };
    let rest = |name: &&&str| {
        let sizes = of(name);
        let small = sizes.iter().all(|size| *size <= TILES[0]);
        let beyond = |size: &i64| TILES.iter().any(|tile| size > tile && size % tile != 0);
        !sizes.iter().any(|size| beyond(size) || small && size % 2 != 0)
    };
    let all = [
        ("one row", rows.contains(&1)),
        ("odd rows", rows.iter().any(|rows| *rows > 1 && rows % 2 == 1)),
        ("sizes that all differ", cases.iter().any(apart)),
    ];
    let lacking = all.iter().filter(|(_, there)| !there).map(|(what, _)| what.to_string());
    lacking
        .chain(
            ranges
                .extents
                .iter()
                .filter(rest)
                .map(|name| format!("a rest of {name}")),
        )
        .collect()
}

/// What inputs tell: negative places, the first and the last place, rows of nothing, whole rows.
fn missing_places(ranges: &Ranges, problems: &[(Case, Problem)]) -> Vec<String> {
    let mut missing = Vec::new();
    let mut lacks = |there: bool, what: String| {
        if !there {
            missing.push(what);
        }
    };
    for (name, count, places) in ranges.names {
        let mut seen = [false; 3];
        for (case, problem) in problems {
            let named = numbers(buffer(problem, name));
            let rows = buffer(problem, name).shape[0];
            let each = named.len() / rows.max(1);
            let counts = count.map(|count| numbers(buffer(problem, count)));
            let own = |at: &usize| {
                counts
                    .as_ref()
                    .is_none_or(|counts| ((at % each) as i64) < counts[at / each])
            };
            let last = match places {
                Rows(pool) => buffer(problem, pool).shape[0] as i64,
                Tokens(pool) => {
                    let shape = &buffer(problem, pool).shape;
                    shape[shape.len() - 2] as i64 * PAGE
                }
                Size(name) => case.dim(name) as i64,
            } - 1;
            for number in (0..named.len()).filter(own).map(|at| named[at]) {
                seen = [seen[0] || number < 0, seen[1] || number == 0, seen[2] || number == last];
            }
        }
        for (there, what) in seen.into_iter().zip(["negative", "the first", "the last"]) {
            lacks(there, format!("{what} of {name}"));
        }
    }
    for (name, counts) in ranges.counts {
        let lengths = |problem: &Problem| {
            let numbers = numbers(buffer(problem, name));
            match counts {
                Lengths => numbers,
                Ends => std::iter::once(0)
                    .chain(numbers.windows(2).map(|pair| pair[1] - pair[0]))
                    .skip(1)
                    .collect(),
            }
        };
        let all: Vec<Vec<i64>> = problems.iter().map(|(_, problem)| lengths(problem)).collect();
        lacks(
            all.iter().flatten().any(|length| *length == 0),
            format!("nothing in {name}"),
        );
        lacks(
            all.iter().flatten().any(|length| *length == 1),
            format!("one in {name}"),
        );
        let differ = |lengths: &Vec<i64>| lengths.iter().collect::<BTreeSet<_>>().len() > 2;
        lacks(all.iter().any(differ), format!("different lengths in {name}"));
    }
    missing
}

fn numbers(buffer: &Buffer) -> Vec<i64> {
    let size = buffer.dtype.bitsize() / 8;
    let number = |bytes: &[u8]| match *bytes {
        [a, b, c, d] => i32::from_le_bytes([a, b, c, d]).into(),
        _ => i64::from_le_bytes(bytes.try_into().expect("integers of four or eight bytes")),
    };
    buffer.bytes.chunks_exact(size).map(number).collect()
}

/// Small cases, of which inputs are looked at.
fn small(op: &str) -> Vec<(Case, Problem)> {
    // As many as the suite has time for; those of one kind lie apart in the list.
    problems_of(op, smallest_first(ulplab::ops::find(op).unwrap()).into_iter().take(40))
}

#[test]
fn every_size_of_an_operation_is_declared() {
    for op in with_own_cases() {
        let ranges = RANGES.iter().find(|ranges| ranges.op == op.name());
        let ranges = ranges.unwrap_or_else(|| panic!("{} declares no ranges", op.name()));
        let declared: BTreeSet<&str> = ranges.extents.iter().chain(ranges.others).copied().collect();
        let cases = op.cases();
        let sizes: BTreeSet<&str> = cases
            .iter()
            .flat_map(|case| case.dims.iter().map(|(name, _)| *name))
            .collect();
        assert_eq!(sizes, declared, "{}", op.name());
    }
    assert_eq!(RANGES.len(), with_own_cases().count());
}

#[test]
fn every_range_has_a_case_or_a_reason() {
    let mut missing = Vec::new();
    for ranges in RANGES {
        let mut of_op = missing_sizes(ranges, &ulplab::ops::find(ranges.op).unwrap().cases());
        if !ranges.names.is_empty() || !ranges.counts.is_empty() {
            of_op.extend(missing_places(ranges, &small(ranges.op)));
        }
        missing.extend(of_op.into_iter().map(|what| format!("{}: {what}", ranges.op)));
    }
    let known: BTreeSet<String> = MISSING.iter().map(|(op, what, _)| format!("{op}: {what}")).collect();
    let found: BTreeSet<String> = missing.into_iter().collect();
    let without: Vec<_> = found.difference(&known).collect();
    assert!(
        without.is_empty(),
        "no case has these, and no reason is given: {without:#?}"
    );
    let needless: Vec<_> = known.difference(&found).collect();
    assert!(needless.is_empty(), "cases have these: strike them off: {needless:#?}");
}
