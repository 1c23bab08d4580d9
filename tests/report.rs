//! Reports and stored runs, on a made-up run.

#[path = "report/columns.rs"]
mod columns;
#[path = "report/folder.rs"]
pub mod folder;
#[path = "report/kernels.rs"]
mod kernels;
#[path = "report/number.rs"]
mod number;
#[path = "report/page.rs"]
mod page;
#[path = "report/scale.rs"]
mod scale;
#[path = "report/scatter.rs"]
mod scatter;
#[path = "report/sharing.rs"]
mod sharing;
#[path = "report/shown.rs"]
mod shown;
#[path = "report/store.rs"]
pub mod store;
#[path = "report/synthetic.rs"]
mod synthetic;
#[path = "report/texts.rs"]
mod texts;
#[path = "report/verdicts.rs"]
mod verdicts;
