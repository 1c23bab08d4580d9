//! The DeepSeek-V4 path against `transformers`, and against its own laws. `fixtures/README.md` says what the fixtures are.

#[path = "deepseek_v4/blocks.rs"]
mod blocks;
#[path = "deepseek_v4/errors.rs"]
mod errors;
#[path = "deepseek_v4/invariance.rs"]
mod invariance;
#[path = "deepseek_v4/layers.rs"]
mod layers;
mod measure;
#[path = "deepseek_v4/models.rs"]
mod models;
#[path = "deepseek_v4/moe.rs"]
mod moe;
#[path = "deepseek_v4/mutants.rs"]
mod mutants;
#[path = "deepseek_v4/nan.rs"]
mod nan;
#[path = "deepseek_v4/parts.rs"]
mod parts;
#[path = "deepseek_v4/random.rs"]
mod random;
#[path = "deepseek_v4/relations.rs"]
mod relations;
#[path = "deepseek_v4/seam.rs"]
mod seam;
#[path = "deepseek_v4/support.rs"]
mod support;
#[path = "deepseek_v4/trained.rs"]
mod trained;
