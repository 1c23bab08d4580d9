//! The null of a model study.

use reference::paths::PATHS;
use reference::sites::Growth;
use ulplab::record::Phase;
use ulplab::studies::model::Recipe;
use ulplab::studies::model::null::reordered;

#[test]
fn calls_after_which_a_state_is_rounded_are_not_drawn() {
    let growing = |wanted: fn(Growth) -> bool| {
        let mut sites = PATHS.iter().flat_map(|path| path.sites);
        let found = sites.find(|site| site.cache.is_some_and(|cache| wanted(cache.growth)));
        found.unwrap().name
    };
    let state = growing(|growth| growth == Growth::State);
    let other = growing(|growth| growth != Growth::State);
    for (at, calls) in [
        (format!("layers.*.{state}"), (true, None)),
        (format!("layers.17.{state}"), (true, None)),
        ("layers.*.**".into(), (true, None)),
        (format!("layers.*.{other}"), (false, Some(1))),
    ] {
        let text = format!("name = 'a'\ndoc = 'x'\nchunk = 1\nround = [{{ at = '{at}', format = 'bf16' }}]");
        let recipe: Recipe = toml::from_str(&text).unwrap();
        let found = reordered(&recipe, Phase::Cumulative).unwrap();
        assert_eq!((found.chunk.is_some(), found.cuts), calls, "{at}");
    }
}
