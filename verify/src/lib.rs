//! Judges kernels and recorded traces against the reference, and names faults.
//!
//! - [`families`]: seeded generators of cases;
//! - [`judge`]: acceptance element by element, the search for the convention or the fault;
//! - [`suite`]: the kernels' check; [`mutants`] and [`power`]: what it catches; [`diff`]: a trace against the reference,
//!   op by op; [`forward`]: the same by layer outputs or logits alone;
//! - [`dispatch`]: under which condition on the sizes a kernel is wrong;
//! - [`relations`]: what two outputs of one subject must have to do with each other;
//! - [`ledger`]: which build of which kernel passed what, where, and the gate that reads it;
//! - [`doctor`]: what on a machine would mislead a service;
//! - [`audit`]: a checkpoint's files, config and text boundary, without running it;
//! - [`server`]: a running server probed from outside;
//! - [`bisect`]: every suspect of a wrong service with its experiment, and the environment switches of engines;
//! - [`synthetic`]: checkpoints of released shapes, made from a seed;
//! - [`template`]: a prompt compared with a captured one or a server's, over [`http`];
//! - [`finding`]: stable codes; [`variants`]: the catalogue; [`report`]: text, JSON, HTML; [`cli`]: the command line.

pub mod audit;
pub mod bisect;
pub mod cli;
pub mod diff;
pub mod dispatch;
pub mod doctor;
pub mod families;
pub mod finding;
pub mod forward;
pub mod http;
pub mod judge;
pub mod ledger;
mod minimum;
pub mod mutants;
pub mod power;
pub mod relations;
pub mod replay;
pub mod report;
pub mod server;
pub mod subject;
pub mod suite;
pub mod synthetic;
pub mod template;
pub mod variants;
