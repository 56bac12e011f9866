//! `assay probe` judges a server from outside: recordings of real vLLM (golden/vllm), sound and damaged, and a server
//! of this test's own for what no vLLM does.

mod edits;
mod exchanges;
mod gptq;
mod recordings;
pub(crate) mod transport;

use assay_reference::Dtype;
use assay_reference::checkpoint::{ChatTemplates, Checkpoint, Tokenizer};
use assay_verify::server::exchange::Exchange;
use assay_verify::server::{Model, Report, judge};

/// The report on exchanges, for the model in a folder, served in `dtype` or the config's.
fn judged(dir: &std::path::Path, exchanges: &[Exchange], dtype: Option<Dtype>) -> Report {
    let checkpoint = Checkpoint::open(dir).expect("a checkpoint");
    let (tokenizer, templates) = (Tokenizer::open(dir).ok(), ChatTemplates::open(dir).ok());
    let model = Model {
        checkpoint: &checkpoint,
        tokenizer: tokenizer.as_ref(),
        templates: templates.as_ref(),
        dtype: dtype.unwrap_or(checkpoint.config().dtype),
        preset: None,
    };
    judge(&model, exchanges, &mut |_| {}).expect("a judgement")
}

fn codes(report: &Report) -> Vec<&'static str> {
    report.findings.iter().map(|f| f.code).collect()
}
