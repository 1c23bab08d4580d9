//! Every path of [`PATHS`](reference::paths::PATHS) by the door that all share, and a path that a stranger adds.

#[path = "paths/door.rs"]
mod door;
#[path = "paths/families.rs"]
mod families;
#[path = "paths/fixtures.rs"]
mod fixtures;
#[path = "paths/gqa.rs"]
mod gqa;
#[path = "paths/gqa_configs.rs"]
mod gqa_configs;
#[path = "paths/hybrid.rs"]
mod hybrid;
#[path = "paths/hybrid_configs.rs"]
mod hybrid_configs;
#[path = "paths/kimi.rs"]
mod kimi;
#[path = "paths/kimi_configs.rs"]
mod kimi_configs;
#[path = "paths/stranger.rs"]
mod stranger;
#[path = "paths/support.rs"]
mod support;
#[path = "paths/tables.rs"]
mod tables;
#[path = "paths/tiny.rs"]
mod tiny;
#[path = "paths/trained.rs"]
mod trained;
