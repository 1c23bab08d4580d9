//! The files of kernels that a run depends on.

use crate::backend::cuda::Source as KernelFile;
use crate::provenance;
use crate::run::Manifest;

/// Adds to a manifest the digests of files whose operation is used, and of the judgements of these operations.
pub fn add_digests(manifest: &mut Manifest, sources: &[KernelFile], used: impl Fn(&str) -> bool) {
    for source in sources.iter().filter(|source| used(&source.op)) {
        let op = &source.op;
        let kernels = (format!("kernels/{op}.cu"), source.digest().to_hex().to_string());
        let judgement = provenance::judgement(op);
        let judgement = judgement.map(|digest| (format!("judgement of {op}"), digest.to_string()));
        manifest.data.extend([kernels].into_iter().chain(judgement));
    }
}
