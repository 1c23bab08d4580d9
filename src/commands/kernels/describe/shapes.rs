//! Expresses the dimensions of buffers by the sizes of a case, e.g. as a multiple of a size. An expression must fit all sample
//! cases.

use ulplab_operations::ops::Case;

/// Lengths of blocks that share a scale. The last entry means a length of 16 in some cases and of 32 in the others.
const BLOCKS: [&[i64]; 7] = [&[16], &[32], &[64], &[128], &[256], &[512], &[16, 32]];
/// Separator in a range such as `8 to 64`: the minimum and the maximum of a dimension that no expression fits.
const TO: &str = " to ";

/// True if at least one dimension of the shape is a range, because no expression fits that dimension.
pub fn varies(shape: &[String]) -> bool {
    shape.iter().any(|length| length.contains(TO))
}

/// Returns dimension `at` of `shapes` in terms of the sizes: a size, half or a multiple of a size, a number of blocks, a product
/// of two or three sizes, or a constant. If none of these fits all cases, returns the minimum and the maximum.
pub fn named(shapes: &[(&Case, &[usize])], at: usize) -> String {
    let fits = |value: &dyn Fn(&Case) -> Option<i64>| {
        let right = |(case, shape): &(&Case, &[usize])| value(case) == Some(shape[at] as i64);
        shapes.iter().all(right)
    };
    let names: Vec<&str> = shapes[0].0.dims.iter().map(|(name, _)| *name).collect();
    let found = |name: &&&str| fits(&|case| case.size(name));
    // A size that is the same in all cases may equal the dimension by chance, so this step tries only sizes that vary.
    let varies = |name: &&&str| shapes.iter().any(|(case, _)| case.size(name) != shapes[0].0.size(name));
    if let Some(name) = names.iter().filter(varies).find(found) {
        return name.to_string();
    }
    let constant = shapes[0].1[at] as i64;
    if constant == 1 && fits(&|_| Some(constant)) {
        return constant.to_string();
    }
    // If exactly one size fits, returns it. If several sizes fit, tries other expressions first. Only upper-case sizes count:
    // lower-case sizes are bytes and flags.
    let extent = |name: &&&str| name.starts_with(char::is_uppercase);
    if let [only] = names.iter().filter(found).filter(extent).collect::<Vec<_>>()[..] {
        return only.to_string();
    }
    if shapes.len() > 1 && fits(&|_| Some(constant)) {
        return constant.to_string();
    }
    if let Some(name) = names.iter().find(found) {
        return name.to_string();
    }
    for factor in [2, 3, 4, 8] {
        for name in &names {
            if fits(&|case| Some(case.size(name)? * factor)) {
                return format!("{factor} {name}");
            }
            if fits(&|case| Some(case.size(name).filter(|size| size % factor == 0)? / factor)) {
                return format!("{name} / {factor}");
            }
        }
    }
    let lengths = || shapes.iter().map(|(_, shape)| shape[at]);
    let (least, most) = (lengths().min().unwrap_or(0), lengths().max().unwrap_or(0));
    if least == most {
        return least.to_string();
    }
    // From here on, the dimension differs between cases. Numbers of blocks (quotients) are tried only now, because a constant may
    // equal a quotient by chance. If several quotients fit, the cases cannot tell which is correct, so none is used.
    let names: Vec<&str> = names.into_iter().filter(|name| extent(&name)).collect();
    let blocks = BLOCKS.iter();
    let blocks = blocks.flat_map(|block| names.iter().map(move |name| (name, *block)));
    let fitting = blocks.filter(|(name, block)| {
        let fits = |(case, shape): &(&Case, &[usize])| {
            let quotient = |block: &i64| case.size(name).map(|size| (size + block - 1) / block);
            block.iter().any(|block| quotient(block) == Some(shape[at] as i64))
        };
        shapes.iter().all(fits)
    });
    // A pair of block lengths fits wherever one of its lengths fits, so prefer single lengths.
    let mut fitting: Vec<(&&str, &[i64])> = fitting.collect();
    if fitting.iter().any(|(_, block)| block.len() == 1) {
        fitting.retain(|(_, block)| block.len() == 1);
    }
    if let [(name, block)] = fitting[..] {
        let lengths: Vec<String> = block.iter().map(ToString::to_string).collect();
        return format!("ceil({name} / {})", lengths.join(" or "));
    }
    for (number, a) in names.iter().enumerate() {
        for b in &names[number..] {
            if fits(&|case| Some(case.size(a)? * case.size(b)?)) {
                return format!("{a} {b}");
            }
            let quotient = |case: &Case, [a, b]: [&str; 2]| {
                let [a, b] = [case.size(a)?, case.size(b)?];
                (b > 0).then(|| (a + b - 1) / b)
            };
            for pair in [[*a, *b], [*b, *a]] {
                if fits(&|case| quotient(case, pair)) {
                    return format!("ceil({} / {})", pair[0], pair[1]);
                }
            }
            for c in &names {
                if fits(&|case| Some(case.size(a)? * case.size(b)? * case.size(c)?)) {
                    return format!("{a} {b} {c}");
                }
            }
            for factor in [2, 4, 8] {
                if fits(&|case| Some(factor * case.size(a)? * case.size(b)?)) {
                    return format!("{factor} {a} {b}");
                }
            }
        }
        if fits(&|case| Some(case.size(a)? + 1)) {
            return format!("{a} + 1");
        }
    }
    format!("{least}{TO}{most}")
}
