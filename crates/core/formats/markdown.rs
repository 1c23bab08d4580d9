//! Writes `docs/formats.md` from the tables of formats.

use std::fmt::Write;

use super::block::Format;
use super::convention::{CASTS, Convention, Rounding};
use super::element::{E2M1, ELEMENTS, Element, Repr, UINT4, Whole};
use super::minifloat::{NanCode, Overflow, Policy, Ties, Zeros};
use super::named::FORMATS;
use super::power::PowerCast;
use super::records::{KvRecord, PAGE, Place, RECORDS};
use super::scale::Scale;

/// Row length in channels, as in a KV vector. The column `bits` of the tables gives the bits per element for such rows.
const ROW: usize = 512;

const INTRODUCTION: &str = "# Formats

This page lists the number formats that ulplab knows: elements, the casts to them, rules that pick scales, named formats and KV records.

<!-- formats::markdown() writes this page from the tables in crates/core/formats; change those, then run the tests with ULPLAB_BLESS=1. -->

A format is an element under up to two levels of scales:

```
[rht<N>/]element[(cast)][/<group>:<scale>[(rule)]][/t:f32 | /token:f32]
```

A group is `b<N>`, a block of N consecutive channels; `b<R>x<C>`, a tile of R rows and C channels; `token`, a row,
which is an output channel of a weight `[out, in]`; `column`, a column; `t`, all rows of one call. Blocks and tiles at the edge may be cut short. Scales are `e8m0`, `f32`, `f16`,
`bf16` or `e4m3`; a rule left out is the first of its table. Only `e4m3` block scales have a second level, `t:f32` or
`token:f32`. `rht<N>` rotates each N channels by random signs and a Hadamard matrix first, and back after decoding.

Unless a cast is named, all round to nearest, ties to even, from f32 and without intermediate roundings. Codes of 2, 3 and 4
bits lie one after the other from the lowest bit of a byte on, so of two 4-bit codes the first is in the low nibble; 6-bit
codes take a byte each. Unless the rule says otherwise, a NaN or an
infinity in a scaled block makes the scale NaN and all values of the block NaN; under a second level, all values that share
it: no NaN vanishes in the cast to an element that has none. Where a library's own maximum ignores NaN, ulplab's does not.
Unscaled formats keep NaN; unscaled `e4m3` and `e5m2` saturate infinities as PTX `cvt.satfinite` does.

`uint2`, `uint3`, `uint4` and `uint8` have no negative codes. Their scales, `f32`, `f16` or `bf16`, stand next to zero points,
stored as `zero`: a number of the type of the scale, or a byte. With `n` the largest code, `lo` and `hi` the smallest and the
largest value of a block, and `R` a step rounded to the type of the scale, as a library computes whose tensors have that
type, the tables of rules say how values become codes. A scale or zero point too large for its type makes the block NaN. A
group `b<R>x1`, or `column`, is a run of rows of one channel, as KIVI groups keys. Such groups start at the first row of a
call, and the last is cut short and has a range of its own, where KIVI keeps the rows of an unfinished group in f16. KIVI
packs codes of keys along tokens; here all codes lie along channels. AWQ interleaves its codes and bitsandbytes has the first
of two codes in the high nibble; here they are in order, from the low one on.

`lut(…)` is an element with a table of its own: 4, 8, 16 or 256 ascending numbers, as in
`lut(-1,-0.3,0.3,1)/b64:f16`. A number becomes the nearest value, and on the midpoint of two, rounded to f32, the smaller.
Against scales the table counts by its largest magnitude.
";

/// Returns the text of `docs/formats.md`.
pub fn markdown() -> String {
    let mut out = INTRODUCTION.to_owned();
    let columns = ["name", "bits", "largest", "smallest", "NaN codes", ""];
    section(&mut out, "Elements", &columns);
    for element in ELEMENTS {
        let (name, bits, largest) = (code(element.name), element.bits.to_string(), number(element.max()));
        let (smallest, nans) = (smallest(element), nan_codes(element));
        row(&mut out, &[&name, &bits, &largest, &smallest, &nans, element.doc]);
    }
    let columns = ["cast", "element", "ties", "overflow", "infinity", "NaN", "zero", ""];
    section(&mut out, "Casts", &columns);
    CASTS.iter().for_each(|convention| casts(&mut out, convention));
    for (of, kind, element, two_levels) in [
        ("e8m0 scales", "e8m0", &E2M1, false),
        ("f32 scales", "f32", &E2M1, false),
        ("f16 and bf16 scales", "f16", &E2M1, false),
        ("f32, f16 and bf16 scales with zero points", "f32", &UINT4, false),
        ("e4m3 scales, one level", "e4m3", &E2M1, false),
        ("e4m3 scales under a second level", "e4m3", &E2M1, true),
    ] {
        section(&mut out, &format!("Rules for {of}"), &["rule", ""]);
        for scale in Scale::table(kind, element, two_levels) {
            let (name, doc) = scale.rule();
            row(&mut out, &[&code(name), doc]);
        }
    }
    section(&mut out, "Named formats", &["name", "format", "bits", ""]);
    for named in FORMATS {
        let bits = bits(named.format);
        row(&mut out, &[&code(named.name), &code(named.format), &bits, named.doc]);
    }
    let _ = writeln!(
        out,
        "\n`bits` are those of an element in rows of {ROW} channels, scales and zero points of rows and blocks included."
    );
    out.push_str(
        "\n## Records\n\nOne token's entry in a KV cache, byte by byte. A page of P tokens holds one region after the \
         other, a region P rows, one per token; the page is padded with zeros. Vectors are rounded to bf16 before they \
         are quantized, as they are bf16 tensors in DeepSeek's inference code.\n",
    );
    RECORDS.iter().for_each(|record| describe(&mut out, record));
    out
}

fn describe(out: &mut String, record: &KvRecord) {
    let (name, doc, source, dim, bytes) = (record.name, record.doc, record.source, record.dim, record.bytes);
    let stride = record.page_stride(PAGE);
    let _ = write!(
        out,
        "\n### `{name}`\n\n{doc}.\nSource: {source}. {dim} channels, {bytes} bytes; "
    );
    let aligned = match record.align {
        1 => String::new(),
        align => format!(", a multiple of {align}"),
    };
    let _ = writeln!(out, "a page of {PAGE} takes {stride} bytes{aligned}.\n");
    row(out, &["region", "bytes of the row", "offset in the page", "holds"]);
    row(out, &["---"; 4]);
    for (holds, Place { region, offset, bytes }) in record.places() {
        let (before, row_bytes) = (&record.regions[..region], record.regions[region]);
        let base = match before.iter().sum::<usize>() {
            0 => String::new(),
            start => format!("{start}·P + "),
        };
        let (first, last) = (offset, offset + bytes - 1);
        let offset = format!("{base}{row_bytes}·slot + {first}");
        row(out, &[&region.to_string(), &format!("{first}–{last}"), &offset, &holds]);
    }
}

/// Writes the casts of one library, one table row per element.
fn casts(out: &mut String, convention: &Convention) {
    for (index, (element, rounding)) in convention.casts.iter().enumerate() {
        let [ties, overflow, infinity, nan, zeros] = match rounding {
            Rounding::Float(policy) => policy_words(policy),
            Rounding::Integer(whole) => whole_words(*whole),
            Rounding::Power(cast) => power_words(cast),
        };
        let doc = if index == 0 { convention.doc } else { "" };
        let (name, element) = (code(convention.name), code(element));
        row(out, &[&name, &element, &ties, &overflow, &infinity, &nan, &zeros, doc]);
    }
}

fn policy_words(policy: &Policy) -> [String; 5] {
    let ties = match policy.ties {
        Ties::Even => "even",
        Ties::Away => "away from 0",
        Ties::Zero => "toward 0",
    };
    let overflow = |overflow| match overflow {
        Overflow::Saturate => "largest",
        Overflow::Special => "inf or NaN",
    };
    let nan = match policy.nan {
        NanCode::Code(code) => format!("{code:#x}"),
        NanCode::Signed(code) => format!("±{code:#x}"),
        NanCode::FlippedZero => "∓0".into(),
    };
    let zeros = match policy.zeros {
        Zeros::Signed => "±0",
        Zeros::UnsignedIfExact => "±0 → +0",
        Zeros::Unsigned => "any → +0",
        Zeros::NegativeIfExact => "±0 → −0",
    };
    let [ties, large, infinite, zeros] =
        [ties, overflow(policy.overflow), overflow(policy.infinity), zeros].map(String::from);
    [ties, large, infinite, nan, zeros]
}

fn whole_words(whole: Whole) -> [String; 5] {
    let ties = match whole {
        Whole::Even => "even",
        Whole::HalfAdded => "away from 0",
        Whole::TowardZero => "next toward 0",
    };
    [ties, "largest", "largest", "0x0", "0"].map(String::from)
}

fn power_words(cast: &PowerCast) -> [String; 5] {
    let ties = match cast.threshold {
        0 => "next above",
        0x7f_ffff => "next below",
        _ => "nearest, up",
    };
    let large = if cast.special { "NaN" } else { "largest" };
    let zero = match cast.positive_only {
        true => "≤ 0 → NaN",
        false => "→ 2^-127",
    };
    [ties, large, large, "0xff", zero].map(String::from)
}

fn section(out: &mut String, title: &str, columns: &[&str]) {
    let _ = writeln!(out, "\n## {title}\n");
    row(out, columns);
    row(out, &vec!["---"; columns.len()]);
}

fn row(out: &mut String, cells: &[&str]) {
    let _ = writeln!(out, "| {} |", cells.join(" | "));
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

/// Formats a number in few characters, as a decimal or as a power of two.
fn number(value: f32) -> String {
    let exponent = value.log2();
    if exponent.fract() == 0.0 && exponent.abs() > 4.0 {
        format!("2^{exponent}")
    } else if value < 1e6 {
        format!("{value}")
    } else {
        format!("{value:.3e}")
    }
}

/// Returns the bits per element of a format, including the bits of scales and zero points.
fn bits(format: &str) -> String {
    let format: Format = format.parse().expect("named formats parse");
    let bits = format.bytes_per_row(ROW) * 8.0 / ROW as f64;
    // Up to four decimals, without trailing zeros.
    let text = format!("{bits:.4}");
    text.trim_end_matches('0').trim_end_matches('.').into()
}

/// Formats the smallest value above zero of an element format.
fn smallest(element: &Element) -> String {
    if let Repr::Codebook(book) = element.repr {
        let positive = book.values().iter().copied().find(|value| *value > 0.0);
        return positive.map_or("none".into(), number);
    }
    number(element.decode(u16::from(!matches!(element.repr, Repr::Power(_)))))
}

fn nan_codes(element: &Element) -> String {
    let is_nan = |code: &u32| element.decode(*code as u16).is_nan();
    let nans: Vec<u32> = (0..1u32 << element.bits).filter(is_nan).collect();
    match nans.as_slice() {
        [] => "none".into(),
        [code] => format!("{code:#x}"),
        [first, .., last] if *last - *first == nans.len() as u32 - 1 => format!("{first:#x}–{last:#x}"),
        // A signed format has the same NaN codes again with the sign bit set.
        [first, _] => format!("±{first:#x}"),
        [first, .., _] => format!("±{first:#x}–{:#x}", nans[nans.len() / 2 - 1]),
    }
}
