//! Builds the emulator's runtime and, under feature `hip`, the kernels for the device.

#[cfg(feature = "hip")]
#[path = "build/device.rs"]
mod device;

fn main() {
    println!("cargo:rerun-if-changed=emu/runtime");
    println!("cargo:rerun-if-changed=emu/include/assay_emu/abi.h");
    let sources = [
        "checks",
        "fiber",
        "findings",
        "matrix",
        "scheduler",
        "session",
        "signals",
        "wave",
        "worker",
    ];
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(2) // also in debug builds: every kernel runs on it
        .warnings(true)
        .include("emu/include")
        .files(sources.map(|name| format!("emu/runtime/{name}.cpp")))
        .compile("assay_emu");

    #[cfg(feature = "hip")]
    device::build();
}
