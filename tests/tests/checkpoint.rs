//! What a checkpoint must be: every error that reading one can give, and what is accepted.

#[path = "checkpoint/chat.rs"]
mod chat;
#[path = "checkpoint/config.rs"]
mod config;
#[path = "checkpoint/fuzz.rs"]
mod fuzz;
#[path = "checkpoint/golden.rs"]
mod golden;
#[path = "checkpoint/gptq.rs"]
mod gptq;
#[path = "checkpoint/index.rs"]
mod index;
#[path = "checkpoint/quant.rs"]
mod quant;
#[path = "checkpoint/released.rs"]
mod released;
#[path = "checkpoint/safetensors.rs"]
mod safetensors_file;
#[path = "checkpoint/support.rs"]
mod support;
#[path = "checkpoint/tokenizer.rs"]
mod tokenizer;
#[path = "checkpoint/weights.rs"]
mod weights;
