//! JSON output for programs.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use ulplab_core::error::{Error, Result};

/// Prints a value as JSON, on several lines.
pub fn print(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Error::Usage(error.to_string()))?;
    outln!("{text}");
    Ok(())
}

/// Returns a value as JSON in one line.
pub fn line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data has a form in JSON")
}

/// Converts plain data to a JSON object. Leaves out the keys without a value.
pub fn keys(table: &impl Serialize) -> Map<String, Value> {
    let mut value = serde_json::to_value(table).expect("plain data has a form in JSON");
    drop_nulls(&mut value);
    match value {
        Value::Object(keys) => keys,
        _ => unreachable!("a table has keys"),
    }
}

/// Removes the keys without a value from all objects in a value.
pub fn drop_nulls(value: &mut Value) {
    match value {
        Value::Array(parts) => parts.iter_mut().for_each(drop_nulls),
        Value::Object(keys) => {
            keys.retain(|_, value| !value.is_null());
            keys.values_mut().for_each(drop_nulls);
        }
        _ => {}
    }
}

/// Serializes a table, but leaves out the keys whose values are equal to those of the table's default.
pub fn unlike_default<T: Default + Serialize, S: Serializer>(table: &T, serializer: S) -> Result<S::Ok, S::Error> {
    let (mut said, usual) = (keys(table), keys(&T::default()));
    said.retain(|key, value| usual.get(key) != Some(value));
    said.serialize(serializer)
}

/// True if a value is the default of its type. Files leave out such values.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Prints a value as JSON if `json` is true, else as the text.
pub fn print_or(json: bool, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
    if json {
        return print(value);
    }
    out!("{}", text());
    Ok(())
}
