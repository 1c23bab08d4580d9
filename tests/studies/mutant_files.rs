//! Planted faults in the folder of a run.

use ulplab::studies::kernels::mutants::{MutantFiles, MutantResult};

#[test]
fn faults_that_were_planted_are_read_again_in_the_same_run_only() {
    let folder = tempfile::tempdir().unwrap();
    let result = MutantResult {
        kernel: "rope.simple".into(),
        mutant: "cos_sin_swapped".into(),
        doc: "cos and sin exchanged".into(),
        killed: None,
    };
    let (op, fault) = ("rope", result.mutant.as_str());
    let files = MutantFiles::new(folder.path(), "one");
    assert_eq!(files.read(op, fault).unwrap(), None);
    files.write(op, fault, vec![result.clone()]).unwrap();
    assert_eq!(files.read(op, fault).unwrap(), Some(vec![result.clone()]));
    assert_eq!(files.read(op, "base_ignored").unwrap(), None);
    let other = MutantFiles::new(folder.path(), "two")
        .read(op, fault)
        .unwrap_err()
        .to_string();
    assert!(
        other.contains("cos_sin_swapped.json") && other.contains("of the run one, expected two"),
        "{other}"
    );
    std::fs::write(files.file(op, fault), "{").unwrap();
    assert!(
        files
            .read(op, fault)
            .unwrap_err()
            .to_string()
            .contains("cos_sin_swapped.json")
    );
}
