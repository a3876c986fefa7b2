//! Which task a command is about.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};

use super::error::CliError;
use crate::client::checked_task_id;
use crate::report::Selector;

/// A task by its ID, by its pane, or by both.
///
/// The environment says which task, or which pane, this process is at work on (`TASKLATCH_TASK`, `TASKLATCH_PANE`). That helps
/// where the command names none, and does not get in the way of one that it names.
#[derive(Clone, Debug, Default)]
pub(super) struct WhichTask {
    task: Option<String>,
    pane: Option<String>,
    environment_task: Option<String>,
    environment_pane: Option<String>,
}

#[derive(Args, Debug)]
struct Given {
    /// ID of the task
    #[arg(value_name = "TASK", env = TASK_VARIABLE)]
    task: Option<String>,

    /// Pane that the task was given to, in place of TASK
    #[arg(long, env = PANE_VARIABLE, value_name = "PANE")]
    pane: Option<String>,
}

const TASK_VARIABLE: &str = "TASKLATCH_TASK";
const PANE_VARIABLE: &str = "TASKLATCH_PANE";

impl FromArgMatches for WhichTask {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Self::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, clap::Error> {
        let is_from_environment = |id| matches.value_source(id) == Some(ValueSource::EnvVariable);
        let (task_is, pane_is) = (is_from_environment("task"), is_from_environment("pane"));
        let Given { task, pane } = Given::from_arg_matches_mut(matches)?;
        let split = |value: Option<String>, is_from_environment| match is_from_environment {
            true => (None, value.filter(|value| !value.is_empty())),
            false => (value, None),
        };
        let (task, environment_task) = split(task, task_is);
        let (pane, environment_pane) = split(pane, pane_is);
        Ok(Self {
            task,
            pane,
            environment_task,
            environment_pane,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for WhichTask {
    fn augment_args(command: Command) -> Command {
        Given::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Given::augment_args_for_update(command)
    }
}

impl WhichTask {
    /// The selector.
    pub(super) fn selector(&self) -> Result<Selector, CliError> {
        if let Some(task_id) = self.task_id()? {
            let task_id = task_id.to_owned();
            return Ok(match self.pane.clone() {
                Some(pane_id) => Selector::Both { task_id, pane_id },
                None => Selector::TaskId(task_id),
            });
        }
        let pane = self.pane.clone().or(self.environment_pane.clone());
        pane.map(Selector::PaneId).ok_or_else(|| {
            CliError::Usage(
                "no task is named; give its ID, or --pane and the pane that it was given to"
                    .to_owned(),
            )
        })
    }

    /// The task ID, where one is given or the environment says which task this is.
    pub(super) fn task_id(&self) -> Result<Option<&str>, CliError> {
        let task_id = match (&self.task, &self.pane) {
            (Some(task_id), _) => Some(task_id),
            (None, Some(_)) => None,
            (None, None) => match (&self.environment_task, &self.environment_pane) {
                (Some(_), Some(_)) => {
                    return Err(CliError::Usage(format!(
                        "{TASK_VARIABLE} and {PANE_VARIABLE} are both set, so that it is not known which task is meant; unset one \
                         of them, or name the task on the command line"
                    )));
                }
                (task_id, _) => task_id.as_ref(),
            },
        };
        Ok(task_id
            .map(|task_id| checked_task_id(task_id))
            .transpose()?)
    }

    /// Whether a pane is given on the command line itself.
    pub(super) fn has_own_pane(&self) -> bool {
        self.pane.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the command line says, and then the environment: task and pane.
    fn selector(
        line: [Option<&str>; 2],
        environment: [Option<&str>; 2],
    ) -> Result<Selector, CliError> {
        let [task, pane] = line.map(|text| text.map(str::to_owned));
        let [environment_task, environment_pane] = environment.map(|text| text.map(str::to_owned));
        let which = WhichTask {
            task,
            pane,
            environment_task,
            environment_pane,
        };
        which.selector()
    }

    fn task(id: &str) -> Selector {
        Selector::TaskId(id.to_owned())
    }

    fn pane(id: &str) -> Selector {
        Selector::PaneId(id.to_owned())
    }

    #[test]
    fn a_task_is_named_by_its_id_its_pane_or_both() {
        let none = [None, None];
        assert_eq!(selector([Some("t"), None], none).unwrap(), task("t"));
        assert_eq!(selector([None, Some("p")], none).unwrap(), pane("p"));
        let both = Selector::Both {
            task_id: "t".to_owned(),
            pane_id: "p".to_owned(),
        };
        assert_eq!(selector([Some("t"), Some("p")], none).unwrap(), both);
        assert_eq!(selector(none, none).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn the_environment_names_a_task_or_a_pane_only_where_the_command_names_none() {
        let both = [Some("env"), Some("env-pane")];
        assert_eq!(selector([Some("t"), None], both).unwrap(), task("t"));
        assert_eq!(selector([None, Some("p")], both).unwrap(), pane("p"));
        let none = [None, None];
        assert_eq!(selector(none, [Some("env"), None]).unwrap(), task("env"));
        assert_eq!(selector(none, [None, Some("p")]).unwrap(), pane("p"));
        let error = selector(none, both).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("are both set"), "{error}");
    }

    #[test]
    fn a_task_id_that_would_break_a_subject_is_a_wrong_command() {
        for bad in ["a.b", "*", ">", ""] {
            let error = selector([Some(bad), None], [None, None]).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{bad:?}");
        }
    }
}
