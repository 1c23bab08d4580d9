//! Reports and stored runs, on a made-up run.

#[path = "report/folder.rs"]
mod folder;
#[path = "report/kernels.rs"]
mod kernels;
#[path = "report/page.rs"]
mod page;
#[path = "report/sharing.rs"]
mod sharing;
#[path = "report/shown.rs"]
mod shown;
#[path = "report/store.rs"]
mod store;
#[path = "report/synthetic.rs"]
mod synthetic;
#[path = "report/texts.rs"]
mod texts;
#[path = "report/verdicts.rs"]
mod verdicts;
