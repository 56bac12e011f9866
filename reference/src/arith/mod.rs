//! Deterministic arithmetic: the same bits for any thread count, SIMD width and batch size.
//!
//! Every reduction has one definition ([`dot`]): element i goes to lane i mod L (L = 16 in f32, 8 in
//! f64) by IEEE fused multiply-add, where i is the absolute index on the reduced axis; the lanes are
//! added by a fixed tree. Threads split outputs, never a reduction. Elementary functions come from
//! the `libm` crate in f64 ([`math`]), never from the host's libm.
//!
//! [`Real`] is the trait over which ops are written once: `f64` is the oracle, `f32` the fast path,
//! [`Ball`] the oracle with its own error bound.

mod attend;
pub mod ball;
mod blocking;
pub mod dot;
pub mod emulate;
pub mod exp;
pub mod fenv;
pub mod isa;
mod kernel;
pub mod math;
pub mod matmul;
mod moments;
mod panels;
pub mod probe;
pub mod real;
mod rows;
mod simd;

pub use ball::Ball;
pub use real::Real;
pub(crate) use rows::stacked;
