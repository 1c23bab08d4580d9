//! Reads `quantization_config` of a `config.json`: properties of the stored weights that the tensor files do not state.

use serde_json::{Map, Value};

/// Quantization methods whose files can be read directly, if their weights are FP8 or MXFP4.
const READ: &[&str] = &["fp8", "fbgemm_fp8", "mxfp4", "compressed-tensors", "modelopt"];

/// Returns the block shape `[rows, columns]` of a weight (the elements of a block share one scale); `None` if the configuration
/// does not state it.
///
/// # Errors
/// Returns an error with a workaround if the files of the quantization method cannot be read.
pub fn block(json: &str) -> Result<Option<[usize; 2]>, String> {
    let map: Map<String, Value> = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let inner = map.get("text_config").and_then(Value::as_object);
    let blocks = std::iter::once(&map).chain(inner);
    let block = |map: &Map<String, Value>| match map.get("quantization_config") {
        None | Some(Value::Null) => None,
        Some(Value::Object(keys)) => Some(of(keys)),
        Some(other) => Some(Err(format!("quantization_config is {other}, expected an object"))),
    };
    blocks.into_iter().find_map(block).transpose().map(Option::flatten)
}

fn of(keys: &Map<String, Value>) -> Result<Option<[usize; 2]>, String> {
    let text = |keys: &Map<String, Value>, key: &str| keys.get(key).and_then(Value::as_str).map(str::to_lowercase);
    let missing = "quantization_config.quant_method is missing; expected the name of the method that made the files";
    let method = text(keys, "quant_method").ok_or(missing)?;
    let refused = |what: String| {
        Err(format!(
            "quantization_config: the weights are stored by {what}, which no model is run of; `ulplab dequantize FILE -o FILE` writes \
             files of floats, if it reads the method: put them into a folder with this config.json without quantization_config"
        ))
    };
    if !READ.contains(&method.as_str()) {
        return refused(method);
    }
    let algorithm = text(keys, "quant_algo").or_else(|| text(keys.get("quantization")?.as_object()?, "quant_algo"));
    let algorithm = algorithm.filter(|name| !["fp8", "mxfp8", "fp8_pb_wo"].contains(&name.as_str()));
    if let Some(algorithm) = algorithm.filter(|_| method == "modelopt") {
        return refused(format!("{method} ({})", algorithm.to_uppercase()));
    }
    let groups = keys.get("config_groups").and_then(Value::as_object);
    let weights = groups.into_iter().flat_map(|groups| groups.values());
    let weights: Vec<&Map<String, Value>> = weights.filter_map(|group| group.get("weights")?.as_object()).collect();
    for weights in &weights {
        let bits = weights.get("num_bits").and_then(Value::as_u64);
        let kind = text(weights, "type");
        if (bits, kind.as_deref()) != (Some(8), Some("float")) {
            let format = text(keys, "format").unwrap_or_else(|| "no format named".into());
            let (kind, bits) = (
                kind.unwrap_or_default(),
                bits.map_or("?".into(), |bits| bits.to_string()),
            );
            return refused(format!("{method} ({format}: {kind} of {bits} bits)"));
        }
    }
    let structure = weights
        .iter()
        .find_map(|weights| weights.get("block_structure").filter(|value| !value.is_null()));
    let (key, value) = match (keys.get("weight_block_size"), structure) {
        (Some(value), _) if !value.is_null() => ("weight_block_size", value),
        (_, Some(value)) => ("block_structure", value),
        _ => return Ok(None),
    };
    let side = |side: &Value| Some(side.as_u64()? as usize).filter(|side| (1..=1 << 20).contains(side));
    let sides: Option<Vec<usize>> = value.as_array().and_then(|sides| sides.iter().map(side).collect());
    match sides.as_deref() {
        Some(&[rows, cols]) => Ok(Some([rows, cols])),
        _ => Err(format!(
            "quantization_config.{key} is {value}, expected two whole numbers above 0"
        )),
    }
}
