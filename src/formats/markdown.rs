//! `docs/formats.md`, written from the tables.

use std::fmt::Write;

use super::element::{ELEMENTS, Element, Repr};
use super::named::FORMATS;
use super::nvfp4::{NVFP4_RULES, NVFP4_SINGLE_RULES};
use super::records::{PAGE, RECORDS, Record};
use super::scale::{F32_RULES, POWER_RULES};

const INTRODUCTION: &str = "# Formats

Written from the tables in `src/formats` by `formats::markdown()`; change those, then run the tests with
`ULPLAB_BLESS=1`.

A format is an element under up to two levels of scales:

```
element[/b<N>:<scale>[(rule)]][/token:<scale>[(rule)]][/t:<scale>[(rule)]]
```

`b<N>` is a block of N consecutive channels, `token` a row, `t` all rows of one call. Scales are `e8m0`, `f32` or
`e4m3`; a rule left out is the first of its table. Only `e4m3` block scales have a second level, `t:f32` or `token:f32`.

All casts round to nearest, ties to even, from f32 and without intermediate roundings. Of two 4-bit codes in a byte the
first is in the low nibble. A NaN or an infinity in a scaled block makes the scale NaN and all values of the block NaN;
under a second level, all values that share it: no NaN vanishes in the cast to an element that has none. Unscaled formats
keep NaN; unscaled `e4m3` and `e5m2` saturate infinities as PTX `cvt.satfinite` does.
";

/// The whole file.
pub fn markdown() -> String {
    let mut out = INTRODUCTION.to_owned();
    section(
        &mut out,
        "Elements",
        &["name", "bits", "largest", "smallest", "NaN codes", ""],
    );
    for element in ELEMENTS {
        let Element { name, bits, doc, .. } = element;
        let (smallest, nans) = (smallest(element), nan_codes(element));
        row(
            &mut out,
            &[
                &code(name),
                &bits.to_string(),
                &number(element.max()),
                &smallest,
                &nans,
                doc,
            ],
        );
    }
    section(&mut out, "Rules for e8m0 scales", &["rule", ""]);
    POWER_RULES
        .iter()
        .for_each(|rule| row(&mut out, &[&code(rule.name), rule.doc]));
    section(&mut out, "Rules for f32 scales", &["rule", ""]);
    F32_RULES
        .iter()
        .for_each(|rule| row(&mut out, &[&code(rule.name), rule.doc]));
    section(&mut out, "Rules for e4m3 scales, one level", &["rule", ""]);
    NVFP4_SINGLE_RULES
        .iter()
        .for_each(|rule| row(&mut out, &[&code(rule.name), rule.doc]));
    section(&mut out, "Rules for e4m3 scales under a second level", &["rule", ""]);
    NVFP4_RULES
        .iter()
        .for_each(|rule| row(&mut out, &[&code(rule.name), rule.doc]));
    section(&mut out, "Named formats", &["name", "format", ""]);
    FORMATS
        .iter()
        .for_each(|named| row(&mut out, &[&code(named.name), &code(named.format), named.doc]));
    out.push_str(
        "\n## Records\n\nOne token's entry in a KV cache, byte by byte. A page of P tokens holds one region after the \
         other, a region P rows, one per token; the page is padded with zeros. Vectors are rounded to bf16 before they \
         are quantized, as they are bf16 tensors in DeepSeek's inference code.\n",
    );
    RECORDS.iter().for_each(|record| describe(&mut out, record));
    out
}

fn describe(out: &mut String, record: &Record) {
    let Record {
        name,
        doc,
        source,
        dim,
        bytes,
        regions,
        align,
        ..
    } = record;
    let stride = record.page_stride(PAGE);
    let _ = write!(
        out,
        "\n### `{name}`\n\n{doc}.\nSource: {source}. {dim} channels, {bytes} bytes; "
    );
    let aligned = if *align == 1 {
        String::new()
    } else {
        format!(", a multiple of {align}")
    };
    let _ = writeln!(out, "a page of {PAGE} takes {stride} bytes{aligned}.\n");
    row(out, &["region", "bytes of the row", "offset in the page", "holds"]);
    row(out, &["---"; 4]);
    let mut start = 0;
    let mut region = 0;
    for (holds, place) in record.places() {
        while region < place.region {
            start += regions[region];
            region += 1;
        }
        let end = place.offset + place.bytes - 1;
        let base = if start == 0 {
            String::new()
        } else {
            format!("{start}·P + ")
        };
        let offset = format!("{base}{}·slot + {}", regions[region], place.offset);
        row(
            out,
            &[&region.to_string(), &format!("{}–{end}", place.offset), &offset, &holds],
        );
    }
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

/// A number in few characters: plain, or as a power of two.
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

/// The smallest value above zero.
fn smallest(element: &Element) -> String {
    number(element.decode(u16::from(element.repr != Repr::Power)))
}

fn nan_codes(element: &Element) -> String {
    let nans: Vec<u32> = (0..1u32 << element.bits)
        .filter(|code| element.decode(*code as u16).is_nan())
        .collect();
    match nans.as_slice() {
        [] => "none".into(),
        [code] => format!("{code:#x}"),
        [first, .., _] => {
            // Of a signed format the codes with the sign bit are the same again.
            let half = nans.len() / 2;
            let last = nans[half - 1];
            if half == 1 {
                format!("±{first:#x}")
            } else {
                format!("±{first:#x}–{last:#x}")
            }
        }
    }
}
