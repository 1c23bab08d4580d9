//! Swap-FFN: every core of a token has a vector x. In an event, x may be exchanged with one of four banks of memory, and then
//! passes through an FFN that all cores share.
//!
//! A token is expanded to the cores by FiLM, x = x_in ⊙ S_c + T_c. In every event, the router of each core decides from x
//! whether to exchange it, and with which bank. A map of one byte stores the positions of the banks. After the events, the
//! cores are pooled and decoded to the token's delta. Banks and maps persist from token to token, so that a single differing
//! decision has lasting effects.

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

/// Loads every tensor of [`Config::tensors`] from `weights`, and calls `numerics` at the tensor's site.
///
/// # Errors
/// Returns the errors of [`Config::check`] and of `weights`.
///
/// # Panics
/// Panics with the error of [`Config::check`] if the weights have no error type, such as [`Initial`].
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
