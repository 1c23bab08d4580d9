//! Swap-FFN: a token is expanded to several vectors x, one for each *core*. In an *event*, a core may exchange its x with one of
//! its four *banks* (vectors in memory), and then passes x through an FFN that all cores share.
//!
//! FiLM expands a token to the cores: x = x_in ⊙ S_c + T_c, with the scale S_c and the shift T_c of core c. In every event, a
//! router reads the x of each core and decides if x is exchanged, and with which bank. A *map* of one byte stores the order of a
//! core's banks. After the events, the cores are pooled and decoded to the token's delta (the change to add to it). Banks and
//! maps persist from token to token, so that a single differing decision has lasting effects.

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

/// Loads every tensor of [`Config::tensors`] from `weights`, and calls `numerics` at the site of each tensor.
///
/// # Errors
/// Returns the errors of [`Config::check`] and of `weights`, and an error if a tensor has the wrong length.
///
/// # Panics
/// If [`Config::check`] returns an error and the error type of `weights` is `Infallible`, as for [`Initial`].
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
