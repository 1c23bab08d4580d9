//! Examples of the help.

use ulplab::cli::{EXAMPLES, command};

#[test]
fn every_command_has_examples_that_parse() {
    let command = command();
    let named: Vec<&str> = EXAMPLES.iter().map(|(name, _)| *name).collect();
    let of_kernels = command.find_subcommand("kernels").expect("there is `ulplab kernels`");
    let of_kernels = of_kernels
        .get_subcommands()
        .map(|inner| format!("kernels {}", inner.get_name()));
    let all = command.get_subcommands().map(|inner| inner.get_name().to_string());
    let missing = all
        .chain(of_kernels)
        .filter(|name| !named.contains(&&name[..]) && name != "doctor");
    assert_eq!(
        missing.collect::<Vec<_>>(),
        Vec::<String>::new(),
        "commands without an example"
    );
    for example in EXAMPLES.iter().flat_map(|(_, examples)| *examples) {
        let typed = example.split(" > ").next().unwrap_or_default().replace('\'', "");
        if let Err(error) = command.clone().try_get_matches_from(typed.split_whitespace()) {
            panic!("{example}: {error}");
        }
    }
}
