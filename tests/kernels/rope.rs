use half::bf16;
use ulplab::ops::Inputs;

use super::{accepts_only, problems, stored, values, violations};

/// The outputs of a case, with `turn` of a pair, its cosine and its sine in the place of its two channels.
fn turned(
    case: &ulplab::ops::Case,
    problem: &ulplab::ops::Problem,
    turn: impl Fn([f32; 2], f32, f32) -> [f32; 2],
) -> Vec<u8> {
    let [t, h, d, r] = ["T", "H", "D", "R"].map(|dim| case.dim(dim));
    let [mut x, cos, sin] = ["x", "cos", "sin"].map(|name| values(problem, name));
    for token in 0..t {
        for head in 0..h {
            for pair in 0..r / 2 {
                let at = (token * h + head) * d + d - r + 2 * pair;
                let angle = token * (r / 2) + pair;
                [x[at], x[at + 1]] = turn([x[at], x[at + 1]], cos[angle], sin[angle]);
            }
        }
    }
    stored(case.key("dtype") == "bf16", &x)
}

fn forward([a, b]: [f32; 2], cos: f32, sin: f32) -> [f32; 2] {
    [a * cos - b * sin, b * cos + a * sin]
}

fn inverse([a, b]: [f32; 2], cos: f32, sin: f32) -> [f32; 2] {
    [a * cos + b * sin, b * cos - a * sin]
}

#[test]
fn rope_wants_pairs_turned() {
    for (case, problem) in &problems("rope") {
        let (right, wrong): (fn(_, _, _) -> _, fn(_, _, _) -> _) = match case.key("direction") {
            "forward" => (forward, inverse),
            _ => (inverse, forward),
        };
        let outputs = vec![("x", turned(case, problem, right))];
        if case.inputs == Inputs::Random {
            accepts_only(case, problem, &outputs);
        }
        assert_eq!(violations(problem, outputs), 0.0, "{}", case.name);
        assert!(
            violations(problem, vec![("x", turned(case, problem, wrong))]) > 0.0,
            "{}",
            case.name
        );
        let swapped = |pair, cos, sin| forward(pair, sin, cos);
        assert!(
            violations(problem, vec![("x", turned(case, problem, swapped))]) > 0.0,
            "{}",
            case.name
        );
    }
}

/// Which NaN arithmetic makes is not defined, but that it is one.
#[test]
fn rope_wants_nan_where_nan_is() {
    for (case, problem) in problems("rope").iter().filter(|(case, _)| case.inputs == Inputs::Edges) {
        let other = |pair, cos, sin| forward(pair, cos, sin).map(|x| if x.is_nan() { f32::NAN } else { x });
        let number = |pair, cos, sin| forward(pair, cos, sin).map(|x| if x.is_nan() { 0.0 } else { x });
        if case.key("direction") == "forward" {
            assert_eq!(
                violations(problem, vec![("x", turned(case, problem, other))]),
                0.0,
                "{}",
                case.name
            );
            assert!(
                violations(problem, vec![("x", turned(case, problem, number))]) > 0.0,
                "{}",
                case.name
            );
        }
    }
}

/// The first token is the last of a million, and its angles are f32 products.
#[test]
fn rope_reaches_a_million_positions() {
    let (case, problem) = &problems("rope")[0];
    let pairs = case.dim("R") / 2;
    let frequencies = reference::ops::rope::frequencies(case.dim("R"), 1e4, None);
    let [cos, sin] = ["cos", "sin"].map(|name| values(problem, name));
    for (pair, frequency) in frequencies.iter().enumerate() {
        let angle = f64::from(1_048_575_f32 * frequency);
        assert_eq!([cos[pair], sin[pair]], [angle.cos() as f32, angle.sin() as f32]);
    }
    assert!(cos.len() == case.dim("T") * pairs && cos[pairs] != cos[0]);
}

/// Wrong elements of a case if every pair is turned by a function.
fn wrong(name: &str, turn: impl Fn([f32; 2], f32, f32) -> [f32; 2]) -> f64 {
    let op = ulplab::ops::find("rope").unwrap();
    let case = ulplab::ops::case(op, name).unwrap();
    let problem = ulplab::ops::problem(op, &case).unwrap();
    violations(&problem, vec![("x", turned(&case, &problem, turn))])
}

#[test]
fn a_product_may_be_fused_with_the_sum_and_nothing_else_may_differ() {
    for name in [
        "f32.forward.all_channels",
        "bf16.forward.all_channels",
        "f32.forward.edges",
    ] {
        let fused = wrong(name, |[a, b], cos, sin| {
            [a.mul_add(cos, -(b * sin)), b.mul_add(cos, a * sin)]
        });
        let other = wrong(name, |[a, b], cos, sin| {
            [(-b).mul_add(sin, a * cos), a.mul_add(sin, b * cos)]
        });
        assert_eq!([fused, other], [0.0; 2], "{name}");
    }
    let name = "f32.forward.all_channels";
    let exact = |a: f32, b: f32, cos: f32, sin: f32| {
        let [a, b, cos, sin] = [a, b, cos, sin].map(f64::from);
        [(a * cos - b * sin) as f32, (b * cos + a * sin) as f32]
    };
    let beyond = wrong(name, |[a, b], cos, sin| {
        exact(a, b, cos, sin).map(|x| x * (1.0 + 2.0 * f32::EPSILON))
    });
    assert!(
        beyond > 5000.0,
        "{beyond} of 14,208 numbers are noticed to be two ulps off"
    );
    let round = |x: f32| bf16::from_f32(x).to_f32();
    let rounded = wrong(name, |[a, b], cos, sin| {
        [round(a * cos) - round(b * sin), round(b * cos) + round(a * sin)]
    });
    assert!(rounded > 13_000.0, "{rounded}");
}
