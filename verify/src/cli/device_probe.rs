//! `assay device-probe`.

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::bail;
use assay_hip::emu::{Compiler, Mode};
use assay_hip::probe::{PROBES, Probe, Reading, gemm};
use assay_hip::vendor::{self, Subject};
use assay_hip::{Backend, Error, Identity, Kernel, LaunchOptions, LaunchReport, Matrix};
use assay_reference::{Case, Dtype, Tensor};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::json;

use super::{FINDINGS, JsonArgs, PASS, SKIPPED};
use crate::finding::Finding;
use crate::ledger::{self, Entry};
use crate::report::{Envelope, Table, write_json};

/// What to measure, and where.
#[derive(Debug, Args)]
#[command(after_help = "\
Probes: vector, convert, canary, matrix_layout, sgemm; each kernel that multiplies matrices (gemm_bf16, gemv_bf16,
gemm_bf16_splitk); with --backend hip those of rocBLAS and hipBLASLt too (rocblas.sgemm, ...).

What the emulator gives says nothing of a device. Keep a device's readings in the ledger, and compare
after an upgrade with `assay gate --diff OLD NEW`. The words of the table: docs/dcu.md.")]
pub(super) struct ProbeArgs {
    /// Where the probes run
    #[arg(long, value_enum, default_value_t = Where::Emu)]
    backend: Where,
    /// Only this probe; may be repeated
    #[arg(long, value_name = "NAME")]
    probe: Vec<String>,
    /// Append an entry for each probe to this ledger, as `probe.NAME` (docs/ledger.md)
    #[arg(long, value_name = "FILE")]
    ledger: Option<PathBuf>,
    #[command(flatten)]
    json: JsonArgs,
}

/// What runs the probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Where {
    /// The embedded emulator
    Emu,
    /// A HIP device; needs a build with feature `hip`
    Hip,
}

#[derive(Serialize)]
struct Body {
    probes: Vec<Measured>,
}

/// What became of one probe.
#[derive(Serialize)]
struct Measured {
    probe: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<String>,
    readings: Vec<Reading>,
    findings: Vec<Finding>,
    #[serde(skip)]
    identity: Option<Identity>,
}

/// Something that can be measured.
enum What {
    Probe(&'static Probe, Matrix),
    Product(&'static Kernel, Matrix),
    Vendor(&'static Subject),
}

impl What {
    fn name(&self) -> &'static str {
        match self {
            What::Probe(probe, _) => probe.name,
            What::Product(kernel, _) => kernel.name,
            What::Vendor(subject) => subject.kernel.name,
        }
    }

    /// With the build: `gemm_bf16 [mmac]`.
    fn label(&self) -> String {
        match self {
            What::Probe(_, matrix) | What::Product(_, matrix) => matrix.label(self.name()),
            What::Vendor(_) => self.name().to_owned(),
        }
    }
}

fn everything(on: Where) -> Vec<What> {
    let products = assay_hip::kernels().iter().filter(|kernel| kernel.op == "matmul");
    let vendors = vendor::subjects().iter().filter(|_| on == Where::Hip);
    // On a device the architecture decides which build there is.
    let builds = |source: &str| match on {
        Where::Emu => Matrix::builds(source),
        Where::Hip => &[Matrix::None],
    };
    let mut all = Vec::new();
    for probe in PROBES {
        all.extend(builds(probe.source).iter().map(|m| What::Probe(probe, *m)));
    }
    for kernel in products {
        all.extend(builds(kernel.source).iter().map(|m| What::Product(kernel, *m)));
    }
    all.extend(vendors.map(What::Vendor));
    all
}

pub(super) fn run(args: &ProbeArgs) -> anyhow::Result<u8> {
    let start = Instant::now();
    args.json.check()?;
    if let Some(path) = &args.ledger {
        ledger::check_writable(path)?;
    }
    let mut all = everything(args.backend);
    let mut known: Vec<&str> = all.iter().map(What::name).collect();
    known.dedup(); // the builds of a probe follow each other
    if let Some(name) = args.probe.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("there is no probe `{name}` here; known are {}", known.join(", "));
    }
    all.retain(|what| args.probe.is_empty() || args.probe.iter().any(|name| name == what.name()));
    let probes: Vec<Measured> =
        all.iter().map(|what| one(args.backend, what)).collect::<anyhow::Result<_>>()?;
    let findings = probes.iter().any(|m| !m.findings.is_empty());
    let measured = probes.iter().any(|m| m.skipped.is_none());
    let (code, result, said) = match (findings, measured) {
        (true, _) => (FINDINGS, "findings", "findings"),
        (false, true) => (PASS, "pass", "measured, and as the kernels assume"),
        (false, false) => (SKIPPED, "skipped", "nothing could be measured"),
    };
    let seconds = start.elapsed().as_secs_f64();
    args.json.say(&format!("{}\n{said} ({seconds:.1} s)\n", text(&probes, args.backend)));
    if let Some(path) = &args.ledger {
        record(path, args, &probes)?;
    }
    if let Some(path) = &args.json.json {
        write_json(path, &Envelope::new("device_probe", result, None, seconds, Body { probes }))?;
    }
    Ok(code)
}

/// Measures one. An error stops all of them only where it is none of the device's or the library's.
fn one(on: Where, what: &What) -> anyhow::Result<Measured> {
    let (identity, given) = match measure(on, what) {
        Ok((identity, given)) => (Some(identity), given),
        Err(e) => (None, Err(e)),
    };
    Measured::of(what.label(), identity, given)
}

impl Measured {
    /// What cannot be reached is skipped with the reason. A call that fails is a finding of this probe, so
    /// that the readings of the others stand.
    fn of(
        probe: String,
        identity: Option<Identity>,
        given: Result<Vec<Reading>, Error>,
    ) -> anyhow::Result<Measured> {
        let (mut readings, mut findings, mut skipped) = (Vec::new(), Vec::new(), None);
        match given {
            Ok(given) => readings = given,
            Err(Error::NoDevice { reason }) => skipped = Some(format!("no device: {reason}")),
            Err(e @ Error::NoLibrary { .. }) => skipped = Some(e.to_string()),
            Err(e @ Error::Library { .. }) => {
                findings.push(Finding::new("library_error", e.to_string()));
            }
            // After a call that failed the runtime refuses memory too.
            Err(e @ (Error::Hip { .. } | Error::Launch { .. } | Error::Memory { .. })) => {
                findings.push(Finding::new("probe.failed", e.to_string()));
            }
            Err(e) => return Err(anyhow::Error::from(e).context(format!("probe {probe}"))),
        }
        findings.extend(readings.iter().filter_map(|r| {
            let text = format!("{}: {}: {}", r.what, r.reads, r.meaning);
            r.finding.map(|name| Finding::new(name, text))
        }));
        Ok(Measured { probe, skipped, readings, findings, identity })
    }

    /// Its entry in a ledger, of what failed too; `None` when it was skipped, or what ran is not known.
    fn entry(&self) -> Option<Entry> {
        let identity = self.identity.clone().filter(|_| self.skipped.is_none())?;
        Some(match self.findings.first() {
            Some(failed) if self.readings.is_empty() => {
                Entry::of_failed_probe(&failed.name, identity)
            }
            _ => Entry::of_probe(&self.readings, identity),
        })
    }
}

/// What a probe gave, and the identity of what ran, which may be had where the readings may not.
type Given = (Identity, Result<Vec<Reading>, Error>);

fn measure(on: Where, what: &What) -> Result<Given, Error> {
    let options = LaunchOptions::default();
    let backend = |source: &str, matrix: Matrix| match on {
        Where::Emu => {
            let compiler = Compiler::find()?.with_matrix(matrix);
            Ok(Backend::from(compiler.compile(source, Mode::Plain)?))
        }
        Where::Hip => Backend::device(),
    };
    match what {
        What::Probe(probe, matrix) => {
            let backend = backend(probe.source, *matrix)?;
            Ok((backend.probe_identity(probe)?, (probe.measure)(&backend, &options)))
        }
        What::Product(kernel, matrix) => {
            product(&backend(kernel.source, *matrix)?, kernel, (&what.label(), Dtype::Bf16))
        }
        What::Vendor(subject) => {
            let of = (subject.kernel.name, subject.dtype);
            product(&vendor::open(subject.vendor)?, &subject.kernel, of)
        }
    }
}

/// Measures a kernel of op `matmul`, or a library's, as a product.
fn product(
    backend: &Backend,
    kernel: &Kernel,
    (label, dtype): (&str, Dtype),
) -> Result<Given, Error> {
    let options = LaunchOptions::default();
    let case = |x: &Tensor, w: &Tensor| Case {
        op: kernel.op.into(),
        params: json!({}),
        dtype,
        tensors: [("x".into(), x.clone()), ("weight".into(), w.clone())].into(),
        outputs: Default::default(),
        family: "probe".into(),
        seed: 0,
    };
    // Kernels of decode take few rows.
    let zeros = |rows: usize| Tensor::from_f64(dtype, &[rows, 64], &vec![0.0; rows * 64]);
    let few = kernel.accepts(&case(&zeros(64), &zeros(16))).is_err().then_some(8);
    let identity = backend.identity(kernel)?;
    let given = gemm::measure(label, dtype, few, &|x, w| -> Result<Tensor, Error> {
        let launched = (kernel.run)(backend, &case(x, w), &options)?;
        sound(kernel.name, &launched.report)?;
        Ok(launched.output().clone())
    });
    let name = format!("probe.{}", kernel.name);
    Ok((Identity { kernel: name, ..identity }, given))
}

/// An error for a launch that did not end well, or that the memory checks object to: what it stored is no
/// reading.
fn sound(kernel: &'static str, report: &LaunchReport) -> Result<(), Error> {
    if report.is_clean() {
        return Ok(());
    }
    let said: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    let what = format!("the launch ended as {:?}; {}", report.status, said.join("; "));
    Err(Error::Launch { kernel, probe: "the device probe".to_owned(), what })
}

fn text(probes: &[Measured], on: Where) -> String {
    let mut table = Table::new(&["measured", "reads", "what it means"]);
    for reading in probes.iter().flat_map(|m| &m.readings) {
        table.row([reading.what.clone(), reading.reads.clone(), reading.meaning.clone()]);
    }
    let mut out = table.render();
    for m in probes {
        if let Some(reason) = &m.skipped {
            out += &format!("\n{}: skipped: {reason}", m.probe);
        }
        for f in &m.findings {
            out += &format!("\n{}: {} {}\n    {}", m.probe, f.code, f.name, f.text);
        }
    }
    if on == Where::Emu {
        out += "\nThese are the emulator's units: they say nothing of a device.";
    }
    out.trim_end().to_owned() + "\n"
}

/// Appends an entry for each probe that measured something, or failed.
fn record(path: &Path, args: &ProbeArgs, probes: &[Measured]) -> anyhow::Result<()> {
    let entries: Vec<Entry> = probes.iter().filter_map(Measured::entry).collect();
    let added = entries.len();
    let ledger = ledger::append(path, entries)?;
    let (of, head) = (ledger.entries().len(), ledger.head());
    args.json
        .say(&format!("{}: {added} entries added, {of} in all, head {head}\n", path.display()));
    Ok(())
}
