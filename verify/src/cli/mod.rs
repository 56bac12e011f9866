//! cli stub
use assay_reference::checkpoint::Checkpoint;
use assay_reference::trace::Trace;
use std::path::Path;
/// stub
pub fn main() {
    let a: Vec<String> = std::env::args().collect();
    let c = Checkpoint::open(Path::new(&a[1])).unwrap_or_else(|e| panic!("{e}"));
    let t = Trace::open(Path::new(&a[2])).unwrap_or_else(|e| panic!("{e}"));
    let r = crate::diff::diff(&c, &t, &mut |_, _, _| {}).unwrap_or_else(|e| panic!("{e}"));
    for n in &r.nodes {
        let v = &n.judgement.verdict;
        eprintln!("{:28} {:12} {:10} {:.3} eq {:.4} {}", n.probe, n.op, v.word(), n.judgement.worst, n.judgement.equal_share,
          match v { crate::judge::Verdict::Pass { conventions, .. } => format!("{} (+{})", conventions[0], conventions.len()-1), o => o.findings().iter().map(|f| format!("{} {}: {}", f.code, f.name, f.text)).collect::<Vec<_>>().join(" | ") });
    }
}
