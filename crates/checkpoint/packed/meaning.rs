//! Compares the meaning of stored scales between formats.

use ulplab_core::formats::{Format, Global, Scale};

/// True if two formats decode the same stored scale bytes to the same values. If a file fixes how its scales are decoded, only
/// formats that agree with it in this sense can have made the file.
pub fn reads_as(one: &Format, other: &Format) -> bool {
    let scale = |format: &Format| format.scaling.map(|scaling| scaling.scale);
    match (scale(one), scale(other)) {
        (Some(Scale::E8m0(_)), Some(Scale::E8m0(_))) => true,
        (Some(Scale::F32(a)), Some(Scale::F32(b))) => a.stored == b.stored,
        (Some(Scale::Half(a, x)), Some(Scale::Half(b, y))) => a == b && x.stored == y.stored,
        // If the global scale is an amax, decoding divides it by the rule's span (the magnitude that the amax is mapped to). So
        // the spans of both rules must be equal.
        (Some(Scale::E4m3(a)), Some(Scale::E4m3(b))) => {
            a.stored == b.stored && (a.stored != Global::Amax || a.span == b.span)
        }
        (one, other) => one == other,
    }
}
