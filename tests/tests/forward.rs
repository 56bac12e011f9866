//! The whole forward: the same bits however a prompt is cut or threaded, and the same numbers as
//! independent implementations.

#[path = "forward/bitwise.rs"]
mod bitwise;
#[path = "forward/generation.rs"]
mod generation;
#[path = "forward/golden.rs"]
mod golden;
#[path = "forward/parallel.rs"]
mod parallel;
#[path = "forward/parallel_quantised.rs"]
mod parallel_quantised;
#[path = "forward/sampling.rs"]
mod sampling;
#[path = "forward/support.rs"]
mod support;
