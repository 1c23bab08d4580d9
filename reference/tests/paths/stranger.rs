//! A path that is not the crate's enters by the same door.

use reference::paths::{Input, Model, PATHS, Path, Scalar, find_in, load};
use reference::sites::{Growth, Held, When};
use reference::{Numerics, Plain, Real, Site, SiteInfo, Tensor};

use super::fixtures::*;
use super::support::*;
use super::tiny;

const JSON: &str = r#"{"model_type": "tiny_text", "vocab_size": 19, "width": 6, "full": [true, false, false, true]}"#;

fn model<T: Scalar>() -> Box<dyn Model<T>> {
    let paths: Vec<&'static Path> = PATHS.iter().copied().chain([&tiny::PATH]).collect();
    let path = find_in(&paths, JSON).expect("a path");
    let config = path.config(JSON).expect("a configuration");
    load(&*config, &mut Drawn, &mut Plain).expect("a model")
}

#[test]
fn it_is_found_loaded_and_run() {
    fn check<T: Scalar>() {
        let model = model::<T>();
        let config = model.config();
        let mut checked = Checked::new(config, config.path().sites, When::Run);
        let outputs = run(&*model, &mut checked);
        checked.finish();
        assert_eq!(outputs.last().map(|output| output.shape.clone()), Some(vec![1, 19]));
        let mut state = begin(&*model);
        let ids = pieces(config).into_iter().flat_map(|piece| match piece {
            Piece::Ids(ids) => ids,
            Piece::Vector(_) => Vec::new(),
        });
        let ids: Vec<u32> = ids.collect();
        let whole = model.run(&mut *state, Input::Ids(&ids), &mut Plain).expect("ids");
        let last = outputs.last().expect("an output");
        for (&a, &b) in whole.row(whole.rows() - 1).iter().zip(&last.data) {
            let (a, b): (f64, f64) = (a.into(), b.into());
            assert!((a - b).abs() <= 1e-3 * b.abs(), "prefill and decode: {a} and {b}");
        }
    }
    check::<f32>();
    check::<f64>();
}

#[test]
fn its_tensors_are_those_that_it_loads() {
    let model = model::<f32>();
    let specs = model.config().tensors();
    assert_eq!(specs.len(), 1 + 2 * 4);
    assert_eq!((specs[0].name.as_str(), &specs[0].shape[..]), ("embed", &[19, 6][..]));
    assert_eq!(
        (specs[8].name.as_str(), &specs[8].shape[..]),
        ("layers.3.v", &[6, 6][..])
    );
}

/// Keys, values and the state are each on the way.
#[test]
fn its_caches_are_told_apart() {
    struct Edit(&'static str);
    impl<T: Real> Numerics<T> for Edit {
        fn site(&mut self, site: &Site, tensor: &mut Tensor<T>) {
            if site.name == self.0 {
                tensor.data.iter_mut().for_each(|x| *x = -*x);
            }
        }
    }
    let model = model::<f64>();
    let (config, plain) = (model.config(), run(&*model, &mut Plain));
    let growth = [
        (tiny::KEYS, Held::Key, [Some(1), None]),
        (tiny::VALUES, Held::Value, [Some(1), None]),
        (tiny::STATE, Held::State, [None, None]),
    ];
    for (name, held, rows) in growth {
        assert!(run(&*model, &mut Edit(name)) != plain, "{name} is not read");
        let site = config.path().site(name).expect("a site");
        assert_eq!(site.cache.map(|cache| cache.held), Some(held));
        let here = [0, 1].map(|layer| config.passes(site, Some(layer)));
        assert_eq!(here, [held != Held::State, held == Held::State]);
        let found = [0, 1].map(|layer| config.tokens_per_row(site, layer).filter(|_| here[layer]));
        assert_eq!(found, rows);
        assert_eq!(
            site.cache.map(|cache| cache.growth) == Some(Growth::State),
            held == Held::State
        );
    }
}

#[test]
fn a_site_that_is_not_as_listed_is_noticed() {
    let model = model::<f32>();
    let config = model.config();
    let wrong = |sites: Vec<SiteInfo>| {
        let mut checked = Checked::new(config, &sites, When::Run);
        run(&*model, &mut checked);
        checked.wrong.sort();
        checked.wrong.dedup();
        checked.wrong
    };
    let without = |name: &str| {
        tiny::SITES
            .iter()
            .copied()
            .filter(|site| site.name != name)
            .collect::<Vec<_>>()
    };
    let with = |site: SiteInfo| [without(site.name), vec![site]].concat();
    let keys = |what: &str| {
        [0, 3]
            .map(|layer| format!("'layers.{layer}.{}' {what}", tiny::KEYS))
            .to_vec()
    };
    let site = SiteInfo::new(tiny::KEYS, reference::dims![T, width], "keys").layered_if(&["full_attention"]);
    assert_eq!(wrong(with(site)), Vec::<String>::new());
    assert_eq!(wrong(without(tiny::KEYS)), keys("is not listed"));
    assert_eq!(
        wrong(with(site.layered_if(&["linear_attention"]))),
        keys("is not said to be in this layer")
    );
    assert_eq!(wrong(with(site.at_load())), keys("is passed at another time"));
    let wide = SiteInfo::new(tiny::KEYS, reference::dims![T, 2 * width], "keys").layered();
    assert_eq!(wrong(with(wide)), keys("has other columns"));
}
