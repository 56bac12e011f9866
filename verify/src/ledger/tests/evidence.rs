//! Evidence: families, cells and bits are those of the cases.

use assay_reference::{Dtype, Tensor};

use crate::families;
use crate::ledger::{Evidence, Suite, cell};

#[test]
fn every_shape_falls_into_the_cell_of_its_path() {
    let label = |op: &str, wanted: &str| {
        let cases = families::cases(op, 1);
        let g = cases.iter().find(|g| g.label.contains(wanted));
        cell(&g.unwrap_or_else(|| panic!("{op}: no case {wanted}")).case)
    };
    assert_eq!(label("matmul", " 1x64x127"), "rows=1");
    assert_eq!(label("matmul", " 8x16x40"), "rows=2..8");
    assert_eq!(label("matmul", " 9x16x40"), "rows=9..64");
    assert_eq!(label("matmul", " 65x70x100"), "rows=65..");
    assert_eq!(label("attention", " q1 kv129"), "decode");
    assert_eq!(label("attention", " q5 kv68"), "chunk");
    assert_eq!(label("attention", " q33 kv33"), "prefill");
    assert_eq!(label("gptq_dequant", "asym act"), "g_idx");
    assert_eq!(label("gptq_dequant", "128x64 g128 sym"), "sequential");
}

/// One bit of one output shows in its own cell and in the whole, and nowhere else; an output that is
/// missing leaves no hash to compare with.
#[test]
fn one_bit_of_one_output_shows_in_its_cell() {
    let cases = families::cases("gptq_dequant", 1);
    let outputs: Vec<Tensor> =
        (0..cases.len()).map(|i| Tensor::from_f64(Dtype::Bf16, &[2], &[i as f64, 1.0])).collect();
    let evidence = |outputs: &[Tensor]| {
        let plain: Vec<Vec<&Tensor>> = outputs.iter().map(|o| vec![o]).collect();
        Evidence::of(&cases, &plain)
    };
    let before = evidence(&outputs);
    assert_eq!(before.cells.iter().map(|c| c.cases).sum::<usize>(), cases.len());
    let changed = cases.iter().position(|g| cell(&g.case) == "g_idx").expect("a case");
    let mut other = outputs.clone();
    other[changed] = Tensor::from_f64(Dtype::Bf16, &[2], &[changed as f64, 1.0078125]);
    let after = evidence(&other);
    assert_ne!(before.outputs, after.outputs);
    for (a, b) in before.cells.iter().zip(&after.cells) {
        assert_eq!(a.outputs == b.outputs, a.name != "g_idx", "{}", a.name);
    }
    // A second output of one case is hashed too.
    let mut plain: Vec<Vec<&Tensor>> = outputs.iter().map(|o| vec![o]).collect();
    plain[changed].push(&outputs[0]);
    assert_ne!(before.outputs, Evidence::of(&cases, &plain).outputs);
    plain[changed] = Vec::new();
    let without = Evidence::of(&cases, &plain);
    assert_eq!(without.outputs, None);
    assert!(without.cells.iter().all(|c| c.outputs.is_none() == (c.name == "g_idx")));
    assert_eq!(without.families, ["unit", "special", "outlier", "exact"]);
}

#[test]
fn each_op_has_a_suite_of_its_own() {
    let (a, b) = (Suite::of("gptq_dequant"), Suite::of("rms_norm"));
    assert_eq!(a, Suite::of("gptq_dequant"));
    assert!(a.cases != b.cases && a.cases.len() == 64, "{a:?} {b:?}");
}
