//! Runs as commands.

use ulplab::run::invocation::Invocation;

#[test]
fn a_run_of_kernels_is_run_again_by_their_own_command() {
    let sweep = Invocation {
        experiment: "k.toml".into(),
        only: vec!["rope.*/**".into()],
        ..Invocation::default()
    };
    let kernels = Invocation {
        kernels: true,
        ..sweep.clone()
    };
    let timed = Invocation {
        timed: true,
        fast_only: true,
        peers: Some("p.json".into()),
        ..kernels.clone()
    };
    let planted = Invocation {
        mutant: Some("rope.halves".into()),
        ..kernels.clone()
    };
    for (invocation, command) in [
        (sweep, "ulplab sweep k.toml --only 'rope.*/**' --seed 3"),
        (kernels, "ulplab kernels check k.toml --only 'rope.*/**' --seed 3"),
        (
            timed,
            "ulplab kernels time k.toml --only 'rope.*/**' --peers p.json --seed 3 --fast-only",
        ),
        (
            planted,
            "ulplab kernels mutants rope.halves k.toml --only 'rope.*/**' --seed 3",
        ),
    ] {
        assert_eq!(invocation.command(3), command);
    }
}
