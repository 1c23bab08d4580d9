//! Checkpoints with nothing wrong.

use std::path::Path;

use safetensors::Dtype;
use ulplab_checkpoint::checkpoint::{Checkpoint, Report, Selection, Severity};

use super::made::{KINDS, clean};

/// All findings, for messages.
pub fn told(report: &Report) -> Vec<String> {
    let line = |finding: &ulplab_checkpoint::checkpoint::Finding| {
        format!(
            "{} {}: {}; expected {}",
            finding.check.name, finding.subject, finding.found, finding.expected
        )
    };
    report.findings.iter().map(line).collect()
}

#[test]
fn what_is_right_gives_no_finding() {
    for kind in KINDS {
        let report = clean(kind).judge(true);
        assert!(report.findings.is_empty(), "{kind}: {:#?}", told(&report));
        assert!(report.unread.is_empty(), "{kind}: {:?}", report.unread);
        assert_eq!(report.matrices.len(), 6, "{kind}");
        assert_eq!(report.plain, 3, "{kind}");
        let name = report.convention.unwrap().name;
        assert!(kind.starts_with(name), "{kind} is taken for {name}");
        for judged in &report.matrices {
            // E4M3 gives 31 dB with scales of its blocks and less with powers of two; 4 bits 17 dB and more.
            let sqnr = judged.sqnr.unwrap();
            assert!((17.0..40.0).contains(&sqnr), "{kind} {}: {sqnr} dB", judged.name);
        }
    }
}

#[test]
fn names_tell_the_convention_without_a_configuration() {
    for kind in KINDS {
        let mut made = clean(kind);
        made.config = serde_json::json!({});
        let report = made.judge(false);
        let name = report.convention.unwrap().name;
        // The names of FP8 with `weight_scale` are those of both.
        let same = *kind == "ModelOpt fp8" && name == "compressed-tensors";
        assert!(kind.starts_with(name) || same, "{kind} is taken for {name}");
        assert_eq!(report.count(Severity::Error), 0, "{kind}: {:#?}", told(&report));
    }
}

#[test]
fn the_rule_that_made_the_bytes_is_named() {
    let report = clean("ModelOpt nvfp4").judge(true);
    for judged in &report.matrices {
        let rule = judged.rule.as_deref().unwrap();
        assert!(rule.contains("modelopt") || rule.contains("global"), "{rule}");
    }
    let report = clean("DeepSeek v3").judge(true);
    let rule = report.matrices[0].rule.as_deref().unwrap();
    assert!(rule.contains("to the last byte"), "{rule}");
}

#[test]
fn the_datasets_have_no_error() {
    for name in ["dsv4-mini", "gptoss-mini", "qwen3-mini", "qwen35-mini"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../datasets").join(name);
        let report = Checkpoint::open(&path)
            .unwrap()
            .judge(&Selection::default(), |_| {}, |_, _| {})
            .unwrap();
        assert!(report.findings.is_empty(), "{name}: {:#?}", told(&report));
        assert!(report.unread.is_empty(), "{name}: {:?}", report.unread);
        assert!(report.matrices.len() > 20, "{name}");
    }
}

#[test]
fn what_is_not_understood_is_listed() {
    let mut made = clean("ModelOpt fp8");
    made.tensors
        .insert("model.layers.0.mystery".into(), (Dtype::U8, vec![4, 4], vec![7; 16]));
    let report = made.judge(false);
    assert_eq!(report.count(Severity::Error), 0, "{:#?}", told(&report));
    let names: Vec<&str> = report.unread.iter().map(|unread| unread.tensor.as_str()).collect();
    assert_eq!(names, ["model.layers.0.mystery"]);
    // Codes of 3 bits are packed across words.
    let mut made = clean("GPTQ");
    made.config["quantization_config"]["bits"] = 3.into();
    let report = made.judge(false);
    assert_eq!(report.unread.len(), 6, "{:#?}", told(&report));
    assert!(report.matrices.is_empty());
}

#[test]
fn a_selection_leaves_the_rest_out() {
    let mut made = clean("DeepSeek v3");
    let name = "model.layers.1.mlp.up_proj.weight_scale_inv";
    made.tensors.get_mut(name).unwrap().2[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    std::fs::create_dir(&model).unwrap();
    made.save(&model);
    let checkpoint = Checkpoint::open(&model).unwrap();
    for (only, matrices, findings) in [("**.layers.1.**", 3, 1), ("**.layers.0.**", 3, 0), (name, 1, 1)] {
        let only = [only.to_string()];
        let selection = Selection {
            only: &only,
            ..Selection::default()
        };
        let report = checkpoint.judge(&selection, |_| {}, |_, _| {}).unwrap();
        assert_eq!(
            (report.matrices.len(), report.findings.len()),
            (matrices, findings),
            "{only:?}"
        );
    }
    let only = ["none*".to_string()];
    let selection = Selection {
        only: &only,
        ..Selection::default()
    };
    assert!(checkpoint.judge(&selection, |_| {}, |_, _| {}).is_err());
}
