//! Models as objects compute what models of their own types compute, and pass what the table says.

use reference::paths::{Input, Invalid, PATHS, Scalar, Weights, deepseek_v4, load, swap_ffn};
use reference::sites::When;
use reference::{Plain, Tensor};

use super::fixtures::*;
use super::support::*;

#[test]
fn every_path_loads_its_fixture_and_passes_what_it_lists() {
    fn check<T: Scalar>(fixture: &Fixture) {
        let model = fixture.model::<T>();
        let config = model.config();
        let path = config.path();
        assert_eq!(path.name, fixture.path);
        let mut checked = Checked::new(config, path.sites, When::Run);
        let outputs = run(&*model, &mut checked);
        checked.finish();
        assert!(outputs == run(&*model, &mut Plain), "watching changes nothing");
        assert_eq!(path.reads_tokens(), config.vocabulary().is_some());
        for output in outputs {
            assert_eq!(output.cols(), config.cols(path.output()));
            assert!(output.data.iter().all(|&x| Into::<f64>::into(x).is_finite()));
        }
    }
    let fixtures = all();
    for path in PATHS {
        let own = fixtures
            .iter()
            .filter(|fixture| fixture.path == path.name)
            .collect::<Vec<_>>();
        assert!(!own.is_empty(), "'{}' has no fixture", path.name);
        for fixture in own {
            check::<f32>(fixture);
            check::<f64>(fixture);
        }
    }
}

/// What the type of the path gives.
fn typed<T: Scalar>(fixture: &Fixture) -> Vec<Tensor<T>> {
    let config = fixture.config();
    let pieces = pieces(&*config).into_iter();
    if fixture.path == "swap_ffn" {
        let mut keys: serde_json::Map<_, _> = serde_json::from_str(&fixture.json).expect("an object");
        keys.remove("model_type");
        let config: swap_ffn::Config = serde_json::from_value(keys.into()).expect("a configuration");
        let mut load = |weights: &mut dyn Weights<Error = String>| swap_ffn::load::<T, _>(config, weights, &mut Plain);
        let model = fixture.with_weights(&mut load);
        let shape = [SEQUENCES, config.core_count, swap_ffn::BANKS, config.d_model];
        let mut state = swap_ffn::State::new(&config, tensor("ram", &shape)).expect("a state");
        let mut feed = |piece| match piece {
            Piece::Vector(number) => model.step(&vector(config.d_model, number), &mut state, &mut Plain),
            Piece::Ids(_) => Err("vectors are expected".into()),
        };
        return pieces.map(|piece| feed(piece).expect("a token").delta).collect();
    }
    let config: deepseek_v4::Config = serde_json::from_str(&fixture.json).expect("a configuration");
    let mut load = |weights: &mut dyn Weights<Error = String>| deepseek_v4::Model::<T>::load(config.clone(), weights);
    let model = fixture.with_weights(&mut load);
    let mut state = model.state();
    let feed = |piece| match piece {
        Piece::Ids(ids) => model.run(&mut state, &ids, &mut Plain).expect("ids"),
        Piece::Vector(_) => panic!("ids are expected"),
    };
    pieces.map(feed).collect()
}

#[test]
fn the_door_changes_no_bit() {
    fn check<T: Scalar>(fixture: &Fixture) {
        let bits = |outputs: Vec<Tensor<T>>| {
            let numbers = outputs.into_iter().flat_map(|output| output.data);
            numbers.map(|x| Into::<f64>::into(x).to_bits()).collect::<Vec<_>>()
        };
        assert!(bits(run(&*fixture.model::<T>(), &mut Plain)) == bits(typed::<T>(fixture)));
    }
    // The other paths have no door of their own.
    let own = |fixture: &&Fixture| ["deepseek_v4", "swap_ffn"].contains(&fixture.path);
    for fixture in all().iter().filter(own) {
        check::<f32>(fixture);
        check::<f64>(fixture);
    }
}

#[test]
fn a_copy_of_a_state_goes_on_by_itself() {
    for fixture in all() {
        let model = fixture.model::<f32>();
        let pieces = pieces(model.config());
        let mut state = begin(&*model);
        one(&*model, &mut *state, &pieces[0], &mut Plain);
        let (mut copy, seen) = (state.clone(), state.tokens());
        let next = one(&*model, &mut *state, &pieces[1], &mut Plain);
        assert!(state.tokens() > seen && copy.tokens() == seen);
        assert!(one(&*model, &mut *copy, &pieces[1], &mut Plain) == next);
        assert!(begin(&*model).tokens() == 0 && seen > 0);
    }
}

#[test]
fn what_does_not_belong_together_is_told() {
    let fixtures = all();
    let (text, swap) = (fixtures[0].model::<f32>(), fixtures[1].model::<f32>());
    let (x, ids) = (vector(12, 0), [3u32]);
    let (mut of_text, mut of_swap) = (begin(&*text), begin(&*swap));
    let run = |model: &dyn reference::paths::Model<f32>, state: &mut Box<_>, input| {
        model.run(&mut **state, input, &mut Plain).expect_err("an error")
    };
    let other = "the state is that of a model of another path";
    assert_eq!(run(&*text, &mut of_swap, Input::Ids(&ids)), other);
    assert_eq!(run(&*swap, &mut of_text, Input::Vectors(&x)), other);
    let (ids, x) = (Input::Ids(&ids), Input::Vectors(&x));
    assert_eq!(run(&*text, &mut of_text, x), "the model takes token ids, not vectors");
    assert_eq!(run(&*swap, &mut of_swap, ids), "the model takes vectors, not token ids");
    let error = text
        .state(vec![Tensor::new([1], vec![0.0])])
        .expect_err("no tensor is expected");
    assert_eq!(error, "1 tensors to begin with, expected none");
    let error = swap.state(Vec::new()).expect_err("a tensor is expected");
    assert_eq!(error, "0 tensors to begin with, expected one, 'ram'");
}

/// Errors of weights come through the door as they are, and those of the loader turn into them.
#[test]
fn errors_of_weights_come_through() {
    #[derive(Debug, PartialEq)]
    enum Error {
        Own(String),
        Model(Invalid),
    }
    impl From<Invalid> for Error {
        fn from(invalid: Invalid) -> Self {
            Self::Model(invalid)
        }
    }
    struct Wrong(bool);
    impl Weights for Wrong {
        type Error = Error;

        fn floats(&mut self, name: &str, _: &[usize]) -> Result<Vec<f32>, Error> {
            match self.0 {
                true => Err(Error::Own(name.into())),
                false => Ok(vec![0.5]),
            }
        }

        fn integers(&mut self, name: &str, _: &[usize]) -> Result<Vec<u32>, Error> {
            Err(Error::Own(name.into()))
        }
    }
    for fixture in all() {
        let config = fixture.config();
        let first = &config.tensors()[0];
        let error = |wrong| load::<f32, _>(&*config, &mut Wrong(wrong), &mut Plain).err();
        assert_eq!(error(true), Some(Error::Own(first.name.clone())));
        let elements = first.shape.iter().product::<usize>();
        let (name, shape) = (&first.name, &first.shape);
        let message = format!("tensor '{name}' has 1 elements, expected {elements} of {shape:?}");
        assert_eq!(error(false), Some(Error::Model(Invalid::Tensor(message))));
    }
}
