//! The meaning of stored scales.

use ulplab_core::formats::{Format, Global, Scale};

/// True if stored scales of one format have the same meaning as those of another, so that either can be decoded as the
/// other. If the meaning of a tensor's scales is known, only such rules can explain it.
pub fn reads_as(one: &Format, other: &Format) -> bool {
    let scale = |format: &Format| format.scaling.map(|scaling| scaling.scale);
    match (scale(one), scale(other)) {
        (Some(Scale::E8m0(_)), Some(Scale::E8m0(_))) => true,
        (Some(Scale::F32(a)), Some(Scale::F32(b))) => a.stored == b.stored,
        (Some(Scale::Half(a, x)), Some(Scale::Half(b, y))) => a == b && x.stored == y.stored,
        // With a stored amax, the meaning of a block scale depends on the span of its rule.
        (Some(Scale::E4m3(a)), Some(Scale::E4m3(b))) => {
            a.stored == b.stored && (a.stored != Global::Amax || a.span == b.span)
        }
        (one, other) => one == other,
    }
}
