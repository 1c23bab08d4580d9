//! Small models with drawn weights.

use std::collections::HashMap;
use std::convert::Infallible;
use std::f64::consts::TAU;

use reference::paths::Weights;
use reference::paths::swap_ffn::{BANKS, Config, Initial, Model, State, load};
use reference::{Choice, Numerics, Plain, Real, Site, Tensor};

/// Sizes that are no multiples of anything.
pub const SMALL: Config = Config {
    d_model: 24,
    d_ff: 41,
    core_count: 5,
    n_events: 4,
    k_ffn: 2,
    d_router: 11,
    collapse_k: 3,
    collapse_r: 7,
    d_embed: 4,
    ..Config::STANDARD
};

/// So many numbers of N(0, 1) in f32's set, always the same for a name.
pub fn normal(name: &str, len: usize) -> Vec<f32> {
    let mut seed = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let mut uniform = || {
        seed = seed
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        let mixed = (seed ^ (seed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        ((mixed ^ (mixed >> 33)) >> 11) as f64 / 2f64.powi(53) + 2f64.powi(-54)
    };
    let one = |_| ((-2.0 * uniform().ln()).sqrt() * (uniform() * TAU).cos()) as f32;
    (0..len).map(one).collect()
}

pub fn tensor<T: Real>(name: &str, shape: &[usize]) -> Tensor<T> {
    let len = shape.iter().product();
    Tensor::new(
        shape,
        normal(name, len).into_iter().map(|x| T::from_f64(x.into())).collect(),
    )
}

/// Weights as before training, but for norms, which are not all one, and biases of the router, which do not decide alone.
pub struct Drawn<'a>(pub &'a Config);

impl Weights for Drawn<'_> {
    type Error = Infallible;

    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Infallible> {
        if name.ends_with("norm") {
            return Ok(normal(name, shape[0]).into_iter().map(|x| 1.0 + 0.25 * x).collect());
        }
        let draw = normal;
        let mut values = Initial { config: self.0, draw }.floats(name, shape)?;
        if ["router_swap_b", "bank_b"].contains(&name) {
            values.iter_mut().for_each(|x| *x *= 0.125);
        }
        Ok(values)
    }

    fn integers(&mut self, name: &str, _: &[usize]) -> Result<Vec<u32>, Infallible> {
        panic!("'{name}' is no table of indices")
    }
}

/// The weights by name, in f64.
pub fn weights(config: &Config) -> HashMap<String, Tensor<f64>> {
    let tensor = |spec: reference::paths::TensorSpec| {
        let Ok(values) = Drawn(config).floats(&spec.name, &spec.shape);
        let values = values.into_iter().map(f64::from).collect();
        (spec.name, Tensor::new(spec.shape, values))
    };
    config.tensors().into_iter().map(tensor).collect()
}

pub fn model<T: Real>(config: Config) -> Model<T> {
    config.check().expect("a good configuration");
    let Ok(model) = load(config, &mut Drawn(&config), &mut Plain);
    model
}

pub fn state<T: Real>(config: &Config, batch: usize) -> State<T> {
    let ram = tensor("ram", &[batch, config.core_count, BANKS, config.d_model]);
    State::new(config, ram).expect("a good state")
}

pub fn token<T: Real>(config: &Config, batch: usize, token: usize) -> Tensor<T> {
    tensor(&format!("token {token}"), &[batch, config.d_model])
}

/// Decides by these functions of the row in the place of the router, and lets others see what passes.
pub struct Decided<G, B> {
    pub gate: G,
    pub bank: B,
}

impl<T: Real, G: Fn(usize) -> i32, B: Fn(usize) -> i32> Numerics<T> for Decided<G, B> {
    fn choice(&mut self, site: &Site, choice: &mut Choice<T>) {
        for (row, index) in choice.indices.iter_mut().enumerate() {
            *index = match site.name {
                "router.gate" => (self.gate)(row),
                _ => (self.bank)(row),
            };
        }
    }
}
