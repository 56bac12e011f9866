//! The command line.

fn main() {
    assay_verify::cli::main();
}
