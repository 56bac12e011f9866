//! The promises of assay, end to end: one module a promise. They are one binary, which is linked once and
//! keeps every core busy.

mod audit;
mod bisect;
mod check_cli;
mod cli_bad_checkpoint;
mod cli_bad_input;
mod cli_reports;
mod coverage;
mod device_probe;
mod diff_golden;
mod engine;
mod exec;
mod faults_golden;
mod field_cases;
mod gptq_golden;
mod html_report;
mod judge_power;
mod ledger;
mod make_model;
mod many_threads;
mod mutants_blind;
mod own_traces;
mod parallel_cli;
mod presets_golden;
mod probe;
mod run_cli;
mod run_stream;
mod transcripts;
mod vendor;
mod vllm_golden;
