//! Every op against a second implementation, written here from the formula in plain f64 loops, and
//! the relations that hold whatever the values are.

#[path = "ops/attention.rs"]
mod attention;
#[path = "ops/composite.rs"]
mod composite;
#[path = "ops/elementwise.rs"]
mod elementwise;
#[path = "ops/ensemble.rs"]
mod ensemble;
#[path = "ops/exhaustive.rs"]
mod exhaustive;
#[path = "ops/exhaustive_int4.rs"]
mod exhaustive_int4;
#[path = "ops/faults.rs"]
mod faults;
#[path = "ops/formats.rs"]
mod formats;
#[path = "ops/gptq.rs"]
mod gptq;
#[path = "ops/harness.rs"]
mod harness;
#[path = "ops/matmul.rs"]
mod matmul;
#[path = "ops/metamorphic.rs"]
mod metamorphic;
#[path = "ops/moe.rs"]
mod moe;
#[path = "ops/naive.rs"]
mod naive;
#[path = "ops/parallel.rs"]
mod parallel;
#[path = "ops/plain_f32.rs"]
mod plain_f32;
#[path = "ops/rms_norm.rs"]
mod rms_norm;
#[path = "ops/rope.rs"]
mod rope;
#[path = "ops/selection.rs"]
mod selection;
#[path = "ops/softmax.rs"]
mod softmax;
