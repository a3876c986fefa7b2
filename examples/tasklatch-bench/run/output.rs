//! The results as files.

use std::path::Path;

use serde::Serialize;

use super::results::{About, Results};
use super::tables::{Grid, conditions};
use super::targets::Target;
use crate::failure::{During, Failure, Result};
use crate::figures::grouped;

/// Between these lines of a page stands what a run has measured.
const BEGIN: &str = "<!-- bench:begin -->";
const END: &str = "<!-- bench:end -->";

/// Writes everything as JSON: each round, and each target.
///
/// # Errors
/// If the file cannot be written.
pub fn json(file: &Path, about: &About, results: &Results, targets: &[Target]) -> Result<()> {
    #[derive(Serialize)]
    struct All<'a> {
        about: &'a About,
        targets: &'a [Target],
        #[serde(flatten)]
        results: &'a Results,
    }
    let all = All {
        about,
        targets,
        results,
    };
    let mut text = serde_json::to_string_pretty(&all).during("write the results as JSON")?;
    text.push('\n');
    write(file, &text)
}

/// The tables as Markdown, with what they were measured with.
pub fn markdown(about: &About, results: &Results, grids: &[Grid]) -> String {
    let machine = &about.machine;
    let mut text = format!(
        "Measured on {} with `{}` (tasklatch {}, {}), in {} minutes, each figure {} times for {} s, on a machine with {} cores \
         ({}), {} MiB of memory and Linux {}. {}\n",
        about.date,
        about.command,
        about.tasklatch,
        about.nats_server,
        (about.seconds / 60.0).ceil(),
        about.rounds,
        about.window,
        machine.cores,
        machine.processor,
        grouped(machine.memory_mib as f64),
        machine.kernel,
        conditions(results),
    );
    for grid in grids {
        text.push('\n');
        text.push_str(&grid.to_markdown());
    }
    text
}

/// A plot on a page, if it is in the folder of the page.
pub fn picture(page: &Path, plot: &Path) -> Option<String> {
    let name = plot.file_name()?.to_str()?;
    (page.parent() == plot.parent())
        .then(|| format!("\n![Reports in a second against requests in flight]({name})\n"))
}

/// Puts the tables into a page, between its marks.
///
/// # Errors
/// If the page has no marks, or cannot be written.
pub fn fill_in(page: &Path, tables: &str) -> Result<()> {
    let text = std::fs::read_to_string(page).during(format_args!("read {}", page.display()))?;
    let filled = filled(&text, tables).ok_or_else(|| {
        Failure::new(format!(
            "{} has no place for tables: it needs a line {BEGIN} and, after it, a line {END}",
            page.display()
        ))
    })?;
    write(page, &filled)
}

fn filled(text: &str, tables: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{tables}{END}{after}"))
}

/// Writes a file, and makes its folder if it is not there.
///
/// # Errors
/// If it cannot be written.
pub fn write(file: &Path, text: &str) -> Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).during(format_args!("make {}", folder.display()))?;
    }
    std::fs::write(file, text).during(format_args!("write {}", file.display()))?;
    eprintln!("wrote {}", file.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_filled_between_its_marks_and_can_be_filled_again() {
        let page = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        let once = filled(&page, "new\n").unwrap();
        assert_eq!(once, format!("a\n{BEGIN}\nnew\n{END}\nb\n"));
        assert_eq!(filled(&once, "new\n").unwrap(), once);
        let picture = picture(Path::new("docs/a.md"), Path::new("docs/b.svg")).unwrap();
        assert!(picture.ends_with("(b.svg)\n"));
        assert_eq!(
            super::picture(Path::new("docs/a.md"), Path::new("b.svg")),
            None
        );
        assert_eq!(filled("without marks", "new"), None);
        assert_eq!(filled(&format!("{END} {BEGIN}"), "new"), None);
    }
}
