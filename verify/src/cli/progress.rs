//! Progress on standard error, only when a person is watching.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::judge;

/// A bar of `steps`; hidden unless standard error is a terminal.
pub(super) fn bar(steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template("{msg:44} [{bar:30}] {pos}/{len} {elapsed}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Shows on `bar` how far the naming of a fault is.
pub(super) fn show_searches(bar: &ProgressBar) {
    let bar = bar.clone();
    judge::watch(move |s| {
        bar.set_message(format!("naming the fault: hypothesis {} of ~{}", s.tried, s.about));
    });
}
