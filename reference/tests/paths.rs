//! Every path of [`PATHS`](reference::paths::PATHS) by the door that all share, and a path that a stranger adds.

mod door;
mod families;
mod fixtures;
mod gqa;
mod gqa_configs;
mod hybrid;
mod hybrid_configs;
mod kimi;
mod kimi_configs;
mod stranger;
mod support;
mod tables;
mod tiny;
mod trained;
