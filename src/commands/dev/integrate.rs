//! Files for shells and editors: completions, man pages, and the JSON Schema of experiment files.

use std::path::PathBuf;

use clap_complete::Shell;

use crate::json;
use crate::studies;
use ulplab_core::atomic::write_atomic;
use ulplab_core::error::{Error, Exit, Result};

/// Print completions for a shell.
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    pub shell: Shell,
}

/// Completions of `command`.
pub fn completions(args: &CompletionsArgs, mut command: clap::Command) -> Result<Exit> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "ulplab", &mut text);
    out!("{}", String::from_utf8_lossy(&text));
    Ok(Exit::Pass)
}

/// Write a man page for each command: ulplab.1, ulplab-sweep.1 and so on.
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Folder for the pages; created if missing.
    pub folder: PathBuf,
}

/// Pages of `command` and the commands in it.
pub fn man(args: &ManArgs, command: clap::Command) -> Result<Exit> {
    std::fs::create_dir_all(&args.folder).map_err(Error::io(&args.folder, "create"))?;
    let mut pages = vec![command.disable_help_subcommand(true).flatten_help(false)];
    while let Some(mut command) = pages.pop() {
        command.build();
        let name = command.get_display_name().unwrap_or(command.get_name()).to_string();
        let inner = command.get_subcommands().filter(|inner| inner.get_name() != "help");
        pages.extend(inner.map(|inner| {
            let name = format!("{name}-{}", inner.get_name());
            inner.clone().display_name(name)
        }));
        let page = args.folder.join(format!("{name}.1"));
        write_atomic(&page, |out| clap_mangen::Man::new(command.clone()).render(out))?;
        outln!("{}", page.display());
    }
    Ok(Exit::Pass)
}

/// Print the JSON Schema of experiment files; editors use it to complete and check them.
#[derive(Debug, clap::Args)]
pub struct SchemaArgs {}

pub fn schema(_: &SchemaArgs) -> Result<Exit> {
    json::print(&studies::schema())?;
    Ok(Exit::Pass)
}
