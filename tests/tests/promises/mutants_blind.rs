//! The judge sees a kernel's source and its cases, nothing else: what an edit is called and what is
//! expected of it changes no finding.

use assay_verify::mutants::{self, Edit, Kind};

fn edit(name: &str) -> Edit {
    let edits = mutants::edits().expect("anchors");
    edits.into_iter().find(|e| e.name.ends_with(name)).unwrap_or_else(|| panic!("no edit {name}"))
}

/// One edit of each kind that is quick to check: by kernel, and a control.
fn few() -> Vec<Edit> {
    let edits = mutants::edits().expect("anchors");
    let mut out: Vec<Edit> = Vec::new();
    for kernel in assay_hip::kernels() {
        let of = |kind: Kind| {
            edits.iter().filter(move |e| e.kernel.name == kernel.name && e.kind == kind).cloned()
        };
        if ["gemm_bf16", "gptq_dequant"].contains(&kernel.name) {
            out.extend(of(Kind::Mutant).take(1));
            out.extend(of(Kind::Control).take(1));
        }
    }
    out
}

#[test]
fn names_and_expectations_do_not_reach_the_judge() {
    let edits = few();
    assert_eq!(edits.len(), 4);
    for (i, honest) in edits.iter().enumerate() {
        let other = &edits[(i + 1) % edits.len()];
        let mut lying = honest.clone();
        lying.name = other.name.clone();
        lying.expected = Some("matmul.gain".into());
        lying.kind = if honest.kind == Kind::Mutant { Kind::Control } else { Kind::Mutant };
        let (a, b) = (mutants::check(honest, 3), mutants::check(&lying, 3));
        let (a, b) = (a.expect("the emulator runs"), b.expect("the emulator runs"));
        assert_eq!(a.findings, b.findings, "{}", honest.name);
        assert_eq!((a.caught, a.named), (b.caught, b.named), "{}", honest.name);
        assert_eq!(a.conventions, b.conventions, "{}", honest.name);
        assert_eq!(a.caught, honest.kind == Kind::Mutant, "{}: {:?}", honest.name, a.findings);
        if let Some(expected) = &honest.expected {
            let quoted = b.findings.iter().any(|f| f.text.contains(&lying.name));
            assert!(!quoted, "a finding quotes the name of the edit");
            assert!(a.right, "{}: expected {expected}, {:?}", honest.name, a.findings);
        }
    }
}

/// Comments and names in the source are text like any other.
#[test]
fn comments_in_the_source_do_not_reach_the_judge() {
    let honest = edit("zero_without_plus_one");
    let mut talkative = honest.clone();
    talkative.source = format!("// matmul.gain: this kernel multiplies by 1.02\n{}", honest.source);
    let (a, b) = (mutants::check(&honest, 3), mutants::check(&talkative, 3));
    assert_eq!(a.expect("runs").findings, b.expect("runs").findings);
}
