//! The exit code of every command that judges, on inputs that hold, that fail, that are empty or unselected, and that cannot be read.

use super::*;

/// Command lines in a folder of [`inputs`], in this order, and their exit codes.
const TABLE: &str = "
0    sweep gated.toml --out runs/gated
0    sweep gated.toml --out runs/again
4    sweep trip.toml --out runs/trip
4    sweep trip.toml --out runs/trip_again
4    sweep other.toml --out runs/other
100  sweep failing.toml --out runs/failing
4    sweep gated.toml --only nothing/**
4    sweep gated.toml --only fp8/local/draw-1 --out runs/part
2    sweep missing.toml
0    gate runs/gated
100  gate runs/failing
4    gate runs/trip
4    gate runs/part
4    gate runs/gated --paired
0    gate runs/trip --rules gated.toml
2    gate runs/missing
0    report runs/trip
0    diff runs/gated runs/again
100  diff runs/gated runs/trip
4    diff runs/trip runs/trip_again
4    diff runs/trip runs/other --identical
0    diff runs/trip runs/trip_again --identical
2    diff runs/trip runs/trip_again --worsening kl<=1
2    diff runs/trip runs/trip
0    bisect runs/trip runs/trip_again
4    bisect runs/trip runs/other
2    bisect runs/gated
0    merge runs/gated
4    merge runs/trip
4    baseline compare runs/gated
4    baseline accept runs/trip --why first --by ada
100  baseline accept runs/failing --why first --by ada
0    baseline accept runs/gated --why first --by ada
0    baseline compare runs/again
4    baseline compare runs/trip
0    compare a.safetensors same.safetensors
4    compare a.safetensors b.safetensors
100  compare a.safetensors b.safetensors --gate cosine>=0.9999
2    compare a.safetensors b.safetensors --gate cosine>=-1
4    compare a.safetensors b.safetensors --only x
2    compare a.safetensors x.safetensors
4    compare a.safetensors x.safetensors --allow-unmatched
4    compare nan.safetensors nan2.safetensors
4    compare empty.safetensors empty2.safetensors
4    compare none.safetensors none2.safetensors
4    compare a.safetensors b.safetensors --parity
2    compare a.safetensors damaged.safetensors
4    quantize ints.safetensors --format e4m3 -o codes.safetensors
4    quantize none.safetensors --format e4m3 -o codes.safetensors
4    quantize a.safetensors --format e4m3 -o codes.safetensors --only x
2    quantize damaged.safetensors --format e4m3 -o codes.safetensors
0    quantize a.safetensors --format e4m3 -o codes.safetensors
0    compare a.safetensors codes.safetensors --parity
100  compare b.safetensors codes.safetensors --parity
4    dequantize a.safetensors -o back.safetensors
4    dequantize codes.safetensors -o back.safetensors --skip **
0    dequantize codes.safetensors -o back.safetensors
0    inspect codes.safetensors
4    inspect a.safetensors
4    inspect none.safetensors
4    inspect folder
4    inspect folder --as checkpoint
2    inspect damaged.safetensors
2    mix trip.toml --at x --formats nvfp4,bf16
4    kernels check --only nothing
4    kernels time --only nothing
4    kernels mutants --only nothing
4    kernels probe --only nothing
2    kernels power nothing
2    kernels describe nothing
2    audit a.safetensors --python nothing --seeds 0
";

/// A file of tensors: name, type, elements and bytes.
fn tensors(file: &Path, tensors: &[(&str, &str, usize, Vec<u8>)]) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, dtype, elements, bytes) in tensors {
        let span = [data.len(), data.len() + bytes.len()];
        let entry = serde_json::json!({"dtype": dtype, "shape": [elements], "data_offsets": span});
        header.insert(name.to_string(), entry);
        data.extend(bytes);
    }
    let header = serde_json::Value::Object(header).to_string();
    let size = (header.len() as u64).to_le_bytes();
    std::fs::write(file, [&size[..], header.as_bytes(), &data].concat()).unwrap();
}

fn inputs(folder: &Path) {
    let file = |name: &str| folder.join(format!("{name}.safetensors"));
    let floats = |name: &str, numbers: &[f32]| {
        let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        ("w".to_string(), file(name), numbers.len(), bytes)
    };
    for (tensor, file, elements, bytes) in [
        floats("a", &[1.0, 2.0]),
        floats("same", &[1.0, 2.0]),
        floats("b", &[1.0, 3.3]),
        floats("nan", &[f32::NAN; 2]),
        floats("nan2", &[f32::NAN; 2]),
        floats("empty", &[]),
        floats("empty2", &[]),
        floats("folder/a", &[1.0, 2.0]),
    ] {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        tensors(&file, &[(&tensor, "F32", elements, bytes)]);
    }
    tensors(&file("x"), &[("x", "F32", 2, vec![0; 8])]);
    tensors(&file("ints"), &[("w", "I32", 2, vec![0; 8])]);
    tensors(&file("none"), &[]);
    tensors(&file("none2"), &[]);
    std::fs::write(file("damaged"), [1]).unwrap();
    let gated = format!("{TRIP}{COSINE}");
    for (name, text) in [
        ("trip", TRIP.to_string()),
        ("gated", gated.replace("\"trip\"", "\"gated\"")),
        ("failing", gated.replace(">= 0.98", ">= 0.99999")),
        (
            "other",
            TRIP.replace("\"fp8\"", "\"fp4\"").replace("\"e4m3\"", "\"nvfp4\""),
        ),
    ] {
        std::fs::write(folder.join(format!("{name}.toml")), text).unwrap();
    }
}

/// Inputs that no gate binds, that are empty or that are not selected are not judged: 4, never 0 and never 100.
#[test]
fn exit_codes_are_those_of_the_table() {
    let folder = tempfile::tempdir().unwrap();
    inputs(folder.path());
    let mut findings = Vec::new();
    for line in TABLE.lines().filter(|line| !line.is_empty()) {
        let (wanted, words) = line.split_once(' ').unwrap();
        let words: Vec<&str> = words.split_whitespace().collect();
        let output = ulplab(&words).current_dir(folder.path()).output().unwrap();
        if code(&output).to_string() != wanted {
            let printed = stdout(&output) + &stderr(&output);
            findings.push(format!(
                "`ulplab {}` ends with {}, not {wanted}: {printed}",
                words.join(" "),
                code(&output)
            ));
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}
