//! Reports and stored runs, on a made-up run.

#[path = "report/kernels.rs"]
mod kernels;
#[path = "report/store.rs"]
mod store;
#[path = "report/synthetic.rs"]
mod synthetic;
#[path = "report/texts.rs"]
mod texts;
#[path = "report/verdicts.rs"]
mod verdicts;
