//! `tasklatch completions` and `tasklatch man`.

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;

use super::error::CliError;
use super::{Cli, Ui};

/// Options of `completions`.
#[derive(Args, Debug)]
pub(super) struct CompletionsOptions {
    /// For which shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Options of `man`.
#[derive(Args, Debug)]
pub(super) struct ManOptions {
    /// Of which verb; of the whole program if left out
    #[arg(value_name = "VERB")]
    verb: Vec<String>,
}

pub(super) fn completions(options: &CompletionsOptions, ui: &Ui) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Cli::command(), "tasklatch", &mut script);
    ui.print_bytes(&script)
}

pub(super) fn man(options: &ManOptions, ui: &Ui) -> Result<(), CliError> {
    ui.print_bytes(&man_page(&options.verb)?)
}

fn man_page(verb: &[String]) -> Result<Vec<u8>, CliError> {
    let mut command = Cli::command();
    // Building gives each verb its full name and the shared options.
    command.build();
    let mut found: &Command = &command;
    for word in verb {
        found = found.find_subcommand(word).ok_or_else(|| {
            CliError::Usage(format!(
                "there is no verb {:?}; `tasklatch help` lists them",
                verb.join(" ")
            ))
        })?;
    }
    let mut page = Vec::new();
    // clap_mangen leaves out the text of an option that is not in the short help.
    clap_mangen::Man::new(
        found
            .clone()
            .mut_args(|option| option.hide_short_help(false)),
    )
    .render(&mut page)
    .map_err(|error| CliError::Fault(format!("the manual page cannot be written: {error}")))?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(verb: &[&str]) -> Result<String, CliError> {
        let verb: Vec<String> = verb.iter().map(ToString::to_string).collect();
        man_page(&verb).map(|page| String::from_utf8(page).unwrap())
    }

    #[test]
    fn there_is_a_manual_page_for_the_program_and_each_verb() {
        assert!(page(&[]).unwrap().contains(r".TH tasklatch 1"));
        let create = page(&["task", "create"]).unwrap();
        assert!(create.contains(".TH tasklatch-task-create 1"), "{create}");
        assert!(create.contains("RFC 3339"), "{create}");
        assert!(create.contains("Credentials file"), "{create}");
        assert_eq!(page(&["dance"]).unwrap_err().exit_code(), 2);
    }
}
