//! The binary: [`tasklatch::cli`] and nothing else.

/// Much is allocated by one thread and freed by another here, which glibc's allocator makes the threads wait for.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    tasklatch::cli::main()
}
