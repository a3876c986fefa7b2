//! The binary: [`tasklatch::cli`] and nothing else.

fn main() -> std::process::ExitCode {
    tasklatch::cli::main()
}
