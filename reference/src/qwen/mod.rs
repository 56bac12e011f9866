//! The Qwen2, Qwen3 and Qwen3-MoE forward, as a plan of ops with a probe at each.
//!
//! - [`shard`]: how a model is split over ranks;
//! - [`plan`]: the list of op calls of a model: the one definition that running and diffing share;
//! - [`preset`]: named sets of rounding conventions;
//! - [`forward`]: runs a plan, with a KV cache;
//! - [`jitter`]: how far legitimate forwards lie apart;
//! - [`generate`](mod@generate): continuing a prompt;
//! - [`sample`]: choosing the next token;
//! - [`variant`]: what engines get wrong about a whole model.

pub mod forward;
pub mod generate;
pub mod jitter;
pub mod plan;
pub mod preset;
pub mod sample;
pub mod shard;
pub mod variant;

pub use forward::{Forward, Observer};
pub use generate::{Generation, Model, Options, continue_prompt, generate};
pub use plan::{Node, Plan, Share, Source, View};
pub use preset::Preset;
pub use sample::Sampling;
pub use variant::{ForwardFault, Wiring};
