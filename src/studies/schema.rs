//! The JSON Schema of experiment files.

use std::collections::BTreeSet;

use schemars::Schema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::STUDIES;
use crate::experiment::Head;
use crate::json::drop_nulls;
use ulplab_core::formats::{ELEMENTS, FORMATS, RECORDS, codec};

/// Returns the JSON Schema of experiment files, with the keys of each kind.
pub fn schema() -> Value {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let head = generator.root_schema_for::<Head>();
    let mut definitions = of_key(&head, "$defs");
    let mut kinds = Vec::new();
    for kind in STUDIES {
        let mut body = (kind.schema)(&mut generator);
        let mut keys = of_key(&head, "properties");
        keys.extend(of_key(&body, "properties"));
        let of_kind = json!({ "const": kind.name, "description": body.get("description") });
        keys.insert("kind".into(), of_kind);
        body.insert("title".into(), kind.name.into());
        body.insert("properties".into(), keys.into());
        let mut required = vec!["name", "question"];
        // A file without `kind` is of the kind "model".
        required.extend((kind.name != "model").then_some("kind"));
        body.insert("required".into(), required.into());
        let mut asked = json!({ "properties": { "kind": { "const": kind.name } } });
        if kind.name != "model" {
            asked["required"] = json!(["kind"]);
        }
        kinds.push(json!({ "if": asked, "then": body.to_value() }));
    }
    definitions.extend(generator.take_definitions(true));
    let names: Vec<&str> = STUDIES.iter().map(|kind| kind.name).collect();
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Experiment",
        "description": "A question, and what to run to answer it.",
        "type": "object",
        "properties": { "kind": { "enum": names, "default": "model" } },
        // With `if` and `then`, an editor compares a file only with the keys of its own kind, and so marks a mistake where it is.
        "allOf": kinds,
        "$defs": definitions,
    });
    list_formats(&mut schema);
    drop_nulls(&mut schema);
    schema
}

/// Adds the known format names to every key `format` of the schema; format strings stay allowed.
fn list_formats(schema: &mut Value) {
    match schema {
        Value::Array(parts) => parts.iter_mut().for_each(list_formats),
        Value::Object(parts) => {
            if let Some(format) = parts.get_mut("properties").and_then(|keys| keys.get_mut("format"))
                && format.get("type") == Some(&json!("string"))
                && let Some(format) = format.as_object_mut()
            {
                let records = RECORDS.iter().map(|record| record.name);
                let named = FORMATS.iter().map(|named| named.name);
                let elements = ELEMENTS.iter().map(|element| element.name);
                let elements = elements.filter(|name| codec(name).is_ok());
                let names: BTreeSet<&str> = records.chain(named).chain(elements).collect();
                format.insert("anyOf".into(), json!([{ "enum": names }, { "pattern": "[/(]" }]));
            }
            parts.values_mut().for_each(list_formats);
        }
        _ => {}
    }
}

fn of_key(schema: &Schema, key: &str) -> Map<String, Value> {
    schema.get(key).and_then(Value::as_object).cloned().unwrap_or_default()
}
