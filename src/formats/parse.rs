//! Format strings: `element[/b<N>:<scale>[(rule)]][/token:<scale>[(rule)]][/t:<scale>[(rule)]]`.
//!
//! At most two levels. The first holds the scales next to the elements; the second is the f32 above E4M3 block scales.

use std::fmt;

use super::block::{Format, Group, Scaling};
use super::element::{ELEMENTS, Repr, element};
use super::nvfp4::{NVFP4_RULES, NVFP4_SINGLE_RULES};
use super::scale::{F32_RULES, POWER_RULES, Scale};
use crate::error::did_you_mean;

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block(size) => write!(f, "b{size}"),
            Self::Token => f.write_str("token"),
            Self::Tensor => f.write_str("t"),
        }
    }
}

/// Prints a string that parses back to the same format; a default rule is left out.
impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.element.name)?;
        if let Some(Scaling { group, scale }) = self.scaling {
            write!(f, "/{group}:{}", scale.kind())?;
            let rule = scale.rule().0;
            if rule != rules(scale.kind(), self.global.is_some())[0] {
                write!(f, "({rule})")?;
            }
        }
        if let Some(group) = self.global {
            write!(f, "/{group}:f32")?;
        }
        Ok(())
    }
}

/// Names of the rules of a scale format, the default first.
fn rules(kind: &str, two_levels: bool) -> Vec<&'static str> {
    match kind {
        "e8m0" => POWER_RULES.iter().map(|rule| rule.name).collect(),
        "f32" => F32_RULES.iter().map(|rule| rule.name).collect(),
        _ if two_levels => NVFP4_RULES.iter().map(|rule| rule.name).collect(),
        _ => NVFP4_SINGLE_RULES.iter().map(|rule| rule.name).collect(),
    }
}

/// `<group>:<scale>[(rule)]` in its parts.
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
    let mut parts = text.split('/');
    let name = parts.next().unwrap_or_default();
    let element = element(name).ok_or_else(|| {
        let near = did_you_mean(name, ELEMENTS.iter().map(|element| element.name));
        format!("unknown element '{name}'{near}")
    })?;
    if element.repr == Repr::Power {
        return Err(format!("'{name}' holds scales only"));
    }
    let levels = parts.map(level).collect::<Result<Vec<_>, _>>()?;
    let (scaling, global) = match levels.as_slice() {
        [] if !element.has_nan() => {
            return Err(format!(
                "'{name}' has no NaN, so it needs a scale that has one, e.g. '{name}/token:f32'"
            ));
        }
        [] => (None, None),
        [inner] => (Some(inner), None),
        [inner, outer] => (Some(inner), Some(outer)),
        [.., more] => {
            return Err(format!(
                "'{}' is a third level of scales; there are at most two",
                more.text
            ));
        }
    };
    if let (Some(inner), Some(outer)) = (scaling, global) {
        if !matches!(inner.group, Group::Block(_)) || inner.kind != "e4m3" {
            return Err(format!(
                "a second level goes above blocks with e4m3 scales, not above '{}'",
                inner.text
            ));
        }
        if matches!(outer.group, Group::Block(_)) || outer.kind != "f32" || outer.rule.is_some() {
            return Err(format!(
                "the second level is 't:f32' or 'token:f32', not '{}'",
                outer.text
            ));
        }
    }
    let scaling = scaling.map(|level| scale(level, name, global.is_some())).transpose()?;
    if let Some(Scaling {
        group: Group::Block(size),
        ..
    }) = scaling
        && size * element.bits as usize % 8 != 0
    {
        return Err(format!(
            "a block of {size} codes of {} bits is not whole bytes",
            element.bits
        ));
    }
    Ok(Format {
        element,
        scaling,
        global: global.map(|level| level.group),
    })
}

fn level(text: &str) -> Result<Level<'_>, String> {
    let (group, scale) = text
        .split_once(':')
        .ok_or_else(|| format!("'{text}' should be <group>:<scale>, e.g. 'b32:e8m0'"))?;
    let size = group
        .strip_prefix('b')
        .map(|size| size.parse::<usize>().ok().filter(|size| *size > 0 && *size <= 65536));
    let group = match (group, size) {
        ("token", _) => Group::Token,
        ("t", _) => Group::Tensor,
        (_, Some(Some(size))) => Group::Block(size),
        _ => {
            return Err(format!(
                "unknown group '{group}'; groups are 'b<1…65536>', 'token' and 't'"
            ));
        }
    };
    let (kind, rule) = match scale.split_once('(') {
        None => (scale, None),
        Some((kind, rest)) => {
            let rule = rest
                .strip_suffix(')')
                .ok_or_else(|| format!("'{scale}' lacks its closing ')'"))?;
            (kind, Some(rule))
        }
    };
    Ok(Level {
        text,
        group,
        kind,
        rule,
    })
}

fn scale(level: &Level, element: &str, two_levels: bool) -> Result<Scaling, String> {
    let kinds = ["e8m0", "f32", "e4m3"];
    if !kinds.contains(&level.kind) {
        let near = did_you_mean(level.kind, kinds);
        return Err(format!(
            "unknown scale '{}'; scales are {}{near}",
            level.kind,
            kinds.join(", ")
        ));
    }
    if level.kind == "e4m3" && (element != "e2m1" || !matches!(level.group, Group::Block(_))) {
        return Err(format!("'{}': e4m3 scales go with blocks of e2m1 (NVFP4)", level.text));
    }
    let names = rules(level.kind, two_levels);
    let index = match level.rule {
        None => 0,
        Some(rule) => names.iter().position(|name| *name == rule).ok_or_else(|| {
            let near = did_you_mean(rule, names.iter().copied());
            let levels = if level.kind == "e4m3" && two_levels {
                " under a second level"
            } else {
                ""
            };
            format!(
                "unknown rule '{rule}' for {} scales{levels}; rules are {}{near}",
                level.kind,
                names.join(", ")
            )
        })?,
    };
    let scale = match level.kind {
        "e8m0" => Scale::E8m0(POWER_RULES[index]),
        "f32" => Scale::F32(F32_RULES[index]),
        _ if two_levels => Scale::E4m3(NVFP4_RULES[index]),
        _ => Scale::E4m3(NVFP4_SINGLE_RULES[index]),
    };
    Ok(Scaling {
        group: level.group,
        scale,
    })
}
