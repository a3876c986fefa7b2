//! stub
use super::{CliError,Ui};
/// stub
#[derive(clap::Subcommand, Debug)]
pub enum SnapshotCommand { /// stub
 #[command(after_help = super::error::EXIT_CODES_HELP)] Save { /// f
  file: String } }
/// stub
/// # Errors
/// stub
pub fn run(_c: SnapshotCommand, _ui: &Ui) -> Result<(), CliError> { Ok(()) }
