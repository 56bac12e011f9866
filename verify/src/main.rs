//! The command line.

fn main() -> std::process::ExitCode {
    assay_verify::cli::main()
}
