//! The Swap-FFN model with its weights: computes a complete token, or a single step in the computation of a token.

use super::PATH;
use super::config::{Config, RouterForm};
use super::context::Context;
use super::lanes::{BANKS, decode};
use super::parameters::tensor_name;
use super::parts::{Collapse, Ffn, Film};
use super::router::{Decisions, Router, softmax_of_columns};
use super::sites::*;
use super::state::State;
use crate::paths::{self, LoadError, Loader, Source};
use crate::{Numerics, Real, Site, Tensor};

/// A model with its weights.
#[derive(Clone, Debug)]
pub struct Model<T> {
    config: Config,
    film: Film<T>,
    router: Router<T>,
    ffn: Ffn<T>,
    collapse: Collapse<T>,
}

/// Outputs of the model for one token of every sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Output<T> {
    /// Delta of each sequence, `[B, d_model]`.
    pub delta: Tensor<T>,
    /// For each event, the decision of the router for every core: whether to exchange its vector, and with which bank.
    pub decisions: Vec<Decisions<T>>,
}

impl<T: Real> Model<T> {
    /// Creates a model from its parts. If `router` has another form (folded or not) than the configuration says, the form of
    /// `router` counts.
    ///
    /// # Errors
    /// Returns the errors of [`Config::check`], and an error if the shapes of the tensors do not match the configuration.
    pub fn new(
        config: Config,
        film: Film<T>,
        router: Router<T>,
        ffn: Ffn<T>,
        collapse: Collapse<T>,
    ) -> Result<Self, String> {
        config.check()?;
        let (cores, width, inner) = (config.core_count, config.d_model, config.d_ff);
        let (ways, rank) = (config.collapse_k, config.collapse_r);
        let mut shapes: Vec<(&str, &[usize], Vec<usize>)> = vec![
            ("film.scale", &film.scale.shape, vec![cores, width]),
            ("film.shift", &film.shift.shape, vec![cores, width]),
            ("film.alpha", &film.alpha.shape, vec![cores, ways]),
            ("w1", &ffn.w1.shape, vec![inner, width]),
            ("w3", &ffn.w3.shape, vec![inner, width]),
            ("w2", &ffn.w2.shape, vec![width, inner]),
            ("the basis", &collapse.basis.shape, vec![ways, rank, width]),
            ("the decoder", &collapse.decoder.shape, vec![width, rank]),
        ];
        let mut lengths = vec![("the FFN's norm", ffn.norm.len())];
        match &router {
            Router::Folded { weight, .. } => shapes.push(("the router", &weight.shape, vec![1 + BANKS, width])),
            Router::Unfolded {
                norm,
                projection,
                weight,
                ..
            } => {
                lengths.push(("the router's norm", norm.len()));
                shapes.push((
                    "the router's projection",
                    &projection.shape,
                    vec![config.d_router, width],
                ));
                shapes.push(("the router", &weight.shape, vec![1 + BANKS, config.d_router]));
            }
        }
        if let Some((name, found, expected)) = shapes.iter().find(|(_, found, expected)| *found != expected) {
            return Err(format!("{name} has shape {found:?}, expected {expected:?}"));
        }
        if let Some((name, found)) = lengths.iter().find(|(_, found)| *found != width) {
            return Err(format!("{name} has {found} weights, expected {width}"));
        }
        let config = Config {
            router: router.form(),
            ..config
        };
        Ok(Self {
            config,
            film,
            router,
            ffn,
            collapse,
        })
    }

    /// Loads every tensor of [`Config::tensors`] from `weights`, and calls `numerics` at the site of each tensor. Computes the
    /// tensors of [`Film`] from the embeddings once.
    pub(super) fn of_weights(
        config: Config,
        weights: &mut Source<'_>,
        numerics: &mut dyn Numerics<T>,
    ) -> Result<Self, LoadError> {
        let mut load = Parameters {
            config: &config,
            load: Loader::new(weights),
            numerics,
        };
        let embedding = load.tensor(EMBED)?;
        let mut scale = load.affine([SCALE_WEIGHT, SCALE_BIAS], &embedding)?;
        let mut shift = load.affine([SHIFT_WEIGHT, SHIFT_BIAS], &embedding)?;
        let mut alpha = load.affine([ALPHA_WEIGHT, ALPHA_BIAS], &embedding)?;
        scale.data.iter_mut().for_each(|scale| *scale += T::ONE);
        softmax_of_columns(&mut alpha);
        let norm = load.tensor(ROUTER_NORM)?.data;
        let projection = load.tensor(ROUTER_W)?;
        let mut heads = load.tensor(SWAP_W)?.data;
        let mut bias = load.tensor(SWAP_B)?.data;
        heads.extend(load.tensor(BANK_W)?.swapped().data);
        bias.extend(load.tensor(BANK_B)?.data);
        let router = Router::Unfolded {
            norm,
            projection,
            weight: Tensor::new([1 + BANKS, config.d_router], heads),
            bias: std::array::from_fn(|i| bias[i]),
        };
        let ffn = Ffn {
            norm: load.tensor(FFN_NORM)?.data,
            w1: load.tensor(W1)?,
            w3: load.tensor(W3)?,
            w2: load.tensor(W2)?,
        };
        let collapse = Collapse {
            basis: load.tensor(BASIS)?,
            decoder: load.tensor(DECODER)?,
        };
        for (name, tensor) in [(SCALE, &mut scale), (SHIFT, &mut shift), (ALPHA, &mut alpha)] {
            load.pass(name, tensor);
        }
        Ok(Self {
            film: Film { scale, shift, alpha },
            router: match config.router {
                RouterForm::Folded => router.folded(),
                RouterForm::Unfolded => router,
            },
            ffn,
            collapse,
            config,
        })
    }

    /// Returns the configuration; its field `router` is the form of the router in use.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the parts of the model.
    pub fn parts(&self) -> (&Film<T>, &Router<T>, &Ffn<T>, &Collapse<T>) {
        (&self.film, &self.router, &self.ffn, &self.collapse)
    }

    /// Runs the model on tokens `[B, d_model]`, one per sequence, and updates the state.
    ///
    /// # Errors
    /// Returns an error if the shape of a tensor does not match the configuration, or a hook overwrote a decision with an index
    /// that is out of range.
    pub fn step(
        &self,
        x_in: &Tensor<T>,
        state: &mut State<T>,
        numerics: &mut dyn Numerics<T>,
    ) -> Result<Output<T>, String> {
        let mut x = self.spread(x_in, state, numerics)?;
        let events = 0..self.config.n_events;
        let decisions = events.map(|event| self.event(&mut x, state, event, numerics));
        let decisions = decisions.collect::<Result<_, _>>()?;
        let delta = self.collapse(&x, state, numerics)?;
        state.tokens += 1;
        Ok(Output { delta, decisions })
    }

    /// Expands tokens `[B, d_model]` to the vectors of their cores, x `[B · core_count, d_model]`, the input of the first event.
    ///
    /// # Errors
    /// Returns an error if the shape of a tensor does not match the configuration.
    pub fn spread(
        &self,
        x_in: &Tensor<T>,
        state: &State<T>,
        numerics: &mut dyn Numerics<T>,
    ) -> Result<Tensor<T>, String> {
        let width = self.config.d_model;
        let [batch, _] = self.shape("x_in", x_in, ["B", &width.to_string()])?;
        state.check(&self.config, batch)?;
        let mut cx = Context::new(numerics, None, state.tokens, ());
        let mut x_in = x_in.clone();
        cx.pass(INPUT, &mut x_in);
        let mut x = self.film.spread(&x_in);
        cx.pass(SPREAD, &mut x);
        Ok(x)
    }

    /// Runs one event on x `[B · core_count, d_model]`: an exchange, then the FFN steps.
    ///
    /// # Errors
    /// Returns an error if the shape of a tensor does not match the configuration, or a hook overwrote a decision with an index
    /// that is out of range.
    pub fn event(
        &self,
        x: &mut Tensor<T>,
        state: &mut State<T>,
        event: usize,
        numerics: &mut dyn Numerics<T>,
    ) -> Result<Decisions<T>, String> {
        let decisions = self.exchange(x, state, event, numerics)?;
        for _ in 0..self.config.k_ffn {
            self.ffn(x, state, event, numerics)?;
        }
        Ok(decisions)
    }

    /// Runs one FFN step on x `[B · core_count, d_model]`.
    ///
    /// # Errors
    /// Returns an error if the shape of a tensor does not match the configuration.
    pub fn ffn(
        &self,
        x: &mut Tensor<T>,
        state: &State<T>,
        event: usize,
        numerics: &mut dyn Numerics<T>,
    ) -> Result<(), String> {
        self.batch(x)?;
        let mut cx = Context::new(numerics, Some(event), state.tokens, ());
        self.ffn.step(x, &self.config, &mut cx);
        Ok(())
    }

    /// Decides for every core whether x is exchanged with a bank, and exchanges x with the content of that bank.
    ///
    /// # Errors
    /// Returns an error if the shape of a tensor does not match the configuration, or a hook overwrote a decision with an index
    /// that is out of range.
    pub fn exchange(
        &self,
        x: &mut Tensor<T>,
        state: &mut State<T>,
        event: usize,
        numerics: &mut dyn Numerics<T>,
    ) -> Result<Decisions<T>, String> {
        let batch = self.batch(x)?;
        state.check(&self.config, batch)?;
        let mut cx = Context::new(numerics, Some(event), state.tokens, ());
        let decisions = self.router.decide(x, &self.config, &mut cx)?;
        let exchanged: Vec<usize> = (0..x.rows()).filter(|&row| decisions.gate[row]).collect();
        if exchanged.is_empty() {
            return Ok(decisions);
        }
        let leaving = exchanged.iter().flat_map(|&row| x.row(row)).copied().collect();
        let mut leaving = Tensor::new([exchanged.len(), x.cols()], leaving);
        cx.pass(RAM, &mut leaving);
        for (&row, leaving) in exchanged.iter().zip(leaving.data.chunks_exact(x.cols())) {
            let selected = usize::from(decisions.bank[row]);
            let bank = state.bank_mut(row, decode(state.map[row])[selected]);
            x.row_mut(row).copy_from_slice(bank);
            bank.copy_from_slice(leaving);
            state.map[row] = self.config.lane_rule.update(state.map[row], selected);
        }
        Ok(decisions)
    }

    /// Maps x `[B · core_count, d_model]` after the last event to the changes of the tokens (delta), `[B, d_model]`.
    ///
    /// # Errors
    /// Returns an error if the shape of a tensor does not match the configuration.
    pub fn collapse(
        &self,
        x: &Tensor<T>,
        state: &State<T>,
        numerics: &mut dyn Numerics<T>,
    ) -> Result<Tensor<T>, String> {
        self.batch(x)?;
        let mut cx = Context::new(numerics, None, state.tokens, ());
        Ok(self.collapse.apply(x, &self.film.alpha, &self.config, &mut cx))
    }

    /// Checks the shape of x `[B · core_count, d_model]`, and returns the number of sequences B.
    fn batch(&self, x: &Tensor<T>) -> Result<usize, String> {
        let (cores, width) = (self.config.core_count, self.config.d_model);
        let [rows, _] = self.shape("x", x, [&format!("B · {cores}"), &width.to_string()])?;
        match rows.is_multiple_of(cores) {
            true => Ok(rows / cores),
            false => Err(format!("x has {rows} rows, expected a multiple of {cores} cores")),
        }
    }

    fn shape(&self, what: &str, x: &Tensor<T>, expected: [&str; 2]) -> Result<[usize; 2], String> {
        match x.shape[..] {
            [rows, cols] if cols == self.config.d_model => Ok([rows, cols]),
            _ => Err(format!(
                "{what} has shape {:?}, expected [{}, {}]",
                x.shape, expected[0], expected[1]
            )),
        }
    }
}

/// Loads parameters of the model, and calls the hook at the site of each parameter.
struct Parameters<'a, T: Real> {
    config: &'a Config,
    load: Loader<'a, T>,
    numerics: &'a mut dyn Numerics<T>,
}

impl<T: Real> Parameters<'_, T> {
    fn pass(&mut self, name: &'static str, tensor: &mut Tensor<T>) {
        self.numerics.site(&Site::new(None, name), tensor);
    }

    fn tensor(&mut self, site: &'static str) -> Result<Tensor<T>, LoadError> {
        let info = PATH.site(site).expect("a site of the path");
        let shape = paths::Config::dims(self.config, info);
        let mut tensor = self.load.tensor(tensor_name(site), &shape)?;
        self.pass(site, &mut tensor);
        Ok(tensor)
    }

    /// Loads W and b, the tensors of two sites, and computes x Wᵀ + b.
    fn affine(&mut self, [weight, bias]: [&'static str; 2], x: &Tensor<T>) -> Result<Tensor<T>, LoadError> {
        let mut y = self.tensor(weight)?.apply(x);
        let bias = self.tensor(bias)?.data;
        for y in y.data.chunks_exact_mut(bias.len()) {
            y.iter_mut().zip(&bias).for_each(|(y, &bias)| *y += bias);
        }
        Ok(y)
    }
}
