//! Which task a command is about.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};

use super::error::CliError;
use crate::client::checked_task_id;
use crate::report::Selector;

/// A task by its ID, by its pane, or by both.
///
/// A pane that comes from the environment is what the seat of this process is called. It helps where no task is named,
/// and does not get in the way of one that is.
#[derive(Clone, Debug)]
pub(super) struct WhichTask {
    task: Option<String>,
    pane: Option<String>,
    pane_from_environment: bool,
}

#[derive(Args, Debug)]
struct Given {
    /// ID of the task
    #[arg(value_name = "TASK")]
    task: Option<String>,

    /// Pane that the task was given to, in place of TASK
    #[arg(long, env = "TASKLATCH_PANE", value_name = "PANE")]
    pane: Option<String>,
}

impl FromArgMatches for WhichTask {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Self::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, clap::Error> {
        let pane_from_environment = matches.value_source("pane") == Some(ValueSource::EnvVariable);
        let Given { task, pane } = Given::from_arg_matches_mut(matches)?;
        let pane = pane.filter(|pane| !(pane_from_environment && pane.is_empty()));
        Ok(Self {
            task,
            pane,
            pane_from_environment,
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
        if let Some(task_id) = &self.task {
            checked_task_id(task_id)?;
        }
        match (self.task.clone(), self.pane.clone()) {
            (Some(task_id), Some(pane_id)) if !self.pane_from_environment => {
                Ok(Selector::Both { task_id, pane_id })
            }
            (Some(task_id), _) => Ok(Selector::TaskId(task_id)),
            (None, Some(pane_id)) => Ok(Selector::PaneId(pane_id)),
            (None, None) => Err(CliError::Usage(
                "no task is named; give its ID, or --pane and the pane that it was given to"
                    .to_owned(),
            )),
        }
    }

    /// The task ID, where one is given.
    pub(super) fn task_id(&self) -> Result<Option<&str>, CliError> {
        Ok(self.task.as_deref().map(checked_task_id).transpose()?)
    }

    /// Whether a pane is given on the command line itself.
    pub(super) fn has_own_pane(&self) -> bool {
        self.pane.is_some() && !self.pane_from_environment
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn which(task: Option<&str>, pane: Option<&str>, pane_from_environment: bool) -> WhichTask {
        WhichTask {
            task: task.map(str::to_owned),
            pane: pane.map(str::to_owned),
            pane_from_environment,
        }
    }

    #[test]
    fn a_task_is_named_by_its_id_its_pane_or_both() {
        let (task_id, pane_id) = (|| "t-1".to_owned(), || "w1:p2".to_owned());
        let selector = |which: WhichTask| which.selector().unwrap();
        assert_eq!(
            selector(which(Some("t-1"), None, false)),
            Selector::TaskId(task_id())
        );
        assert_eq!(
            selector(which(None, Some("w1:p2"), false)),
            Selector::PaneId(pane_id())
        );
        assert_eq!(
            selector(which(Some("t-1"), Some("w1:p2"), false)),
            Selector::Both {
                task_id: task_id(),
                pane_id: pane_id()
            }
        );
        assert_eq!(
            which(None, None, false).selector().unwrap_err().exit_code(),
            2
        );
    }

    #[test]
    fn a_pane_of_the_environment_steps_back_behind_a_task() {
        let named = which(Some("t-1"), Some("w1:p2"), true);
        assert_eq!(
            named.selector().unwrap(),
            Selector::TaskId("t-1".to_owned())
        );
        let unnamed = which(None, Some("w1:p2"), true);
        assert_eq!(
            unnamed.selector().unwrap(),
            Selector::PaneId("w1:p2".to_owned())
        );
    }

    #[test]
    fn a_task_id_that_would_break_a_subject_is_a_wrong_command() {
        for bad in ["a.b", "*", ">", ""] {
            assert_eq!(
                which(Some(bad), None, false)
                    .selector()
                    .unwrap_err()
                    .exit_code(),
                2,
                "{bad:?}"
            );
        }
    }
}
