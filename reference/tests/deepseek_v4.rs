//! The DeepSeek-V4 path against `transformers`, and against its own laws. `fixtures/README.md` says what the fixtures are.

mod blocks;
mod errors;
mod invariance;
mod layers;
mod models;
mod moe;
mod mutants;
mod nan;
mod parts;
mod random;
mod relations;
mod seam;
mod support;
mod trained;
