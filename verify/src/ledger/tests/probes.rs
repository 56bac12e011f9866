//! Device probes beside kernels.

use assay_hip::probe::Reading;
use assay_hip::{Admit, BackendKind, Identity};

use super::super::{Entry, Ledger, PROBE_OP, compare};
use super::{entry, identity, ledger};

fn probe(reads: &str, finding: Option<&'static str>) -> Entry {
    let reading = |what: &str, reads: &str, finding| Reading {
        what: what.into(),
        reads: reads.into(),
        meaning: String::new(),
        finding,
        raw: reads.into(),
    };
    let readings = [reading("f32.mul", "nearest_even", None), reading("f32.add", reads, finding)];
    Entry::of_probe(&readings, Identity { kernel: "probe.vector".into(), ..identity() })
}

#[test]
fn a_probes_entry_stands_beside_those_of_kernels_and_admits_none() {
    let kept = ledger([entry(1), probe("nearest_even", None)]);
    let read = Ledger::parse(&kept.to_bytes(), "test".as_ref()).expect("sound");
    assert_eq!(read.entries()[1].op, PROBE_OP);
    assert_eq!(read, kept);
    let of_a_kernel = Identity { kernel: "vector".into(), ..identity() };
    assert!(read.admit(&of_a_kernel).is_err());
    let on_a_device = Identity { backend: BackendKind::Hip, ..read.entries()[1].identity.clone() };
    assert!(read.admit(&on_a_device).is_err());
}

#[test]
fn readings_that_changed_are_listed_alone() {
    let old = ledger([probe("nearest_even", None)]);
    let new = ledger([probe("toward_zero", Some("probe.rounding"))]);
    let same = compare(&old, &old);
    assert!(!same[0].is_changed(), "{same:?}");
    let changes = &compare(&old, &new)[0].changes;
    let of = |what: &str| changes.iter().find(|c| c.what == what).expect(what);
    assert_eq!(
        (of("verdict").old.as_str(), of("verdict").new.as_str()),
        ("pass", "probe.rounding")
    );
    let convention = of("convention");
    assert_eq!(convention.old, "f32.add: nearest_even");
    assert_eq!(convention.new, "f32.add: toward_zero");
    assert!(of("bits").old.starts_with("f32.add: "), "{changes:?}");
}
