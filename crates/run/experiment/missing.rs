//! Finds all missing and all unknown keys of a table of an experiment file at once, by comparison with the JSON Schema of the
//! Rust type.

use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::{Head, Step};
use ulplab_core::error::did_you_mean;
use ulplab_core::text::shown;

/// Largest length, in characters, of a key's description that an error message quotes.
const LONGEST: usize = 90;

/// A mistake in the keys of a table: missing keys, several unknown keys, or `[key]` in place of the array of tables `[[key]]`.
pub(super) struct Gap {
    pub path: Vec<Step>,
    /// Unknown keys, each with a suggestion of the known key that was meant.
    pub unknown: Vec<(String, String)>,
    /// Missing keys, each with the values that it may have.
    pub missing: Vec<(String, String)>,
    /// True if `[key]` should be `[[key]]`.
    pub alone: bool,
}

impl Gap {
    /// True if the table lacks a key.
    pub fn lacks(&self) -> bool {
        !self.missing.is_empty()
    }

    /// Lists all unknown keys except `key`, as `; unknown, too: `b`, `c`; did you mean 'd'?`; empty if there are no other unknown
    /// keys.
    pub fn others_than(&self, key: &str) -> String {
        let others = self.unknown.iter().filter(|(name, _)| name != key);
        let others: Vec<String> = others.map(|(name, near)| format!("`{}`{near}", shown(name))).collect();
        match others.is_empty() {
            true => String::new(),
            false => format!("; unknown, too: {}", others.join(", ")),
        }
    }

    /// Returns the error message, such as `missing fields `at`, `phase`; expected at = …, phase = 'local' or 'cumulative'; did
    /// you mean 'at' by 'att'?`
    pub fn message(&self) -> String {
        let names: Vec<String> = self.missing.iter().map(|(name, _)| format!("`{name}`")).collect();
        let values = self.missing.iter().map(|(name, what)| format!("{name} = {what}"));
        let (names, values) = (names.join(", "), values.collect::<Vec<_>>().join(", "));
        let plural = if self.missing.len() == 1 { "" } else { "s" };
        let near = self.unknown.iter().filter_map(|(wrong, _)| {
            let near = did_you_mean(wrong, self.missing.iter().map(|(name, _)| name.as_str()));
            let near = near.strip_suffix('?')?;
            Some(format!("{near} by '{}'?", shown(wrong)))
        });
        let near: String = near.collect();
        format!("missing field{plural} {names}; expected {values}{near}")
    }
}

/// Finds the first table of the file that lacks required keys, has several unknown keys, or is a single table `[key]` where an
/// array of tables `[[key]]` is required.
pub(super) fn gap(schema: &Value, root: &DeTable) -> Option<Gap> {
    table(schema, schema, root, &mut Vec::new())
}

fn table(all: &Value, schema: &Value, found: &DeTable, path: &mut Vec<Step>) -> Option<Gap> {
    let schema = resolved(all, schema);
    let keys = schema.get("properties")?.as_object()?;
    let lacks = |name: &&str| !found.iter().any(|(key, _)| key.get_ref() == name);
    let required = list(schema, "required").filter_map(Value::as_str);
    let mut missing: Vec<&str> = required.filter(lacks).collect();
    // An `anyOf` of a schema requires one of several alternative keys. If all of them are missing, report only the first: its
    // description names the others.
    let either: Vec<&str> = list(schema, "anyOf").filter_map(only).collect();
    missing.extend(either.first().filter(|_| either.iter().all(lacks)));
    let known = || keys.keys().map(String::as_str);
    // The keys that every experiment has (`Head`) are read separately: do not report them as unknown.
    let of_head = |key: &String| path.is_empty() && Head::KEYS.contains(&key.as_str());
    let all_keys = found.iter().map(|(key, _)| key.get_ref().to_string());
    let unknown = all_keys.filter(|key| !keys.contains_key(key) && !of_head(key));
    let unknown = unknown.map(|key| (did_you_mean(&key, known()), key));
    let unknown: Vec<(String, String)> = unknown.map(|(near, key)| (key, near)).collect();
    let closed = schema.get("additionalProperties") == Some(&false.into());
    if !missing.is_empty() || closed && unknown.len() > 1 {
        let missing = missing.iter();
        let missing = missing.map(|name| (name.to_string(), expected(all, &keys[*name])));
        return Some(Gap {
            path: path.clone(),
            unknown,
            missing: missing.collect(),
            alone: false,
        });
    }
    found.iter().find_map(|(key, value)| {
        let schema = keys.get(key.get_ref().as_ref())?;
        path.push(Step::Key(key.get_ref().to_string()));
        let gap = within(all, schema, value.get_ref(), path);
        path.pop();
        gap
    })
}

/// Returns the elements of the array `key` of a schema; none if there is no such array.
fn list<'a>(schema: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    schema.get(key).and_then(Value::as_array).into_iter().flatten()
}

/// Returns the key that an alternative (an element of a schema's `anyOf`) requires; `None` unless it requires exactly one key.
fn only(alternative: &Value) -> Option<&str> {
    match alternative.get("required")?.as_array()?.as_slice() {
        [key] => key.as_str(),
        _ => None,
    }
}

fn within(all: &Value, schema: &Value, found: &DeValue, path: &mut Vec<Step>) -> Option<Gap> {
    let items = resolved(all, schema).get("items");
    match (found, items) {
        (DeValue::Table(_), Some(_)) => Some(Gap {
            path: path.clone(),
            unknown: Vec::new(),
            missing: Vec::new(),
            alone: true,
        }),
        (DeValue::Table(found), None) => table(all, schema, found, path),
        (DeValue::Array(elements), Some(items)) => elements.iter().enumerate().find_map(|(at, element)| {
            path.push(Step::Index(at));
            let gap = within(all, items, element.get_ref(), path);
            path.pop();
            gap
        }),
        _ => None,
    }
}

/// Follows the `$ref` of a schema. The schema of an optional value is an `anyOf` of the value's schema and null: continues with
/// the value's schema. Returns a schema of neither kind unchanged.
fn resolved<'a>(all: &'a Value, schema: &'a Value) -> &'a Value {
    let target = |schema: &'a Value| {
        let name = schema.get("$ref")?.as_str()?.strip_prefix("#/$defs/")?;
        all.get("$defs")?.get(name)
    };
    let or_null = || {
        let mut others = list(schema, "anyOf").filter(|one| one.get("type") != Some(&"null".into()));
        let only = others.next().filter(|_| others.next().is_none())?;
        target(only).or(Some(only))
    };
    target(schema).or_else(or_null).unwrap_or(schema)
}

/// Describes the allowed values of a key: the words of an enumeration, else the beginning of the key's description, else its
/// type.
fn expected(all: &Value, key: &Value) -> String {
    let schema = resolved(all, key);
    let each = list(schema, "oneOf").flat_map(|one| one.get("const").into_iter().chain(list(one, "enum")));
    let words = list(schema, "enum").chain(each).filter_map(Value::as_str);
    let words: Vec<String> = words.map(|word| format!("'{word}'")).collect();
    match words.split_last() {
        Some((only, [])) => return only.clone(),
        Some((last, others)) => return format!("{} or {last}", others.join(", ")),
        None => {}
    }
    let kind = match schema.get("type").and_then(Value::as_str) {
        Some("string") => "a string",
        Some("array") => "an array",
        Some("integer") => "a whole number",
        Some("number") => "a number",
        Some("boolean") => "true or false",
        Some("object") => "a table",
        _ => "a value",
    };
    let description = key.get("description").or(schema.get("description"));
    let description = description.and_then(Value::as_str);
    let first = description.map(first_sentence).map(|text| text.trim_end_matches('.'));
    match first.filter(|text| text.chars().count() <= LONGEST) {
        Some(text) => format!("{kind} ({text})"),
        None => kind.into(),
    }
}

/// Returns a text up to the end of its first sentence. The point of `e.g.` or `i.e.` does not end a sentence.
fn first_sentence(text: &str) -> &str {
    let ends = text.match_indices(". ").map(|(at, _)| at);
    let abbreviated = |at: &usize| ["e.g", "i.e"].iter().any(|short| text[..*at].ends_with(short));
    let end = ends.into_iter().find(|at| !abbreviated(at));
    end.map_or(text, |end| &text[..end])
}
