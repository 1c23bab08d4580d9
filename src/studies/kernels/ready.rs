//! Steps of a run of kernels and programs: prepare, open the GPU, run the cells (units of work), conclude.

use std::collections::HashSet;
use std::path::Path;

use super::attest::Attestation;
use super::capsules::Capsules;
use super::compile::Compile;
use super::mutants::{self, MutantFiles, MutantResult};
use super::peers::Peers;
use super::{
    Cells, KernelStudy, OnDevice, Variants, for_others, line, operations, ops_of, programs, sites, times,
    without_simple, workers,
};
use crate::backend::cuda::time::Stopwatch;
use crate::backend::cuda::{Device, Session};
use crate::experiment::file::ExperimentFile;
use crate::run::folder::Folder;
use crate::run::invocation::Invocation;
use crate::run::partition::{self, Partition};
use crate::run::plan::Cell;
use crate::run::{Hindrance, Manifest};
use crate::studies::processes::Processes;
use crate::studies::study::{Lab, Measured, Planned, ReadyRecipes, Share, Text, add_digests};
use ulplab_core::error::{Error, Exit, Result, counted};
use ulplab_core::record::Record;
use ulplab_operations::ops::Data;

/// Kernels and programs that are ready to run; implements the steps of a run.
pub struct ReadyKernels<'a> {
    pub study: &'a KernelStudy,
    pub seed: u64,
    /// The command line of the run. It is written to capsules (files that reproduce a failed cell).
    pub invocation: Invocation,
    pub peers: Option<Peers>,
    /// The GPU; `None` if only programs run.
    pub device: Option<Device>,
}

impl ReadyKernels<'_> {
    /// Compiles the kernels instead of running them. `why` is the reason, which is printed.
    fn compile(&self, planned: &Planned, why: &str) -> Result<Exit> {
        let study = self.study;
        Compile { study, planned }.run(why)
    }

    /// Compiles the kernels on a machine without a GPU. Returns the exit code if a header has a mistake or no program is
    /// selected; `None` if the run goes on with programs.
    fn without_device(&self, planned: Planned, why: &Error) -> Result<Option<Exit>> {
        let program = |cell: &Cell| programs::is_of(&self.study.commands, cell);
        let any_kernel = !planned.cells.iter().all(program);
        if any_kernel && self.compile(&planned, &format!("no GPU ({why})"))? == Exit::Usage {
            return Ok(Some(Exit::Usage));
        }
        let (programs, variants): (Vec<Cell>, Vec<Cell>) = planned.cells.drain(..).partition(program);
        if programs.is_empty() {
            let cells = counted(variants.len(), "cell");
            outln!("NOT RUN: kernels were compiled, and none of {cells} was run: {why}");
            return Ok(Some(Exit::NotJudged));
        }
        for cell in variants {
            let why = Hindrance::Missing(format!("it was compiled and not run: {why}"));
            planned.manifest.hindered.insert(cell.recipe, why);
        }
        planned.manifest.keep(&programs);
        *planned.cells = programs;
        Ok(None)
    }

    /// Adds the GPU, its peak rates, and the variants that cannot run on it to the manifest. If `fast_only` is set, removes
    /// cells of `simple` variants that another variant makes unnecessary.
    fn with_device(&mut self, planned: Planned, device: Device) -> Result<()> {
        let Planned { manifest, cells, .. } = planned;
        let sources = &self.study.sources;
        manifest.device = device.describe();
        manifest.hindered = for_others(self.study, sources, &device);
        if self.study.options.fast_only {
            let on = (&device.arch[..], device.sms);
            *cells = without_simple(self.study, sources, on, std::mem::take(cells))?;
            manifest.keep(cells);
        }
        // If another process has begun this shared run, take the peak rates from the run's manifest instead of measuring them.
        let begun = planned.shared.map(Folder::open);
        manifest.ceilings = match begun {
            Some(Ok((_, stored))) => stored.ceilings,
            _ => Some(Stopwatch::new(&device)?.ceilings()?),
        };
        if let Some(peers) = &self.peers {
            peers.check_device(&device.name)?;
        }
        self.device = Some(device);
        Ok(())
    }

    /// Returns the operations whose planted faults this process tests, and the process's share of the faults of each operation. A
    /// fault is tried on all cases, including cases that other processes run.
    fn planted<'s>(&self, share: Option<Share<'s>>) -> (Vec<&'s str>, partition::Share) {
        match share.filter(|_| self.study.options.mutants) {
            None => (Vec::new(), partition::Share::WHOLE),
            Some(Share {
                partition: Some(Partition::Op(op, own)),
                ..
            }) => (vec![op], *own),
            Some(share) => (ops_of(share.cells.iter().copied()), partition::Share::WHOLE),
        }
    }

    /// Opens the results of planted faults, if faults are planted and there are kernels to plant them in; else `None`.
    fn faults(&self, folder: &Folder, manifest: &Manifest) -> Option<MutantFiles> {
        let planted = self.study.options.mutants && manifest.ceilings.is_some();
        planted.then(|| MutantFiles::new(&folder.path, &folder.run))
    }

    /// Reads the results of all planted faults.
    fn results(&self, folder: &Folder, manifest: &Manifest, cells: &[&Cell]) -> Result<Vec<MutantResult>> {
        let files = self.faults(folder, manifest);
        files.map_or(Ok(Vec::new()), |files| files.all(&self.study.sources, cells))
    }
}

impl ReadyRecipes for ReadyKernels<'_> {
    fn prepare(&mut self, file: &ExperimentFile, cells: &[Cell], manifest: &mut Manifest) -> Result<()> {
        let (study, options) = (self.study, &self.study.options);
        let wrong = |mistake| file.error(&mistake);
        // Add digests of the kernels and of the code that checks them to the manifest: a run can be continued only if both are
        // unchanged.
        let ops = study.variants.iter().filter_map(|variant| variant.name.split_once('.'));
        let ops: HashSet<&str> = ops.map(|(op, _)| op).collect();
        add_digests(manifest, &study.sources, |op| ops.contains(op));
        manifest.data.extend(operations::files(study)?);
        self.peers = options.peers.as_deref().map(Peers::read).transpose()?;
        if let Some(peers) = &self.peers {
            let digest = (peers.file.display().to_string(), peers.digest.clone());
            manifest.data.push(digest);
            manifest.peers = peers.names();
        }
        let home = file.path.parent().unwrap_or(Path::new(""));
        manifest.data.extend(operations::watched(study, home).map_err(wrong)?);
        if options.device == OnDevice::Cuda {
            programs::check_programs(study, cells).map_err(wrong)?;
        }
        manifest.invocation = Invocation {
            kernels: true,
            timed: options.timed,
            fast_only: options.fast_only,
            mutant: options.mutant.clone(),
            peers: options.peers.clone(),
            ..manifest.invocation.clone()
        };
        self.invocation = manifest.invocation.clone();
        Ok(())
    }

    fn open(&mut self, planned: Planned) -> Result<Option<Exit>> {
        let options = &self.study.options;
        if let Some(folder) = &options.keep_failed {
            Capsules::prepare(folder)?;
        }
        if options.device == OnDevice::Compile {
            return self.compile(&planned, "--device compile").map(Some);
        }
        match Device::open() {
            Ok(device) => self.with_device(planned, device).map(|()| None),
            Err(why) if options.timed => Err(why),
            Err(why) => self.without_device(planned, &why),
        }
    }

    fn processes(&self, manifest: &Manifest, cells: &[Cell]) -> Result<Option<Processes>> {
        let options = &self.study.options;
        // Without a GPU, do not share a run that also has kernels: each process would compile the kernels, and none would run
        // them.
        let runs_all = self.device.is_some() || manifest.hindered.is_empty();
        let Some(asked) = options.workers.as_ref().filter(|_| runs_all) else {
            return Ok(None);
        };
        let faults = options.mutants || options.attest.is_some();
        let gpus = self.device.as_ref().map_or(Ok(0), |_| Device::count())?;
        workers::processes(asked, cells, faults, gpus)
    }

    /// Runs the programs, then the kernels operation by operation, then plants faults.
    fn run(&self, lab: &Lab, cells: &[&Cell]) -> Result<()> {
        let (study, options) = (self.study, &self.study.options);
        if cells.is_empty() && !options.mutants {
            return Ok(());
        }
        let (planted, own) = self.planted(lab.share);
        let of_sites = operations::cells(study, |operation, case| operation.reads_site(case));
        let of_sites = of_sites.map_err(|mistake| mistake.usage())?;
        let reads = |cell: &&Cell| of_sites.contains(&format!("{}/{}", cell.recipe, lab.plan.windows[cell.window]));
        let plants = |cell: &String| cell.split_once('.').is_some_and(|(op, _)| planted.contains(&op));
        let model = match cells.iter().any(reads) || of_sites.iter().any(plants) {
            true => lab.inputs.load()?,
            false => None,
        };
        let text = model.as_deref().zip(lab.inputs.texts.first());
        let text = text.map(|(model, text)| Text { model, ids: &text.ids });
        let at_sites = |pattern: &str| sites(text.ok_or("no model is given")?, pattern);
        let done = |cell: &Cell, records: Vec<Record>| {
            let times = line(&records).filter(|_| options.timed);
            (lab.done)(cell, records)?;
            times.iter().for_each(|line| lab.bar.suspend(|| errln!("{line}")));
            Ok(())
        };
        let keep = options.keep_failed.as_ref().map(|folder| Capsules {
            folder: folder.clone(),
            invocation: self.invocation.clone(),
            several: study.draws.is_some_and(|draws| draws > 1),
        });
        let all = Cells {
            study,
            data: &Data::new(self.seed, &at_sites).with_checkpoint(lab.inputs.folder.as_deref()),
            done: &done,
            stop: lab.stop,
            keep: keep.as_ref(),
        };
        let (programs, variants): (Vec<&Cell>, Vec<&Cell>) =
            cells.iter().partition(|cell| programs::is_of(&study.commands, cell));
        programs::run(&all, &programs)?;
        let device = self.device.as_ref();
        let Some(device) = device.filter(|_| !variants.is_empty() || options.mutants) else {
            return Ok(());
        };
        let on_device = Variants {
            cells: all,
            sources: &study.sources,
            session: Session::open(device)?,
            ceilings: lab.ceilings,
            mutant: options.mutant.as_deref(),
            peers: self.peers.as_ref(),
        };
        on_device.run(&variants)?;
        let Some(Share { folder, .. }) = lab.share.filter(|_| options.mutants) else {
            return Ok(());
        };
        lab.bar.finish_and_clear();
        on_device.mutants(&planted, own, &MutantFiles::new(&folder.path, &folder.run))
    }

    fn check_kept(&self, folder: &Folder, manifest: &Manifest, cells: &[&Cell]) -> Result<()> {
        self.results(folder, manifest, cells).map(drop)
    }

    fn conclude_share(&self, folder: &Folder, manifest: &Manifest, share: &[&Cell]) -> Result<Exit> {
        let files = self.faults(folder, manifest);
        let results = files.map_or(Ok(Vec::new()), |files| files.found(&self.study.sources, share))?;
        Ok(Exit::judged(!mutants::print(&results)))
    }

    fn conclude(&self, measured: Measured) -> Result<Exit> {
        let (run, options) = (measured.run, &self.study.options);
        let results = self.results(measured.folder, &run.manifest, measured.cells)?;
        if options.timed && !measured.json {
            out!("\n{}", times(run));
        }
        let unnoticed = mutants::print(&results);
        if let (Some(folder), Some(device)) = (&options.attest, &self.device) {
            let attestation = Attestation::of(run, &self.study.sources, device, &results)?;
            outln!("{}", attestation.write(folder)?.display());
        }
        let exit = match run.outcome() {
            _ if unnoticed => Exit::GateFailed,
            outcome if options.timed && !run.records.is_empty() => outcome.exit_of_bench(),
            outcome => outcome.exit(),
        };
        let incomplete = self.peers.as_ref().and_then(Peers::incomplete);
        Ok(match incomplete.filter(|_| exit == Exit::Pass) {
            Some(why) => {
                errln!("INCOMPLETE: {why}");
                Exit::Incomplete
            }
            None => exit,
        })
    }
}
