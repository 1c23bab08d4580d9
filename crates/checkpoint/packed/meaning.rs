//! The meaning of stored scales.

use ulplab_core::formats::{Format, Global, Scale};

/// True if stored scales of one format have the same meaning as those of another, so that either can be decoded as the
/// other. If the meaning of a tensor's scales is known, only such rules can explain it.
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
        // With a stored amax, the meaning of a block scale depends on the span of its rule.
        (Scale::E4m3(a), Scale::E4m3(b)) => a.stored == b.stored && (a.stored != Global::Amax || a.span == b.span),
        _ => one == other,
    }
}
