//! Dimensions of buffers as expressions over the sizes of a case: found by what fits all the cases that were made.

use ulplab_core::ops::Case;

/// Dimension `at` of shapes in terms of sizes: a size, its half or a multiple of it, a product of two or three, or a number;
/// if none of these fits all cases, the dimension in the first case.
pub fn named(shapes: &[(&Case, &[usize])], at: usize) -> String {
    let fits = |value: &dyn Fn(&Case) -> Option<i64>| {
        let right = |(case, shape): &(&Case, &[usize])| value(case) == Some(shape[at] as i64);
        shapes.iter().all(right)
    };
    let size = |case: &Case, name: &str| case.dims.iter().find(|(dim, _)| *dim == name).map(|(_, size)| *size);
    let names: Vec<&str> = shapes[0].0.dims.iter().map(|(name, _)| *name).collect();
    let found = |name: &&&str| fits(&|case| size(case, name));
    // A size that is the same in all cases may be equal by chance.
    let varies = |name: &&&str| {
        shapes
            .iter()
            .any(|(case, _)| size(case, name) != size(shapes[0].0, name))
    };
    if let Some(name) = names.iter().filter(varies).find(found) {
        return name.to_string();
    }
    let constant = shapes[0].1[at] as i64;
    if constant == 1 && fits(&|_| Some(constant)) {
        return constant.to_string();
    }
    // If exactly one size fits, it is meant; if several do, it is unknown which. Small letters are bytes and flags.
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
            if fits(&|case| Some(size(case, name)? * factor)) {
                return format!("{factor} {name}");
            }
            if fits(&|case| {
                size(case, name)
                    .filter(|size| size % factor == 0)
                    .map(|size| size / factor)
            }) {
                return format!("{name} / {factor}");
            }
        }
    }
    for (number, a) in names.iter().enumerate() {
        for b in &names[number..] {
            if fits(&|case| Some(size(case, a)? * size(case, b)?)) {
                return format!("{a} {b}");
            }
            let quotient = |case: &Case, [a, b]: [&str; 2]| {
                let [a, b] = [size(case, a)?, size(case, b)?];
                (b > 0).then(|| (a + b - 1) / b)
            };
            for pair in [[*a, *b], [*b, *a]] {
                if fits(&|case| quotient(case, pair)) {
                    return format!("ceil({} / {})", pair[0], pair[1]);
                }
            }
            for c in &names {
                if fits(&|case| Some(size(case, a)? * size(case, b)? * size(case, c)?)) {
                    return format!("{a} {b} {c}");
                }
            }
            if let Some(factor) = [2, 4, 8]
                .iter()
                .find(|factor| fits(&|case| Some(*factor * size(case, a)? * size(case, b)?)))
            {
                return format!("{factor} {a} {b}");
            }
        }
        if fits(&|case| Some(size(case, a)? + 1)) {
            return format!("{a} + 1");
        }
    }
    let case = &shapes[0].0.name;
    format!("{constant} in {case}")
}
