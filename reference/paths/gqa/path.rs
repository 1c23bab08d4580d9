//! The path as others find it.

use super::families::MODEL_TYPES;
use super::{SITES, read};
use crate::SiteInfo;
use crate::paths::{self, Path};

/// Transformers with grouped-query attention.
#[derive(Clone, Copy, Debug)]
pub struct Gqa;

impl Path for Gqa {
    fn name(&self) -> &'static str {
        "gqa"
    }

    fn model_types(&self) -> &'static [&'static str] {
        &MODEL_TYPES
    }

    fn sites(&self) -> &'static [SiteInfo] {
        SITES
    }

    fn config_without(&self, json: &str, inert: &[&str]) -> Result<Box<dyn paths::Config>, String> {
        Ok(Box::new(read::config(json, inert)?))
    }

    fn nearest(&self, json: &str) -> Option<String> {
        read::nearest(json)
    }
}
