//! Generated bindings to the HIP runtime.
#![allow(
    unsafe_code,
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::all,
    reason = "generated"
)]

include!(concat!(env!("OUT_DIR"), "/hip_runtime.rs"));
