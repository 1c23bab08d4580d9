//! Launches that are taken from the variant of another operation: `call = "linear.simple"`, with other names for its arguments and
//! sizes. So a variant that is a whole model is made of the operations' own launches. `with` is a table of names, or a list of such
//! tables; that of a variant holds for all its calls that know the name. A variant that prepares is called with
//! `each = { of = "layers", count = "L" }`: what it prepares is there for each layer.

use std::collections::BTreeSet;
use std::path::Path;
use std::slice;

use toml::{Table, Value};

use super::prepared::Each;
use super::{like, prepared};
use ulplab_core::error::did_you_mean;
use ulplab_core::input;

/// Replaces every launch that has a `call` by the launches of the variant that it names. `folder` has the files of operations.
pub(super) fn resolve(header: &mut Table, folder: &Path) -> Result<(), String> {
    let Some(variants) = header.get_mut("variant").and_then(Value::as_array_mut) else {
        return Ok(());
    };
    for variant in variants.iter_mut().filter_map(Value::as_table_mut) {
        let name = variant.get("name").and_then(Value::as_str).unwrap_or("?").to_string();
        let all = variant.remove("with").map(|with| pairs(&with)).transpose();
        let all = all
            .map_err(|why| format!("variant '{name}': {why}"))?
            .unwrap_or_default();
        let Some(Value::Array(launches)) = variant.remove("launch") else {
            continue;
        };
        let mut resolved = Vec::new();
        for launch in launches {
            match launch {
                Value::Table(launch) if launch.contains_key("call") => {
                    let wrong = |why: String| format!("variant '{name}', call {}: {why}", launch["call"]);
                    let called = Called::new(&launch, folder).map_err(wrong)?;
                    called.put(&all, variant, &mut resolved).map_err(wrong)?;
                }
                other => resolved.push(other),
            }
        }
        variant.insert("launch".into(), Value::Array(resolved));
    }
    Ok(())
}

/// A call with the variant that it names.
struct Called {
    /// The other operation: the stem of its file.
    op: String,
    name: String,
    /// Keys of a launch that hold for all launches of the variant, such as `programmatic`.
    keys: Table,
    /// The names of the other operation, and what they are here.
    with: Vec<(String, String)>,
    /// For which indices of a counter it prepares.
    each: Option<Each>,
    variant: Table,
}

impl Called {
    fn new(launch: &Table, folder: &Path) -> Result<Self, String> {
        let mut keys = launch.clone();
        let text = |value: Option<Value>| value.and_then(|value| value.as_str().map(String::from));
        let call = text(keys.remove("call")).ok_or("expected \"OP.VARIANT\"")?;
        let (op, variant) = call.split_once('.').ok_or("expected \"OP.VARIANT\"")?;
        let name = text(keys.remove("name")).ok_or("has no name")?;
        let with = keys
            .remove("with")
            .map(|with| pairs(&with))
            .transpose()?
            .unwrap_or_default();
        let file = folder.join(format!("{op}.cu"));
        let source = input::text(&file).map_err(|error| error.to_string())?;
        let comment = source.strip_prefix("/*").and_then(|rest| rest.split_once("*/"));
        let (comment, _) = comment.ok_or_else(|| format!("{} has no header", file.display()))?;
        let mut header: Table = toml::from_str(comment).map_err(|error| format!("{}: {error}", file.display()))?;
        like::resolve(&mut header)?;
        let variants = header
            .get("variant")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let variants: Vec<Table> = variants
            .into_iter()
            .filter_map(|variant| variant.try_into().ok())
            .collect();
        let named = |variant: &Table| {
            variant
                .get("name")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_string()
        };
        let found = variants.iter().find(|other| named(other) == variant).cloned();
        let names: Vec<String> = variants.iter().map(named).collect();
        let found = found.ok_or_else(|| {
            let near = did_you_mean(variant, names.iter().map(String::as_str));
            format!("{op} has no variant '{variant}'{near}")
        })?;
        if found.contains_key("sequence") {
            return Err("a variant with a sequence cannot be called".into());
        }
        let each = keys.remove("each").map(Value::try_into::<Each>).transpose();
        let each = each.map_err(|why| {
            let why = why.to_string();
            format!("each: {}, expected {{ of = COUNTER, count = EXPRESSION }}", why.trim())
        })?;
        if each.is_some() && !found.contains_key("prepare") {
            return Err(format!(
                "each is for variants with preparing launches (prepare), and {call} has none"
            ));
        }
        Ok(Self {
            op: op.into(),
            name,
            keys,
            with,
            each,
            variant: found,
        })
    }

    /// Adds the launches, and what else the variant has, to the calling variant.
    fn put(mut self, all: &[(String, String)], caller: &mut Table, launches: &mut Vec<Value>) -> Result<(), String> {
        let scratch = self.variant.remove("scratch");
        let Some(Value::Array(own)) = self.variant.remove("launch") else {
            return Err("the variant has no launches".into());
        };
        let prepare = match self.variant.remove("prepare") {
            Some(Value::Array(prepare)) => prepare,
            _ => Vec::new(),
        };
        let run: Vec<String> = match own.len() {
            1 => vec![self.name.clone()],
            many => (1..=many).map(|number| format!("{}_{number}", self.name)).collect(),
        };
        let sequence = caller.get("sequence").and_then(Value::as_str).unwrap_or_default();
        let resolved = words(sequence, |word| (word == self.name).then(|| run.join(" ")));
        if let Some(each) = &self.each {
            // What is wrong is told of the name that was written.
            let written = match resolved == sequence {
                true => &run[..],
                false => slice::from_ref(&self.name),
            };
            written.iter().try_for_each(|launch| each.contains(launch, sequence))?;
        }
        if caller.contains_key("sequence") {
            caller.insert("sequence".into(), Value::String(resolved));
        }
        let needs = self.variant.get("needs");
        let known = names(&[&own[..], &prepare].concat(), scratch.as_ref(), needs);
        if let Some((stray, _)) = self.with.iter().find(|(name, _)| !known.contains(name)) {
            let near = did_you_mean(stray, known.iter().map(String::as_str));
            let op = &self.op;
            return Err(format!("that variant of {op}.cu has nothing called '{stray}'{near}"));
        }
        let own_names: Vec<String> = self.with.iter().map(|(name, _)| name.clone()).collect();
        let others = all
            .iter()
            .filter(|(name, _)| known.contains(name) && !own_names.contains(name));
        self.with.extend(others.cloned());
        let prepared = arguments(&prepare);
        for scratch in scratch.as_ref().and_then(Value::as_array).into_iter().flatten() {
            let mut scratch = scratch.as_table().cloned().ok_or("scratch is no table")?;
            if scratch.contains_key("parts") {
                return Err(format!(
                    "its scratch {} has parts: it cannot be called",
                    scratch["name"]
                ));
            }
            let (old, new) = (
                plain(&scratch["name"])?,
                format!("{}_{}", self.name, plain(&scratch["name"])?),
            );
            scratch.insert("name".into(), Value::String(new.clone()));
            let bytes = scratch
                .get("bytes")
                .map(plain)
                .transpose()?
                .ok_or("scratch has no bytes")?;
            scratch.insert("bytes".into(), Value::String(self.in_expression(&bytes)));
            let is = match &self.each {
                Some(each) if prepared.contains(&old) => {
                    scratch.insert("parts".into(), Value::String(each.count()));
                    format!("{new}[{}]", each.part())
                }
                _ => new.clone(),
            };
            if prepared.contains(&old)
                && entries(caller, "scratch").any(|other| other.get("name") == scratch.get("name"))
            {
                return Err(format!(
                    "there is scratch '{new}' already: what it prepares would be lost"
                ));
            }
            append(caller, "scratch", Value::Table(scratch));
            self.with.push((old, is));
        }
        self.put_preparing(prepare, caller)?;
        for need in self
            .variant
            .get("needs")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            append(caller, "needs", Value::String(self.in_expression(&plain(need)?)));
        }
        for key in ["arch", "products"] {
            if let Some(value) = self.variant.get(key)
                && caller.get(key) != Some(value)
            {
                return Err(format!("{key} is {value}, and the calling variant's is not"));
            }
        }
        for (name, launch) in run.into_iter().zip(own) {
            let mut launch = launch.as_table().cloned().ok_or("a launch is no table")?;
            for (key, value) in &mut launch {
                self.replace(key, value)?;
            }
            launch.extend(self.keys.clone());
            launch.insert("name".into(), Value::String(name));
            launches.push(Value::Table(launch));
        }
        Ok(())
    }

    /// Adds the preparing launches of the variant to those of the caller. Keys of the call are not theirs: one must not start before
    /// another has ended, for instance.
    fn put_preparing(&self, prepare: Vec<Value>, caller: &mut Table) -> Result<(), String> {
        let many = prepare.len() > 1;
        for (number, launch) in prepare.into_iter().enumerate() {
            let mut launch = launch.as_table().cloned().ok_or("a preparing launch is no table")?;
            let name = match many {
                true => format!("{}_prepare_{}", self.name, number + 1),
                false => format!("{}_prepare", self.name),
            };
            if launch.contains_key("each") {
                return Err("its preparing launches run for each index of a counter: it cannot be called".into());
            }
            for (key, value) in &mut launch {
                self.replace(key, value)?;
            }
            for argument in arguments(&[Value::Table(launch.clone())]) {
                prepared::once(self.each.as_ref(), &argument)?;
            }
            if let Some(each) = &self.each {
                let each = [("of", each.of.clone()), ("count", each.count())];
                let each = each.map(|(key, value)| (key.to_string(), Value::String(value)));
                launch.insert("each".into(), Value::Table(each.into_iter().collect()));
            }
            launch.insert("name".into(), Value::String(name.clone()));
            if entries(caller, "prepare").any(|other| other.get("name") == launch.get("name")) {
                return Err(format!("there is a preparing launch '{name}' already"));
            }
            append(caller, "prepare", Value::Table(launch));
        }
        Ok(())
    }

    /// Puts the names of the caller into a key of a launch.
    fn replace(&self, key: &str, value: &mut Value) -> Result<(), String> {
        match (key, value) {
            ("entry", Value::String(entry)) => {
                for (name, is) in &self.with {
                    *entry = entry.replace(&format!("{{{name}}}"), is);
                }
            }
            ("args" | "taps", Value::Array(args)) => {
                for arg in args {
                    let name = plain(arg)?;
                    let is = self.with.iter().find(|(other, _)| *other == name);
                    *arg = Value::String(is.map_or_else(|| self.in_expression(&name), |(_, is)| is.clone()));
                }
            }
            ("grid" | "block" | "cluster", Value::Array(numbers)) => {
                for number in numbers.iter_mut().filter(|number| number.is_str()) {
                    *number = Value::String(self.in_expression(&plain(number)?));
                }
            }
            ("shared" | "bytes" | "flops", number @ Value::String(_)) => {
                *number = Value::String(self.in_expression(&plain(number)?));
            }
            ("matmul", _) => return Err("a product by cuBLASLt cannot be called".into()),
            _ => {}
        }
        Ok(())
    }

    fn in_expression(&self, text: &str) -> String {
        words(text, |word| {
            let (_, is) = self.with.iter().find(|(name, _)| name == word)?;
            Some(if is.contains(' ') {
                format!("({is})")
            } else {
                is.clone()
            })
        })
    }
}

/// The tables of a list of a variant.
fn entries<'a>(variant: &'a Table, key: &str) -> impl Iterator<Item = &'a Table> {
    let list = variant.get(key).and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_table)
}

/// All arguments of launches.
fn arguments(launches: &[Value]) -> BTreeSet<String> {
    let args = launches.iter().filter_map(|launch| launch.get("args")?.as_array());
    args.flatten().filter_map(|name| plain(name).ok()).collect()
}

/// All names in arguments, expressions and keys of launches, of scratch, and of what the variant needs.
fn names(launches: &[Value], scratch: Option<&Value>, needs: Option<&Value>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let texts = launches
        .iter()
        .map(Value::to_string)
        .chain(scratch.map(Value::to_string))
        .chain(needs.map(Value::to_string));
    for text in texts {
        words(&text, |word| {
            found.insert(word.into());
            None
        });
    }
    found
}

/// A text in which words are replaced.
pub(super) fn words(text: &str, mut replaced: impl FnMut(&str) -> Option<String>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_alphabetic() || c == '_') {
        let (before, word) = rest.split_at(start);
        let end = word
            .find(|c: char| !(c.is_alphanumeric() || c == '_'))
            .unwrap_or(word.len());
        out.push_str(before);
        out.push_str(&replaced(&word[..end]).unwrap_or_else(|| word[..end].into()));
        rest = &word[end..];
    }
    out + rest
}

fn append(variant: &mut Table, key: &str, value: Value) {
    let list = variant.entry(key).or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(list) = list
        && !list.contains(&value)
    {
        list.push(value);
    }
}

/// Names and what they are, of a table or of a list of tables.
fn pairs(with: &Value) -> Result<Vec<(String, String)>, String> {
    match with {
        Value::Table(with) => with
            .iter()
            .map(|(key, value)| Ok((key.clone(), plain(value)?)))
            .collect(),
        Value::Array(tables) => {
            let all: Vec<_> = tables.iter().map(pairs).collect::<Result<_, _>>()?;
            Ok(all.concat())
        }
        other => Err(format!("with is {other}, expected a table")),
    }
}

/// A string, or a number as text.
fn plain(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        other => Err(format!("{other} is neither a name nor a number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: &str = r#"/*
[[variant]]
name = "simple"
doc = "two launches"
needs = ["K % 2 == 0", "rows % 4 == 0"]
scratch = [{ name = "sums", bytes = "B * N * 4" }]

[[variant.launch]]
entry = "sums_{dtype}"
grid = ["ceil(N, 4)"]
block = [128]
args = ["x", "sums", "B", "N", "K"]

[[variant.launch]]
entry = "add_{dtype}"
grid = ["B"]
block = [32]
args = ["sums", "y", "N"]

[[variant]]
name = "prepared"
doc = "two launches, and one that prepares"
scratch = [{ name = "packed", bytes = "N * 4" }]
prepare = [{ entry = "pack", grid = [1], block = [32], args = ["w", "packed", "N"] }]
launch = [
    { entry = "first", grid = [1], block = [32], args = ["packed"] },
    { entry = "second", grid = [1], block = [32], args = ["packed"] },
]
*/"#;

    fn header(call: &str) -> Result<Table, String> {
        in_sequence("first L(down) last", call)
    }

    fn in_sequence(sequence: &str, call: &str) -> Result<Table, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("other.cu"), OTHER).unwrap();
        let text = format!(
            "[[variant]]\nname = 'all'\nsequence = '{sequence}'\nwith = {{ dtype = 'f32', other = 'B' }}\n\
             launch = [{call}]\n"
        );
        let mut header = toml::from_str(&text).unwrap();
        resolve(&mut header, folder.path()).map(|()| header)
    }

    #[test]
    fn launches_are_taken_with_other_names() {
        let header = header(
            "{ name = 'down', call = 'other.simple', tap = true, \
             with = [{ x = 'h', y = 'w[@L]' }, { N = 'D + 1', K = 8, rows = 'B' }] }",
        );
        let header = header.unwrap();
        let variant = &header["variant"][0];
        assert_eq!(variant["sequence"].as_str(), Some("first L(down_1 down_2) last"));
        // What only `needs` names is a name like others.
        let needs: Vec<&str> = variant["needs"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .collect();
        assert_eq!(needs, ["8 % 2 == 0", "B % 4 == 0"]);
        assert_eq!(variant["scratch"][0]["name"].as_str(), Some("down_sums"));
        assert_eq!(variant["scratch"][0]["bytes"].as_str(), Some("B * (D + 1) * 4"));
        let [first, second] = [0, 1].map(|at| &variant["launch"][at]);
        assert_eq!(
            (first["name"].as_str(), first["entry"].as_str()),
            (Some("down_1"), Some("sums_f32"))
        );
        assert_eq!(first["grid"][0].as_str(), Some("ceil((D + 1), 4)"));
        let args: Vec<&str> = first["args"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .collect();
        assert_eq!(args, ["h", "down_sums", "B", "D + 1", "8"]);
        assert_eq!(
            (second["args"][1].as_str(), second["tap"].as_bool()),
            (Some("w[@L]"), Some(true))
        );
    }

    #[test]
    fn a_sequence_may_name_some_of_the_launches() {
        let call = "{ name = 'down', call = 'other.prepared', each = { of = 'L', count = 3 }, with = { w = 'w[@L]' } }";
        let sequence = "L([B > 1](down_1) down_2)";
        let header = in_sequence(sequence, call).unwrap();
        assert_eq!(header["variant"][0]["sequence"].as_str(), Some(sequence));
        let error = in_sequence("L(down_1) down_2", call).unwrap_err();
        assert!(
            error.ends_with("no repetition of 'L' contains 'down_2' in the sequence, found none"),
            "{error}"
        );
    }

    #[test]
    fn says_what_is_wrong() {
        for (call, why) in [
            ("{ name = 'a', call = 'other' }", "expected \"OP.VARIANT\""),
            ("{ name = 'a', call = 'other.fast' }", "other has no variant 'fast'"),
            ("{ call = 'other.simple' }", "has no name"),
            (
                "{ name = 'a', call = 'other.simple', with = { M = 'B' } }",
                "that variant of other.cu has nothing called 'M'",
            ),
            ("{ name = 'a', call = 'none.simple' }", "none.cu"),
        ] {
            let error = header(call).unwrap_err();
            assert!(
                error.starts_with("variant 'all', call ") && error.contains(why),
                "{error}"
            );
        }
    }
}
