//! At most as many recipes in one chart as the eye can distinguish.

use super::Figure;
use crate::chart::{Coloured, GREY, SLOTS};

/// A chart of all `items`; then, folded, charts of those that are grey in it, each with its own colours. `chart` is given a
/// title and what to draw.
pub fn fold<T: Coloured + Clone>(items: Vec<T>, title: &str, chart: impl Fn(String, Vec<T>) -> Figure) -> Vec<Figure> {
    let mut grey = items.clone();
    grey.retain_mut(|item| *item.slot() >= GREY);
    let parts = grey.len().div_ceil(SLOTS);
    let mut figures = vec![chart(title.into(), items)];
    for (part, others) in grey.chunks_mut(SLOTS).enumerate() {
        for (slot, item) in others.iter_mut().enumerate() {
            *item.slot() = slot;
        }
        let part = match parts {
            1 => String::new(),
            _ => format!(" ({} of {parts})", part + 1),
        };
        figures.push(Figure {
            folded: true,
            ..chart(format!("{title}: others{part}"), others.to_vec())
        });
    }
    figures
}
