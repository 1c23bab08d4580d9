//! Plans, shares and records of runs.

#[path = "run/invocation.rs"]
mod invocation;
#[path = "run/lines.rs"]
mod lines;
#[path = "run/partition.rs"]
mod partition;
#[path = "run/progress.rs"]
mod progress;
#[path = "run/query.rs"]
mod query;
#[path = "run/scheduler.rs"]
mod scheduler;
