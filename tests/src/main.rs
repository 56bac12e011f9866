//! `assay` as the tests of this package run it: a binary of another package is not made by `cargo test`, and
//! making it apart would compile everything again with other features.

fn main() -> std::process::ExitCode {
    assay_verify::cli::main()
}
