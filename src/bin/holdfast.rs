//! The operator's command.

fn main() -> std::process::ExitCode {
    holdfast::cli::main()
}
