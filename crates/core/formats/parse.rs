//! Reads and writes format strings: `[rht<N>/]element[(cast)][/<group>:<scale>[(rule)]][/<group>:f32]`.
//!
//! The prefix `rht<N>` rotates groups of N channels by a random Hadamard transform. An element may be a table of values such as
//! `lut(-1,-0.3,0.3,1)`. There are at most two levels of scales: block scales, and an f32 global scale above E4M3 block scales.

use std::fmt;

use super::block::{Format, Group, Scaling};
use super::codebook;
use super::convention::{CASTS, Convention, convention};
use super::element::{ELEMENTS, Element, element};
use super::nvfp4_select::Select;
use super::scale::Scale;
use crate::error::did_you_mean;

/// Error message if a format string has the group `channel`. Libraries use this name for rows of weights and for columns of keys.
const CHANNEL: &str = "'channel' has two meanings; expected 'token' (a scale per row: per output channel of a weight [out, in]) \
                       or 'column' (a scale per column: per channel of keys)";

/// Largest block size or rotation size in a format string.
const LARGEST: usize = 65536;

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tile { rows: 1, cols } => write!(f, "b{cols}"),
            Self::Tile { rows, cols } => write!(f, "b{rows}x{cols}"),
            Self::Token => f.write_str("token"),
            Self::Column => f.write_str("column"),
            Self::Tensor => f.write_str("t"),
        }
    }
}

/// Prints a string that parses to the same format. Default rules are left out.
impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(size) = self.rotation {
            write!(f, "rht{size}/")?;
        }
        f.write_str(self.element.name)?;
        if let Some(convention) = self.convention {
            write!(f, "({})", convention.name)?;
        }
        if let Some(Scaling { group, scale }) = self.scaling {
            write!(f, "/{group}:{}", scale.kind())?;
            let rule = scale.rule().0;
            if scale != Scale::table(scale.kind(), self.element, self.global.is_some())[0] {
                write!(f, "({rule})")?;
            }
        }
        if let Some(group) = self.global {
            write!(f, "/{group}:f32")?;
        }
        Ok(())
    }
}

/// Aliases of scale rules (from libraries, papers and standards), each with the name of its rule.
const ALIASES: &[(&str, &str)] = &[
    ("transformer_engine", "te"),
    ("transformerengine", "te"),
    ("nvidia_modelopt", "modelopt"),
    ("tensorrt_model_optimizer", "modelopt"),
    ("ao", "torchao"),
    ("ocp", "floor"),
    ("cublas", "rceil"),
    ("deepseek", "act_quant"),
    ("four_over_six", "te46_mse_256"),
];

impl Format {
    /// Returns the same format with the scale rule called `name`, which may be an alias.
    pub fn with_rule(&self, name: &str) -> Result<Self, String> {
        let Some(Scaling { group, scale }) = self.scaling else {
            return Err(format!("format '{self}' has no scales, so no rule '{name}' for them"));
        };
        let scale = find_rule(scale.kind(), self.element, self.global.is_some(), name)?;
        let mut format = *self;
        format.scaling = Some(Scaling { group, scale });
        // Parsing the new string checks the format, since some rules do not support some groups.
        format.to_string().parse()
    }

    /// Returns a copy of the format for each rule of its scale type, except rules that do not support its group of elements. The
    /// copy with the rule of `self` comes first.
    pub fn by_rules(&self) -> Vec<Self> {
        let Some(Scaling { scale, .. }) = self.scaling else {
            return vec![*self];
        };
        let others = Scale::table(scale.kind(), self.element, self.global.is_some()).into_iter();
        let others = others.filter(|other| *other != scale);
        let others = others.filter_map(|other| self.with_rule(other.rule().0).ok());
        std::iter::once(*self).chain(others).collect()
    }

    /// Returns copies of the format, one with the default cast, and one with each library's cast of its element. The copy with
    /// the cast of `self` comes first.
    pub fn by_casts(&self) -> Vec<Self> {
        let casts = CASTS.iter().filter(|cast| cast.repr(self.element).is_some());
        let casts = std::iter::once(None).chain(casts.map(Some));
        let others = casts.filter(|cast| *cast != self.convention);
        let others = others.map(|convention| Self { convention, ..*self });
        std::iter::once(*self).chain(others).collect()
    }
}

/// Returns the scale of type `kind` with the rule called `name`, which may be an alias.
fn find_rule(kind: &str, element: &Element, two_levels: bool, name: &str) -> Result<Scale, String> {
    let table = Scale::table(kind, element, two_levels);
    let named = |name: &str| table.iter().copied().find(|scale| scale.rule().0 == name);
    let alias = ALIASES.iter().find(|(alias, _)| *alias == name);
    let found = named(name).or_else(|| alias.and_then(|(_, name)| named(name)));
    found.ok_or_else(|| {
        let names: Vec<&str> = table.iter().map(|scale| scale.rule().0).collect();
        let aliases = ALIASES.iter().filter(|(_, rule)| names.contains(rule));
        let near = did_you_mean(name, names.iter().copied().chain(aliases.map(|(alias, _)| *alias)));
        let levels = match table.first() {
            Some(Scale::E4m3(_)) if two_levels => " under a second level",
            Some(Scale::Affine(_)) => " with zero points",
            _ => "",
        };
        let all = names.join(", ");
        format!("unknown rule '{name}' for {kind} scales{levels}; rules are {all}{near}")
    })
}

/// One level of scales, `<group>:<scale>[(rule)]`, split into its parts.
struct Level<'a> {
    text: &'a str,
    group: Group,
    kind: &'a str,
    rule: Option<&'a str>,
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).map_err(|why| format!("format '{text}': {why}"))
    }
}

fn parse(text: &str) -> Result<Format, String> {
    let (rotation, rest) = rotation(text)?;
    let mut parts = rest.split('/');
    let (element, convention) = elements(parts.next().unwrap_or_default())?;
    let levels = parts.map(level).collect::<Result<Vec<_>, _>>()?;
    let (inner, outer) = match levels.as_slice() {
        [] if !element.has_nan() => {
            let name = element.name;
            return Err(format!(
                "'{name}' has no NaN, so it needs a scale that has one, e.g. '{name}/token:f32'"
            ));
        }
        [] => (None, None),
        [inner] => (Some(inner), None),
        [inner, outer] => (Some(inner), Some(outer)),
        [.., Level { text, .. }] => {
            return Err(format!("'{text}' is a third level of scales; there are at most two"));
        }
    };
    if let (Some(inner), Some(outer)) = (inner, outer) {
        second_level(inner, outer)?;
    }
    let scaling = inner.map(|level| scale(level, element, outer.is_some())).transpose()?;
    Ok(Format {
        rotation,
        element,
        convention,
        scaling,
        global: outer.map(|level| level.group),
    })
}

/// Parses a number of channels or rows; `None` unless it is a decimal number from 1 to [`LARGEST`].
fn size(text: &str) -> Option<usize> {
    // Only digits are allowed: `parse` alone would also accept a sign.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|size| digits && *size <= LARGEST)
}

/// Splits a rotation `rht<N>/` off the beginning of a string.
fn rotation(text: &str) -> Result<(Option<usize>, &str), String> {
    let Some((first, rest)) = text.split_once('/') else {
        return Ok((None, text));
    };
    let Some(digits) = first.strip_prefix("rht") else {
        return Ok((None, text));
    };
    match size(digits).filter(|size| size.is_power_of_two() && *size > 1) {
        Some(size) => Ok((Some(size), rest)),
        None => Err(format!(
            "'{first}': a rotation spans a power of two of channels, rht2 … rht{LARGEST}"
        )),
    }
}

/// Splits `name` or `name(argument)` into name and argument.
fn call(text: &str) -> Result<(&str, Option<&str>), String> {
    let Some((name, rest)) = text.split_once('(') else {
        return Ok((text, None));
    };
    let argument = rest.strip_suffix(')');
    let lacks = || format!("'{text}' lacks its closing ')'");
    argument.map(|argument| (name, Some(argument))).ok_or_else(lacks)
}

fn elements(text: &str) -> Result<(&'static Element, Option<&'static Convention>), String> {
    let (name, cast) = call(text)?;
    if let ("lut", Some(numbers)) = (name, cast) {
        return Ok((codebook::element(numbers)?, None));
    }
    let element = element(name).ok_or_else(|| {
        let near = did_you_mean(name, ELEMENTS.iter().map(|element| element.name));
        format!("unknown element '{name}'{near}")
    })?;
    if element.is_scale() {
        return Err(format!("'{name}' holds scales only"));
    }
    let Some(cast) = cast else {
        return Ok((element, None));
    };
    let of_element = |convention: &&Convention| convention.repr(element).is_some();
    match convention(cast).filter(of_element) {
        Some(convention) => Ok((element, Some(convention))),
        None => {
            let names: Vec<&str> = CASTS.iter().filter(of_element).map(|other| other.name).collect();
            let near = did_you_mean(cast, names.iter().copied());
            let known = match names.as_slice() {
                [] => "it has only its own".into(),
                names => format!("there are {}", names.join(", ")),
            };
            Err(format!("unknown cast '{cast}' to {name}; {known}{near}"))
        }
    }
}

fn level(text: &str) -> Result<Level<'_>, String> {
    let Some((group, scale)) = text.split_once(':') else {
        return Err(format!("'{text}' should be <group>:<scale>, e.g. 'b32:e8m0'"));
    };
    let tile = |sizes: &str| match sizes.split_once('x') {
        None => size(sizes).map(Group::block),
        Some((rows, cols)) => size(rows)
            .zip(size(cols))
            .map(|(rows, cols)| Group::Tile { rows, cols }),
    };
    let group = match group {
        "token" => Some(Group::Token),
        "column" => Some(Group::Column),
        "channel" => return Err(format!("group {CHANNEL}")),
        "t" => Some(Group::Tensor),
        _ => group.strip_prefix('b').and_then(tile),
    };
    let group = group.ok_or_else(|| {
        let found = text.split(':').next().unwrap_or_default();
        format!(
            "unknown group '{found}'; groups are 'b<N>' and 'b<N>x<N>' with N in 1 … {LARGEST}, 'token', 'column' and 't'"
        )
    })?;
    let (kind, rule) = call(scale)?;
    Ok(Level {
        text,
        group,
        kind,
        rule,
    })
}

/// Checks that a format may have the global scales `outer` above the block scales `inner`.
fn second_level(inner: &Level, outer: &Level) -> Result<(), String> {
    let (text, above) = (inner.text, outer.text);
    let (Group::Tile { rows, .. }, "e4m3") = (inner.group, inner.kind) else {
        return Err(format!(
            "a second level goes above blocks with e4m3 scales, not above '{text}'"
        ));
    };
    if !matches!(outer.group, Group::Token | Group::Tensor) || outer.kind != "f32" || outer.rule.is_some() {
        return Err(format!("the second level is 't:f32' or 'token:f32', not '{above}'"));
    }
    if rows > 1 && outer.group == Group::Token {
        return Err(format!("'{text}' spans tokens, so only 't:f32' goes above it"));
    }
    Ok(())
}

fn scale(level: &Level, element: &Element, two_levels: bool) -> Result<Scaling, String> {
    let (text, group, kind) = (level.text, level.group, level.kind);
    let (name, bits) = (element.name, element.bits);
    let kinds = ["e8m0", "f32", "f16", "bf16", "e4m3"];
    if !kinds.contains(&kind) {
        let (near, all) = (did_you_mean(kind, kinds), kinds.join(", "));
        return Err(format!("unknown scale '{kind}'; scales are {all}{near}"));
    }
    if kind == "e4m3" && (name != "e2m1" || !matches!(group, Group::Tile { .. })) {
        return Err(format!("'{text}': e4m3 scales go with blocks of e2m1 (NVFP4)"));
    }
    if element.needs_zero_point() && !["f32", "f16", "bf16"].contains(&kind) {
        return Err(format!(
            "'{name}' has no negative codes, so it needs scales with zero points, f32, f16 or bf16, not '{text}'"
        ));
    }
    // Formats with zero points may have groups of one column, because KIVI quantizes keys per channel.
    let columns = element.needs_zero_point() && group.tile(1, 2).1 == 1;
    if element.stored_bits() < 8 && group == Group::Column && !columns {
        return Err(format!(
            "'{text}' puts neighbouring {bits}-bit codes under different scales"
        ));
    }
    if let Group::Tile { cols, .. } = group
        && !columns
        && !(cols * element.stored_bits()).is_multiple_of(8)
    {
        return Err(format!("a block of {cols} codes of {bits} bits is not whole bytes"));
    }
    let scale = match level.rule {
        None => Scale::table(kind, element, two_levels)[0],
        Some(rule) => find_rule(kind, element, two_levels, rule)?,
    };
    if let (Scale::E4m3(rule), Group::Tile { rows: 2.., .. }) = (scale, group)
        && rule.select != Select::One
    {
        let rule = rule.name;
        return Err(format!(
            "'{text}': rule '{rule}' compares errors within a row, so blocks have one row"
        ));
    }
    Ok(Scaling { group, scale })
}
