//! Swap-FFN: every core of a token carries a vector x, which events exchange with one of four banks of memory and then send
//! through an FFN that all cores share.
//!
//! A token is spread over the cores by FiLM, x = x_in ⊙ S_c + T_c. In every event each core's router decides on x whether to
//! exchange it with a bank, and with which; a map of one byte says where the banks are. After the events the cores are pooled
//! and decoded to the token's delta. Banks and maps are carried from token to token, so that one decision that falls
//! otherwise stays.

mod config;
mod context;
mod lanes;
mod model;
mod parameters;
mod parts;
mod path;
mod router;
pub mod sites;
mod state;

pub use config::{Config, DecisionRule, RouterForm};
pub use lanes::{BANKS, IDENTITY, LaneRule, decode, is_permutation, pack};
pub use model::{Model, Output};
pub use parameters::Initial;
pub use parts::{Collapse, Ffn, Film};
pub use path::PATH;
pub use router::{Decisions, Router};
pub use sites::SITES;
pub use state::State;

/// Takes every tensor of [`Config::tensors`] from `weights`, past its site.
///
/// # Errors
/// What [`Config::check`] finds, and errors of `weights`.
///
/// # Panics
/// In place of these errors with weights that cannot fail, as [`Initial`].
pub fn load<T: crate::Real, W: crate::paths::Weights + ?Sized>(
    config: Config,
    weights: &mut W,
    numerics: &mut dyn crate::Numerics<T>,
) -> Result<Model<T>, W::Error>
where
    crate::paths::Invalid: Into<W::Error>,
{
    config
        .check()
        .map_err(|message| crate::paths::Invalid::Config(message).into())?;
    crate::paths::model::of_weights(weights, |weights| Model::of_weights(config, weights, numerics))
}
