//! `assay kernels`.

use std::time::Instant;

use assay_hip::code_object::{self, Resources};
use clap::Args;
use rayon::prelude::*;
use serde::Serialize;

use super::{FINDINGS, JsonArgs, PASS, check};
use crate::report::{Envelope, Table, write_json};

/// What to compile.
#[derive(Debug, Args)]
pub(super) struct KernelsArgs {
    /// Targets, separated by commas; gfx928, gfx936 and gfx938 need the hipcc of Hygon's DTK
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "gfx906,gfx90a")]
    arch: Vec<String>,
    /// Only this kernel; may be repeated (see `assay list kernels`)
    #[arg(long, value_name = "NAME")]
    kernel: Vec<String>,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Serialize)]
struct Row {
    kernel: &'static str,
    #[serde(flatten)]
    resources: Resources,
    complaints: Vec<String>,
}

#[derive(Serialize)]
struct Body {
    functions: Vec<Row>,
}

pub(super) fn run(args: &KernelsArgs) -> anyhow::Result<u8> {
    let start = Instant::now();
    args.json.check()?;
    let kernels = check::selected(&args.kernel)?;
    let jobs: Vec<_> =
        kernels.iter().flat_map(|k| args.arch.iter().map(move |arch| (*k, arch))).collect();
    let compiled: Vec<Vec<Row>> = jobs
        .par_iter()
        .map(|(kernel, arch)| {
            let row = |resources: Resources| {
                let complaints = resources.complaints();
                Row { kernel: kernel.name, resources, complaints }
            };
            let all = code_object::resources(kernel.source, arch)?;
            Ok(all.into_iter().map(row).collect())
        })
        .collect::<Result<_, assay_hip::Error>>()?;
    let rows: Vec<Row> = compiled.into_iter().flatten().collect();
    let mut table = Table::new(&[
        "kernel",
        "function",
        "arch",
        "VGPRs",
        "AGPRs",
        "SGPRs",
        "LDS",
        "scratch",
        "spills",
        "waves a SIMD",
        "",
    ]);
    for Row { kernel, resources: r, complaints } in &rows {
        table.row([
            (*kernel).to_string(),
            r.function.clone(),
            r.arch.clone(),
            r.vgprs.to_string(),
            r.agprs.to_string(),
            r.sgprs.to_string(),
            r.lds.to_string(),
            r.scratch.to_string(),
            r.spills.to_string(),
            r.occupancy.map_or("?".into(), |n| n.to_string()),
            complaints.join(", "),
        ]);
    }
    let good = rows.iter().all(|r| r.complaints.is_empty());
    args.json.say(&table.render());
    if let Some(path) = &args.json.json {
        let result = if good { "pass" } else { "findings" };
        let seconds = start.elapsed().as_secs_f64();
        let body = Body { functions: rows };
        write_json(path, &Envelope::new("kernels", result, None, seconds, body))?;
    }
    Ok(if good { PASS } else { FINDINGS })
}
