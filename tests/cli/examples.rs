//! The help: its groups of commands, and its examples.

use ulplab::cli::{EXAMPLES, command};

/// Calls `see` with every command below `command`, and its name.
fn each(command: &clap::Command, before: &str, see: &mut impl FnMut(&str, &clap::Command)) {
    for inner in command.get_subcommands() {
        let name = format!("{before}{}", inner.get_name());
        see(&name, inner);
        each(inner, &format!("{name} "), see);
    }
}

#[test]
fn every_command_has_examples_that_parse() {
    let mut missing = Vec::new();
    each(&command(), "", &mut |name, command| {
        let has = command
            .get_after_help()
            .is_some_and(|help| help.to_string().contains(name));
        if !has {
            missing.push(name.to_string());
        }
    });
    assert_eq!(missing, Vec::<String>::new(), "commands without an example");
    for example in EXAMPLES.lines() {
        let typed = example.split(" > ").next().unwrap_or_default().replace('\'', "");
        if let Err(error) = command().try_get_matches_from(typed.split_whitespace()) {
            panic!("{example}: {error}");
        }
    }
}

#[test]
fn the_help_lists_every_command_once_in_its_group() {
    let help = command().render_help().to_string();
    let headings: Vec<&str> = help
        .lines()
        .filter(|line| line.ends_with(':') && !line.starts_with(' '))
        .collect();
    assert_eq!(
        headings,
        ["Run:", "Files:", "Kernels:", "More:", "Options:", "Exit codes:"],
        "{help}"
    );
    for command in command().get_subcommands() {
        let name = command.get_name();
        let lines = help.lines().filter(|line| line.split_whitespace().next() == Some(name));
        let about = command.get_about().unwrap().to_string();
        assert_eq!(lines.collect::<Vec<_>>(), [format!("  {name:12}{about}")], "{help}");
    }
}
