//! Heads that draft tokens have layers of the same names as the model.

use super::sources::{FORMS, Matrix, apart, judge, model, upside_down};
use super::whole::told;

/// Layer 0 of a head for drafts has the names of layer 0 of the model: it takes none of its tensors.
#[test]
fn a_tensor_serves_one_matrix() {
    let model = model();
    let mut quantized = apart(&model);
    let drafts: Vec<(String, Vec<Matrix>)> = quantized
        .iter()
        .filter(|(name, _)| name.contains("layers.0."))
        .map(|(name, all)| (name.replace("model.", "mtp."), all.clone()))
        .collect();
    let count = drafts.len();
    for (name, mut all) in drafts {
        upside_down(&mut all[0]);
        quantized.insert(name, all);
    }
    for (form, make) in FORMS.iter().filter(|(form, _)| !form.contains("native")) {
        let report = judge("ModelOpt nvfp4 weights", &quantized, &make(&model));
        let open = report
            .findings
            .iter()
            .filter(|finding| finding.check.name == "no_source" && finding.matrix.starts_with("mtp."));
        assert_eq!(
            (open.count(), report.findings.len()),
            (count, count),
            "{form}: {:#?}",
            told(&report)
        );
    }
}
