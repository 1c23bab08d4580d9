use ulplab::ops::data::f32_bytes;

use super::{accepts_only, problems, values, violations};

/// y in f32, step by step.
fn scanned(u: &[f32], [a, b, c]: [&[f32]; 3], late: bool) -> Vec<f32> {
    let mut x = vec![0f32; a.len()];
    let step = |u: &f32| {
        let before = x.clone();
        for n in 0..a.len() {
            x[n] = a[n] * x[n] + b[n] * u;
        }
        let read = if late { &before } else { &x };
        c.iter().zip(read).map(|(c, x)| c * x).sum()
    };
    u.iter().map(step).collect()
}

#[test]
fn diagonal_ssm_wants_the_scan() {
    for (case, problem) in &problems("diagonal_ssm") {
        let [u, a, b, c] = ["u", "a", "b", "c"].map(|name| values(problem, name));
        let (steps, states) = (case.dim("S"), case.dim("N"));
        let y = |late, carried: usize| {
            let heads = u.chunks(steps).enumerate().flat_map(|(head, u)| {
                let of = [&a, &b, &c].map(|x| &x[head * states..][..states]);
                u.chunks(carried)
                    .flat_map(|u| scanned(u, of, late))
                    .collect::<Vec<f32>>()
            });
            vec![("y", f32_bytes(&heads.collect::<Vec<f32>>()))]
        };
        assert_eq!(violations(problem, y(false, steps)), 0.0, "{}", case.name);
        if case.name != "edges" && case.name != "wide" {
            accepts_only(case, problem, &y(false, steps));
        }
        assert!(violations(problem, y(true, steps)) > 0.0, "{}: late", case.name);
        assert!(violations(problem, y(false, 64)) > 0.0, "{}: not carried", case.name);
    }
}
