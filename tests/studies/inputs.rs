//! Drawn inputs of recurrences.

use ulplab::experiment::Source;
use ulplab::studies::recurrence::inputs::{Inputs, Piece};
use ulplab::studies::recurrence::{Attention, Gate, Operation, Poles};

const ATTENTION: fn(Attention, Gate) -> Operation = |op, gate| Operation::LinearAttention {
    op,
    gate,
    state: [6, 10],
};

fn pieces(from: Operation, lengths: &[usize]) -> Vec<Piece<f32>> {
    let source = Source {
        name: "source".into(),
        from,
    };
    let mut inputs = Inputs::new(3, 0, &source, "draw-1");
    lengths.iter().map(|&steps| inputs.next(steps)).collect()
}

/// Numbers of each kind, those of one step after those of the other.
fn numbers(pieces: &[Piece<f32>]) -> Vec<Vec<f32>> {
    let mut all = vec![Vec::new(); 5];
    for piece in pieces {
        let mut add = |at: usize, data: &[f32]| all[at].extend_from_slice(data);
        match piece {
            Piece::Attention { q, k, v, decay, beta } => {
                let each = [Some(q), Some(k), Some(v), Some(decay), beta.as_ref()];
                let each = each.into_iter().enumerate();
                each.for_each(|(at, x)| add(at, x.map_or(&[], |x| &x.data)));
            }
            Piece::Ssm { u, .. } => {
                let steps = 0..u.cols();
                steps.for_each(|step| (0..u.rows()).for_each(|head| add(0, &u.row(head)[step..=step])));
            }
        }
    }
    all
}

#[test]
fn numbers_do_not_depend_on_the_pieces() {
    let poles = Poles::Uniform(0.9);
    for from in [
        ATTENTION(Attention::Gdn, Gate::Mean(-0.05)),
        ATTENTION(Attention::Kda, Gate::Bound(-5.0)),
        Operation::DiagonalSsm { poles, states: 4 },
    ] {
        let whole = numbers(&pieces(from.clone(), &[17]));
        assert_eq!(whole, numbers(&pieces(from, &[1, 5, 11])));
        assert!(whole[0].len() >= 3 * 17);
    }
}

#[test]
fn gates_and_poles_are_where_they_should_be() {
    let decays = |gate| numbers(&pieces(ATTENTION(Attention::Kda, gate), &[2000])).swap_remove(3);
    let mean = |x: &[f32]| x.iter().map(|&x| f64::from(x)).sum::<f64>() / x.len() as f64;
    assert!(decays(Gate::None).iter().all(|&g| g == 0.0));
    // 36,000 numbers: the mean is off by a two-hundredth.
    let exponential = decays(Gate::Mean(-0.05));
    assert!((mean(&exponential) / -0.05 - 1.0).abs() < 0.03 && exponential.iter().all(|&g| g <= 0.0));
    let bounded = decays(Gate::Bound(-5.0));
    assert!((mean(&bounded) + 2.5).abs() < 0.05 && bounded.iter().all(|&g| (-5.0..0.0).contains(&g)));

    let poles = |poles| {
        let from = Operation::DiagonalSsm { poles, states: 1000 };
        match pieces(from, &[1]).swap_remove(0) {
            Piece::Ssm {
                parameters: [a, ..], ..
            } => a.data,
            Piece::Attention { .. } => Vec::new(),
        }
    };
    let near = poles(Poles::BelowOne([1e-3, 1e-1]));
    assert!(near.len() == 3000 && near.iter().all(|a| (0.8999..=0.9991).contains(a)));
    // Half of them below the middle of the logarithms.
    let half = near.iter().filter(|&&a| a > 0.99).count();
    assert!((1350..1650).contains(&half), "{half}");
    assert!(poles(Poles::Uniform(0.95)).iter().all(|a| (0.0..0.95).contains(a)));
    let normal = poles(Poles::Normal(0.125));
    assert!((mean(&normal.iter().map(|a| a * a).collect::<Vec<_>>()) * 64.0 - 1.0).abs() < 0.15);
}
