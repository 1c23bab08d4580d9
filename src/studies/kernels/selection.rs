//! Selection of the cells (pairs of a kernel variant and a case) that can run on the present GPU.

use std::collections::{BTreeMap, HashSet};

use super::body::KernelStudy;
use super::operations::Operation;
use crate::backend::cuda::{Device, Plan, Source as KernelFile, Variant};
use crate::run::Hindrance;
use crate::run::plan::Cell;
use ulplab_core::error::{Error, Result};

/// Returns the variants that are written for another architecture than the device's, each with a message that says so.
pub fn for_others(study: &KernelStudy, sources: &[KernelFile], device: &Device) -> BTreeMap<String, Hindrance> {
    let named = |(name, variant): (String, &Variant)| {
        let arch = variant.arch.as_ref().filter(|arch| **arch != device.arch)?;
        let why = format!("it is for {arch}, and this device is {}", device.arch);
        let tried = study.variants.iter().any(|variant| variant.name == name);
        tried.then_some((name, Hindrance::OtherDevice(why)))
    };
    sources.iter().flat_map(KernelFile::kernels).filter_map(named).collect()
}

/// Name of the variant that is written for readability, not for speed.
const SIMPLE: &str = "simple";

/// Removes a cell of a `simple` variant if `cells` has another variant that supports the same case on a device with this
/// architecture and number of multiprocessors (`sms`).
pub fn without_simple(
    study: &KernelStudy,
    sources: &[KernelFile],
    (arch, sms): (&str, i64),
    cells: Vec<Cell>,
) -> Result<Vec<Cell>> {
    let mut faster = HashSet::new();
    for source in sources {
        let operation = Operation::find(study, &source.op).map_err(Error::Usage)?;
        let cases = operation.cases().map_err(|mistake| mistake.usage())?;
        for cell in cells.iter().filter(|cell| cell.kernel().0 == source.op) {
            let variant = source.variant(cell.kernel().1);
            let other = variant.filter(|variant| variant.name != SIMPLE && variant.is_for(arch));
            let case = cases.iter().find(|case| case.name == study.case_names[cell.window]);
            if let (Some(other), Some(case)) = (other, case)
                && Plan::new(other, case, sms).map_err(Error::Usage)?.is_some()
            {
                faster.insert((source.op.clone(), cell.window));
            }
        }
    }
    let stays = |cell: &Cell| {
        let (op, variant) = cell.kernel();
        variant != SIMPLE || !faster.contains(&(op.to_string(), cell.window))
    };
    Ok(cells.into_iter().filter(stays).collect())
}
