//! Cells that a device leaves out.

use std::collections::HashSet;

use ulplab::backend::cuda::Source as KernelFile;
use ulplab::ops;
use ulplab::run::plan::Cell;
use ulplab::studies::Study;
use ulplab::studies::kernels::{KernelStudy, file, without_simple};

#[test]
fn simple_is_left_out_where_another_variant_takes_the_case() {
    let sources: Vec<KernelFile> = ["mhc_post", "fp8_gemm", "top_k"]
        .into_iter()
        .map(|op| file(ops::find(op).unwrap(), &ops::COMPOSITIONS).unwrap())
        .collect();
    let asked = KernelStudy {
        kernels: vec!["**".into()],
        ..KernelStudy::default()
    };
    let study = asked.resolved(&sources).unwrap();
    let ids = |cells: Vec<Cell>| -> HashSet<String> { cells.into_iter().map(|cell| cell.id).collect() };
    let left = |arch, only: &str| {
        let cells: Vec<Cell> = study.plan().cells();
        let cells: Vec<Cell> = cells.into_iter().filter(|cell| cell.recipe.starts_with(only)).collect();
        let all = ids(cells.clone());
        let kept = ids(without_simple(&study, &sources, (arch, 132), cells).unwrap());
        all.difference(&kept).cloned().collect::<Vec<_>>()
    };
    let gone = left("sm_90a", "");
    assert!(gone.iter().all(|id| id.contains(".simple/")), "{gone:?}");
    let of = |op: &str| gone.iter().filter(|id| id.starts_with(op)).count();
    // mhc_post has no other variant.
    assert_eq!(of("mhc_post."), 0);
    assert!(of("fp8_gemm.") > 0 && of("top_k.") > 0, "{gone:?}");
    // Variants for another device take nothing here.
    assert!(left("sm_100a", "fp8_gemm.").len() < of("fp8_gemm."));
    // Without the others it is all that there is.
    assert_eq!(left("sm_90a", "top_k.simple").len(), 0);
}
