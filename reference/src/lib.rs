//! CPU reference of every transformer op and of the full Qwen forward.
//!
//! This crate says what is right and knows nothing of devices or of judging. Its parts:
//!
//! - [`tensor`], [`dtype`]: stored tensors and the one rounding function;
//! - [`arith`]: deterministic arithmetic (the same bits on every machine) and [`arith::Ball`], the
//!   oracle that carries its own error bound;
//! - [`policy`]: the accumulator and the transforms at named points that make up a rounding convention;
//! - [`ops`]: the ops, each with its params, knobs (legitimate conventions) and faults;
//! - [`case`](mod@case): concrete inputs of an op as a safetensors blob;
//! - [`checkpoint`]: safetensors shards, config.json, tokenizer;
//! - [`qwen`]: the Qwen2 and Qwen3 forward as a plan of ops with a probe at each;
//! - [`trace`]: what probes recorded;
//! - [`machine`]: threads and memory of a program that computes.

pub mod arith;
pub mod case;
pub mod checkpoint;
pub mod dtype;
pub mod error;
pub mod machine;
pub mod ops;
pub mod policy;
pub mod qwen;
pub mod tensor;
pub mod trace;

pub use case::Case;
pub use dtype::{Dtype, Mode, Rounding};
pub use error::{Error, Result};
pub use policy::Policy;
pub use tensor::Tensor;
