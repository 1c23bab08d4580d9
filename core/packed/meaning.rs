//! What stored scales are worth.

use crate::formats::{Format, Global, Scale};

/// Whether stored scales of one format are worth the same as those of another, so that one can be decoded as the other. Only
/// rules of which that is so explain a tensor of which it is known what its scales mean.
pub fn reads_as(one: &Format, other: &Format) -> bool {
    match (one.scaling, other.scaling) {
        (Some(one), Some(other)) => worth_the_same(&one.scale, &other.scale),
        (one, other) => one == other,
    }
}

fn worth_the_same(one: &Scale, other: &Scale) -> bool {
    match (one, other) {
        (Scale::E8m0(_), Scale::E8m0(_)) => true,
        (Scale::F32(a), Scale::F32(b)) => a.stored == b.stored,
        (Scale::Half(a, x), Scale::Half(b, y)) => a == b && x.stored == y.stored,
        // What is stored beside an amax depends on how far blocks reach.
        (Scale::E4m3(a), Scale::E4m3(b)) => a.stored == b.stored && (a.stored != Global::Amax || a.span == b.span),
        _ => one == other,
    }
}
