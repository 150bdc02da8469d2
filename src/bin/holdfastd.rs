//! The daemon: see [`holdfast::daemon`].

fn main() -> std::process::ExitCode {
    holdfast::daemon::main()
}
