//! The files of kernels that a run depends on.

use crate::backend::cuda::shipped::folder;
use crate::backend::cuda::{Device, Source as KernelFile};
use crate::ops::COMPOSITIONS;
use crate::provenance;
use crate::run::Manifest;
use crate::studies::Study;
use ulplab_core::error::{Exit, Result};

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

/// Adds all files of kernels to the manifest of a study in which kernels stand in for operations of a model.
///
/// # Errors
/// If a file cannot be read.
pub fn add_all(study: &dyn Study, manifest: &mut Manifest) -> Result<()> {
    if study.uses_gpu() {
        add_digests(manifest, &KernelFile::read_all(&folder()?, &COMPOSITIONS)?, |_| true);
    }
    Ok(())
}

/// Adds the GPU to the manifest of such a study. Its runs always go on.
///
/// # Errors
/// If there is no GPU.
pub fn add_device(study: &dyn Study, manifest: &mut Manifest) -> Result<Option<Exit>> {
    if study.uses_gpu() {
        manifest.device = Device::open()?.describe();
    }
    Ok(None)
}
