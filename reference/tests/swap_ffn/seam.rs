//! The seam: which sites are called, in what order and with what, and that what is done there is obeyed.

use reference::paths::Config as _;
use reference::paths::swap_ffn::{BANKS, Config, DecisionRule, RouterForm, SITES, load};
use reference::sites::When;
use reference::{Choice, Numerics, Plain, Site, SiteInfo, SiteKind, Tensor};

use super::support::*;

/// What was called, and an edit of what passes.
struct Watch<F> {
    calls: Vec<(Site, Vec<usize>)>,
    edit: F,
}

impl<F: FnMut(&Site, &mut Tensor<f32>)> Numerics<f32> for Watch<F> {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        self.calls.push((*site, tensor.shape.clone()));
        (self.edit)(site, tensor);
    }

    fn choice(&mut self, site: &Site, choice: &mut Choice<f32>) {
        self.calls.push((*site, vec![choice.rows(), choice.k]));
    }
}

fn watch<F: FnMut(&Site, &mut Tensor<f32>)>(edit: F) -> Watch<F> {
    let calls = Vec::new();
    Watch { calls, edit }
}

/// A shape in words, in numbers; none where it depends on decisions.
fn shape(config: &Config, words: &str, batch: usize) -> Option<Vec<usize>> {
    let number = |word: &str| match word {
        "B" => Some(batch),
        "B · core_count" => Some(batch * config.core_count),
        "collapse_k · d_model" => Some(config.collapse_k * config.d_model),
        "core_count" => Some(config.core_count),
        "d_model" => Some(config.d_model),
        "d_ff" => Some(config.d_ff),
        "d_router" => Some(config.d_router),
        "d_embed" => Some(config.d_embed),
        "collapse_k" => Some(config.collapse_k),
        "collapse_r" => Some(config.collapse_r),
        number => number.parse().ok(),
    };
    words.trim_matches(['[', ']']).split(", ").map(number).collect()
}

/// The calls that the list of sites promises for a token.
fn promised(config: &Config, token: usize) -> Vec<(Site, &'static SiteInfo)> {
    let call = |layer, info: &'static SiteInfo| (Site::new(layer, info.name).from_row(token), info);
    let unfolded = config.router == RouterForm::Unfolded;
    let called = |info: &&SiteInfo| match info.name {
        "router.n" | "router.z" => unfolded,
        "router.probabilities" => config.decision == DecisionRule::Probabilities,
        _ => info.when == When::Run,
    };
    let (in_events, outside): (Vec<&SiteInfo>, Vec<&SiteInfo>) =
        SITES.iter().filter(called).partition(|info| info.in_layers());
    let ffn = |info: &&SiteInfo| info.name.starts_with("ffn.") || info.name == "x";
    let mut calls: Vec<_> = outside[..2].iter().map(|info| call(None, info)).collect();
    for event in 0..config.n_events {
        calls.extend(
            in_events
                .iter()
                .filter(|info| !ffn(info))
                .map(|info| call(Some(event), info)),
        );
        for _ in 0..config.k_ffn {
            calls.extend(
                in_events
                    .iter()
                    .filter(|info| ffn(info))
                    .map(|info| call(Some(event), info)),
            );
        }
    }
    calls.extend(outside[2..].iter().map(|info| call(None, info)));
    calls
}

#[test]
fn sites_are_called_as_listed() {
    let probabilities = Config {
        router: RouterForm::Unfolded,
        decision: DecisionRule::Probabilities,
        residual: true,
        ..SMALL
    };
    for config in [SMALL, probabilities] {
        let mut loaded = watch(|_, _| ());
        let Ok(model) = load::<f32, _>(config, &mut Drawn(&config), &mut loaded);
        let of_load = |info: &&SiteInfo| info.when == When::Load;
        let want: Vec<&SiteInfo> = SITES.iter().filter(of_load).collect();
        assert_eq!(loaded.calls.len(), want.len());
        for ((site, found), want) in loaded.calls.iter().zip(want) {
            assert_eq!((site.name, site.layer), (want.name, None));
            assert_eq!(found.last(), Some(&config.cols(want)), "{site}");
            assert_eq!(Some(found), shape(&config, &want.shape(), 0).as_ref(), "{site}");
        }
        let mut state = state::<f32>(&config, 2);
        for at in 0..3 {
            let mut watch = watch(|_, _| ());
            model
                .step(&token(&config, 2, at), &mut state, &mut watch)
                .expect("a token");
            let want = promised(&config, at);
            for (i, ((site, found), (wanted, info))) in watch.calls.iter().zip(&want).enumerate() {
                assert_eq!(site, wanted, "call {i}");
                if info.kind == SiteKind::Tensor {
                    assert_eq!(found.last(), Some(&config.cols(info)), "{site}");
                }
                if let Some(shape) = shape(&config, &info.shape(), 2) {
                    assert_eq!(*found, shape, "{site}");
                }
            }
            assert_eq!(watch.calls.len(), want.len());
        }
    }
}

#[test]
fn names_of_sites() {
    let mut names: Vec<&str> = SITES.iter().map(|info| info.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), SITES.len());
    let choices = SITES.iter().filter(|info| matches!(info.kind, SiteKind::Choice(_)));
    assert_eq!(
        choices.map(|info| info.name).collect::<Vec<_>>(),
        ["router.gate", "router.bank"]
    );
    let tensors: Vec<String> = SMALL
        .tensors()
        .into_iter()
        .map(|spec| format!("weights.{}", spec.name))
        .collect();
    let listed = SITES
        .iter()
        .map(|info| info.name)
        .filter(|name| name.starts_with("weights."));
    assert!(listed.eq(tensors.iter().map(String::as_str)));
}

/// What passes at `ram` is what banks hold; x goes on with what was in the bank, and nothing else is touched.
#[test]
fn banks_hold_what_their_site_left() {
    let config = Config { k_ffn: 0, ..SMALL };
    let (model, mut state) = (model::<f32>(config), state::<f32>(&config, 2));
    let before = state.clone();
    let mut x = tensor("x", &[2 * config.core_count, config.d_model]);
    let old = x.clone();
    let mut rounded = watch(|site, tensor| {
        if site.name == "ram" {
            tensor.data.iter_mut().for_each(|x| *x = x.round());
        }
    });
    let decisions = model.event(&mut x, &mut state, 0, &mut rounded).expect("an event");
    assert!(decisions.gate.contains(&true) && decisions.gate.contains(&false));
    for row in 0..2 * config.core_count {
        let used = row * BANKS + usize::from(decisions.bank[row]);
        if decisions.gate[row] {
            let stored: Vec<f32> = old.row(row).iter().map(|x| x.round()).collect();
            assert_eq!((state.ram.row(used), x.row(row)), (&stored[..], before.ram.row(used)));
        } else {
            assert_eq!((state.ram.row(used), x.row(row)), (before.ram.row(used), old.row(row)));
        }
    }
}

/// The router reads a copy: its rounding decides otherwise, and changes x by nothing else.
#[test]
fn the_router_has_its_own_copy() {
    let model = model::<f32>(SMALL);
    let run = |numerics: &mut dyn Numerics<f32>| {
        let (mut x, mut state) = (tensor("x", &[SMALL.core_count, SMALL.d_model]), state::<f32>(&SMALL, 1));
        let decisions = model.event(&mut x, &mut state, 0, numerics).expect("an event");
        (decisions, x, state)
    };
    let plain = run(&mut Plain);
    let mut away = watch(|site, tensor| {
        if site.name == "router.input" {
            tensor.data.iter_mut().for_each(|x| *x = -*x);
        }
    });
    let turned = run(&mut away);
    assert!(turned.0.logits != plain.0.logits);
    for row in 0..SMALL.core_count {
        let same = turned.0.code(row) == plain.0.code(row) || !(turned.0.gate[row] || plain.0.gate[row]);
        assert_eq!(same, turned.1.row(row) == plain.1.row(row), "row {row}");
    }
}

/// An edit at every tensor site reaches what leaves the token.
#[test]
fn every_site_is_on_the_way() {
    let config = Config {
        router: RouterForm::Unfolded,
        decision: DecisionRule::Probabilities,
        ..SMALL
    };
    let run = |name: &str| {
        let edit = |site: &Site, tensor: &mut Tensor<f32>| {
            if site.name == name {
                // Not a multiple, which a norm would take out.
                tensor
                    .data
                    .iter_mut()
                    .enumerate()
                    .for_each(|(at, x)| *x = if at % 2 == 0 { -*x - 1.0 } else { *x });
            }
        };
        let mut watch = watch(edit);
        let Ok(model) = load::<f32, _>(config, &mut Drawn(&config), &mut watch);
        let mut state = state::<f32>(&config, 1);
        let outputs: Vec<_> = (0..3)
            .map(|at| {
                model
                    .step(&token(&config, 1, at), &mut state, &mut watch)
                    .expect("a token")
            })
            .collect();
        (outputs, state)
    };
    let plain = run("");
    for info in SITES.iter().filter(|info| info.kind == SiteKind::Tensor) {
        assert!(run(info.name) != plain, "{} is not read", info.name);
    }
}
