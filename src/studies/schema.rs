//! The JSON Schema of experiment files.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::STUDIES;
use crate::experiment::Head;

/// The keys of experiment files, kind by kind.
pub fn schema() -> Value {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let head = object(generator.root_schema_for::<Head>().to_value());
    let mut definitions = Map::new();
    take(&mut definitions, &head, "$defs");
    let mut kinds = Vec::new();
    for kind in STUDIES {
        let mut body = object((kind.schema)(&mut generator).to_value());
        let mut keys = keys(&head);
        keys.extend(self::keys(&body));
        keys.insert("kind".into(), json!({ "const": kind.name, "description": kind.doc }));
        body.insert("title".into(), kind.name.into());
        body.insert("properties".into(), keys.into());
        let mut required = vec!["name", "question"];
        // A file that does not say it asks about a model.
        required.extend((kind.name != "model").then_some("kind"));
        body.insert("required".into(), required.into());
        kinds.push(Value::Object(body));
    }
    definitions.extend(generator.take_definitions(true));
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Experiment",
        "description": "A question, and what to run to answer it.",
        "oneOf": kinds,
        "$defs": definitions,
    })
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(keys) => keys,
        _ => Map::new(),
    }
}

fn keys(schema: &Map<String, Value>) -> Map<String, Value> {
    schema.get("properties").cloned().map(object).unwrap_or_default()
}

fn take(into: &mut Map<String, Value>, from: &Map<String, Value>, key: &str) {
    into.extend(from.get(key).cloned().map(object).unwrap_or_default());
}
