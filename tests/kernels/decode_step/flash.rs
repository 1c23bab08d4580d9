//! DeepSeek-V4-Flash, whose weights and state are drawn in part and repeat.

use safetensors::Dtype;
use ulplab::metrics::VIOLATIONS;
use ulplab::ops::{Outputs, Role};

use super::super::{buffer, problems_of};

/// A host has room for what is drawn, a step moves about what the model's sizes say, and scales repeat with their codes.
#[test]
fn decode_step_draws_few_rows_of_a_model_that_no_host_has_room_for() {
    let name = "w8a16.bf16+mxfp4.v4_fp8.index_fp8.flash.b1";
    let cases = ulplab::ops::find("decode_step").unwrap().cases().into_iter();
    let all = problems_of("decode_step", cases.filter(|case| case.name == name));
    let (case, problem) = &all[0];
    let dims = ["layers", "sparse", "heavy", "banks", "E", "C", "P", "B"].map(|name| case.dim(name));
    assert_eq!(dims, [43, 21, 22, 8, 256, 4096, 32_768, 1]);
    let drawn: usize = problem.buffers.iter().map(|buffer| buffer.bytes.len()).sum();
    assert!(drawn < 1_500_000_000, "{drawn} bytes are drawn");
    assert!((9..13).contains(&(problem.bytes / 1_000_000_000)), "{}", problem.bytes);
    // How often the contents of a buffer are there.
    let times = |name: &str| {
        let found = buffer(problem, name);
        found.size() as f64 / found.bytes.len() as f64
    };
    let mut coded = 0;
    for one in problem.buffers.iter().filter(|buffer| buffer.role != Role::Out) {
        let (name, size, bytes) = (one.name, one.size(), one.bytes.len());
        let row = one.shape.last().unwrap() * one.dtype.bitsize() / 8;
        assert!(
            (1..=size).contains(&bytes) && bytes % row == 0,
            "{name}: {bytes} of {size}"
        );
        // Embeddings and the head have 1024 rows, of a vocabulary that is no multiple of that.
        let whole = size % bytes == 0;
        assert_eq!(
            whole,
            !["embedding", "head"].contains(&name),
            "{name}: {bytes} of {size}"
        );
        if [Dtype::F8_E4M3, Dtype::U8].contains(&one.dtype) && !name.ends_with("_pages") {
            assert_eq!(times(name), times(&format!("{name}_scales")), "{name}");
            coded += 1;
        }
    }
    assert_eq!(coded, 8);
    assert!(times("gate_up") > 8000.0);
    // What a kernel leaves that writes nothing is told.
    let outputs = problem.buffers.iter().filter(|buffer| buffer.role != Role::In);
    let outputs = Outputs(outputs.map(|buffer| (buffer.name, vec![0; buffer.size()])).collect());
    let found = problem.judge(&outputs).into_iter();
    let wrong = found.filter(|found| found.metric == &VIOLATIONS && found.value != 0.0);
    let wrong: Vec<&str> = wrong.map(|found| found.output).collect();
    assert_eq!(wrong, ["at_experts", "experts reached", "at_topk", "position", "clock"]);
}
