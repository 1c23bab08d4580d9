//! Sums in many orders are within their bounds for terms of any kind: each of a kind, which has others (see [`patterns`]).

use ulplab_operations::expected::drift::Equal;
use ulplab_operations::expected::sum::Terms;

fn random(seed: &mut u64) -> f64 {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 11) as f64 / (1u64 << 53) as f64
}

/// About normal.
fn normal(seed: &mut u64) -> f64 {
    (0..12).map(|_| random(seed)).sum::<f64>() - 6.0
}

/// Terms in f32, and whether they are random or smooth. What else is of their kinds: other constants and periods, runs of equal terms,
/// one large term before small ones, products of these, images of few grey levels, masks, padding.
fn patterns(n: usize, seed: &mut u64) -> Vec<(String, Vec<f32>, bool)> {
    let mut all = Vec::new();
    let mut add = |name: &str, random: bool, of: &mut dyn FnMut(usize) -> f64| {
        all.push((
            name.to_string(),
            (0..n).map(|at| of(at) as f32).collect::<Vec<f32>>(),
            random,
        ));
    };
    let x = |at: usize| at as f64;
    for c in [0.1, 0.7, 1.0 / 3.0, 1.1, -0.3] {
        add(&format!("constant {c}"), false, &mut |_| c);
        add(&format!("1, then {c} e-8"), false, &mut |at| {
            if at == 0 { 1.0 } else { c * 1e-8 }
        });
    }
    for period in [2, 3, 5, 7, 16, 31, 64] {
        let values: Vec<f64> = (0..period).map(|_| random(seed)).collect();
        let signed: Vec<f64> = (0..period).map(|_| normal(seed)).collect();
        add(&format!("period {period}"), false, &mut |at| values[at % period]);
        add(&format!("signed period {period}"), false, &mut |at| signed[at % period]);
        add(&format!("{period} runs"), false, &mut |at| values[at * period / n]);
        add(&format!("{period} values"), false, &mut |_| {
            values[(random(seed) * period as f64) as usize]
        });
    }
    for offset in [0.0, 0.1, 0.24, 0.3, 0.49] {
        add(&format!("ramp + {offset}"), false, &mut |at| x(at) + offset);
        add(&format!("ramp/16 + {offset}"), false, &mut |at| x(at) / 16.0 + offset);
        add(&format!("modulo 10 + {offset}"), false, &mut |at| x(at % 10) + offset);
    }
    add("0 to 1", false, &mut |at| x(at) / (n - 1) as f64);
    add("-1 to 1", false, &mut |at| 2.0 * x(at) / (n - 1) as f64 - 1.0);
    add("1/x", false, &mut |at| 1.0 / (1.0 + x(at)));
    add("exponentials of 1/x", false, &mut |at| {
        (1.0 / (1.0 + x(at)) - 1.0).exp()
    });
    add("exponential", false, &mut |at| (-x(at) / n as f64).exp());
    add("one hot", false, &mut |at| if at == n / 2 { 0.3 } else { 0.0 });
    add("signs of 0.1", true, &mut |_| {
        if random(seed) < 0.5 { 0.1 } else { -0.1 }
    });
    add("powers of two", false, &mut |_| {
        0.1 * 0.5f64.powi((9.0 * random(seed)) as i32)
    });
    add("sine", true, &mut |at| (0.01 * x(at)).sin());
    add("normal", true, &mut |_| normal(seed));
    add("uniform", true, &mut |_| random(seed));
    add("far normal", true, &mut |_| 100.0 + normal(seed));
    let bf16 = |x: f64| half::bf16::from_f32(x as f32).to_f64();
    add("bf16", true, &mut |_| bf16(normal(seed)));
    add("products of bf16", true, &mut |_| {
        bf16(normal(seed)) * bf16(normal(seed))
    });
    add("squares of bf16", false, &mut |_| bf16(normal(seed)).powi(2));
    let code = |seed: &mut u64| [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][(8.0 * random(seed)) as usize];
    let signed = |seed: &mut u64| code(seed) * (random(seed) - 0.5).signum();
    add("products of E2M1", true, &mut |_| signed(seed) * signed(seed));
    add("scaled products of E2M1", true, &mut |_| {
        0.0123 * signed(seed) * signed(seed)
    });
    add("small integers", true, &mut |_| (255.0 * random(seed)).floor() - 127.0);
    all
}

/// Sums in f32 or in bf16, whose digits an f32 has, too: one by one, from either end, in an order that is drawn, in lanes, pairwise, split.
fn sums(terms: &[f32], round: fn(f32) -> f32, seed: &mut u64) -> Vec<(String, f64)> {
    let one_by_one = |terms: &mut dyn Iterator<Item = f32>| terms.fold(0f32, |sum, term| round(sum + term));
    let mut drawn = terms.to_vec();
    (1..drawn.len()).for_each(|at| drawn.swap(at, (random(seed) * (at + 1) as f64) as usize));
    let mut sums = vec![
        ("one by one".to_string(), one_by_one(&mut terms.iter().copied())),
        ("from the end".into(), one_by_one(&mut terms.iter().rev().copied())),
        ("drawn".into(), one_by_one(&mut drawn.into_iter())),
    ];
    for lanes in [8, 16, 32, 128] {
        let lane = |lane: usize| one_by_one(&mut terms[lane.min(terms.len())..].iter().step_by(lanes).copied());
        sums.push((format!("{lanes} lanes"), one_by_one(&mut (0..lanes).map(lane))));
    }
    for parts in [2, 4, 7] {
        let part = |part: &[f32]| one_by_one(&mut part.iter().copied());
        let parts = terms.len().div_ceil(parts);
        sums.push((
            format!("parts of {parts}"),
            one_by_one(&mut terms.chunks(parts).map(part)),
        ));
    }
    let mut pairs = terms.to_vec();
    while pairs.len() > 1 {
        pairs = pairs.chunks(2).map(|pair| round(pair.iter().sum())).collect();
    }
    sums.push(("pairwise".into(), pairs[0]));
    sums.into_iter().map(|(order, sum)| (order, sum.into())).collect()
}

/// The bound of independent roundings, as that of random terms stays.
fn independent(terms: &Terms) -> f64 {
    let likely = reference::LAMBDA * (terms.count * (terms.sum * terms.sum + terms.squares)).sqrt();
    terms.u * likely.min(terms.count * terms.magnitudes) + terms.count * f64::from(f32::MIN_POSITIVE)
}

fn outside(sizes: &[usize], u: f64, round: fn(f32) -> f32) {
    let (seed, mut found) = (&mut 7, Vec::new());
    for &n in sizes {
        for (name, terms, random) in patterns(n, seed) {
            // What is given is in the type that is added in.
            let terms: Vec<f32> = terms.into_iter().map(round).collect();
            let of = Terms::of(terms.iter().map(|term| f64::from(*term)), u);
            for (order, sum) in sums(&terms, round, seed) {
                let ratio = (sum - of.sum).abs() / of.error();
                if ratio > 1.0 {
                    found.push(format!("{n} terms, {name}, {order}: {ratio}"));
                }
            }
            let wider = of.error() / independent(&of);
            if random && u < 1e-6 && wider > 1.05 {
                found.push(format!("{n} terms, {name}: the bound is {wider} times as wide"));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn sums_in_f32_are_within_their_bounds() {
    outside(&[100, 1000, 4096, 16_384, 65_536, 1_000_000], 2f64.powi(-24), |x| x);
}

#[test]
fn sums_in_bf16_are_within_their_bounds() {
    outside(&[100, 1000, 4096], 2f64.powi(-8), |x| half::bf16::from_f32(x).to_f32());
}

#[test]
fn sums_in_f16_are_within_their_bounds() {
    // Numbers beyond 65,504 are infinite, which bounds allow for elsewhere.
    let round = |x: f32| {
        let spacing = 2f32.powi(-11) * f32::from_bits(x.to_bits() & 0x7f80_0000);
        if spacing > 0.0 {
            (x / spacing).round_ties_even() * spacing
        } else {
            0.0
        }
    };
    outside(&[100, 1000, 4096], 2f64.powi(-11), round);
}

#[test]
fn products_are_looked_at_as_terms_are() {
    let seed = &mut 3;
    for (name, terms, _) in patterns(5000, seed) {
        let terms: Vec<f64> = terms.into_iter().map(f64::from).collect();
        let [u, one] = [2f64.powi(-24), 1.0];
        let (of, dot) = (
            Terms::of(terms.iter().copied(), u),
            Terms::dot(&terms, &vec![one; terms.len()], u),
        );
        assert!(
            (of.error() / dot.error() - 1.0).abs() < 0.1,
            "{name}: {of:?} and {dot:?}"
        );
        assert_eq!(of.multiplicity, dot.multiplicity, "{name}");
    }
}

#[test]
fn equal_numbers_have_equal_errors() {
    let (distinct, few) = ((0..100).map(f64::from), (0..100).map(|at| f64::from(at % 2)));
    let errors = || (0..100).map(|_| 1.0);
    assert_eq!(Equal::of(distinct).together(errors()), 80.0);
    assert_eq!(Equal::of(few).together(errors()), 100.0);
    let (sum, squares) = Equal::of((0..100).map(|at| f64::from(at % 50))).sums(errors());
    assert_eq!((sum, squares), (100.0, 50.0 * 4.0));
}
