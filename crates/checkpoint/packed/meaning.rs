//! Compares the meaning of stored scales between formats.

use ulplab_core::formats::{Format, Global, Scale};

/// True if stored scales mean the same in two formats, so that scales of one can be decoded as scales of the other. Where the
/// meaning of the scales of a tensor is known, only rules with that meaning can have made them.
pub fn reads_as(one: &Format, other: &Format) -> bool {
    let scale = |format: &Format| format.scaling.map(|scaling| scaling.scale);
    match (scale(one), scale(other)) {
        (Some(Scale::E8m0(_)), Some(Scale::E8m0(_))) => true,
        (Some(Scale::F32(a)), Some(Scale::F32(b))) => a.stored == b.stored,
        (Some(Scale::Half(a, x)), Some(Scale::Half(b, y))) => a == b && x.stored == y.stored,
        // If the global scale is an amax, a block scale also depends on the span of its rule.
        (Some(Scale::E4m3(a)), Some(Scale::E4m3(b))) => {
            a.stored == b.stored && (a.stored != Global::Amax || a.span == b.span)
        }
        (one, other) => one == other,
    }
}
