//! The matrix instructions of the emulator, and the kernels' paths over them.

use assay_hip::emu::{Compiler, Mode};
use assay_hip::probe::layout::{self, Operand, published};
use assay_hip::{Arch, Backend, Matrix, kernel};
use assay_reference::{Dtype, Tensor};

use super::{cases, compile, lenient, run, strict};

const BOTH: [Matrix; 2] = [Matrix::Mfma, Matrix::Mmac];

/// The layout probe, with an edit of its source that stands for other hardware.
fn probe(matrix: Matrix, (from, to): (&str, &str)) -> Backend {
    let source = layout::SOURCE.replace(from, to);
    assert!(from == to || source != layout::SOURCE, "`{from}` is in the probe");
    let compiler = Compiler::find().unwrap().with_cache(env!("CARGO_TARGET_TMPDIR"));
    compiler.with_matrix(matrix).compile(&source, Mode::Plain).unwrap().into()
}

/// Bits of bf16 from a small generator, 256 a product: all of them, NaN and subnormals too, and in
/// every other product those of ±[0.5, 2), whose sums are rounded at each step.
fn some_bits(n: usize, seed: u64) -> Vec<u16> {
    let mut state = seed;
    let step = |i| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bits = (state >> 48) as u16;
        if i / 256 % 2 == 0 { bits } else { bits & 0x80ff | 0x3f00 }
    };
    (0..n).map(step).collect()
}

/// D by plain f32 arithmetic in the order of k, from the published layout alone.
fn expected(matrix: Matrix, a: &[f32], b: &[f32], c: &[f32]) -> Vec<u32> {
    let (mut a_at, mut b_at) = ([[0.0; 16]; 16], [[0.0; 16]; 16]);
    for r in 0..256 {
        let [m, k] = published(matrix, Operand::A, r / 4, r % 4);
        a_at[m][k] = a[r];
        let [k, n] = published(matrix, Operand::B, r / 4, r % 4);
        b_at[k][n] = b[r];
    }
    let result = |r: usize| {
        let [m, n] = published(matrix, Operand::D, r / 4, r % 4);
        let sum = (0..16).fold(c[r], |sum, k| f32::mul_add(a_at[m][k], b_at[k][n], sum));
        if sum.is_nan() { f32::NAN.to_bits() } else { sum.to_bits() }
    };
    (0..256).map(result).collect()
}

#[test]
fn matrix_instructions_are_fused_multiply_adds_in_the_order_of_k() {
    const N: usize = 64;
    for matrix in BOTH {
        let backend = probe(matrix, ("", ""));
        let (a, b) = (some_bits(N * 256, 1), some_bits(N * 256, 2));
        // C of like size as the products, with a full significand.
        let scale = |bits: &u16| f32::from_bits(u32::from(*bits) << 16 | 0x5a5a);
        let c: Vec<f32> = some_bits(N * 256, 3).iter().map(scale).collect();
        let wide = |bits: &[u16]| -> Vec<f32> {
            bits.iter().map(|b| f32::from_bits(u32::from(*b) << 16)).collect()
        };
        let tensor = |dtype, bytes| Tensor::from_bytes(dtype, vec![N, 64, 4], bytes).unwrap();
        let bytes = |bits: &[u16]| bits.iter().flat_map(|b| b.to_le_bytes()).collect();
        let d = layout::multiply(
            &backend,
            [
                &tensor(Dtype::Bf16, bytes(&a)),
                &tensor(Dtype::Bf16, bytes(&b)),
                &tensor(Dtype::F32, c.iter().flat_map(|c| c.to_le_bytes()).collect()),
            ],
        )
        .unwrap();
        let given: Vec<u32> = d
            .bytes()
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .map(|d| if d.is_nan() { f32::NAN.to_bits() } else { d.to_bits() })
            .collect();
        let (a, b) = (wide(&a), wide(&b));
        let mut finite = 0;
        for p in 0..N {
            let part = p * 256..(p + 1) * 256;
            let want = expected(matrix, &a[part.clone()], &b[part.clone()], &c[part.clone()]);
            assert_eq!(given[part], want, "{matrix}, product {p}");
            finite += want.iter().filter(|d| f32::from_bits(**d).is_finite()).count();
        }
        assert!(finite > 100, "{finite} results are finite");
    }
}

/// The compiler decides by the header which instructions a build has, the program by its table.
#[test]
fn the_header_has_the_matrix_instructions_of_the_table() {
    let header = include_str!("../../include/assay_matrix.h");
    // `#if defined(..) || defined(__gfx90a__)` and what follows, up to the family's macro.
    let condition = |family: &str| {
        let start =
            header.find(&format!("defined(ASSAY_EMU_MATRIX_{family})")).expect("a condition");
        let end = header.find(&format!("#define ASSAY_MATRIX_{family} 1")).expect("a macro");
        let names = header[start..end].split("defined(__").skip(1);
        names.map(|rest| rest.split("__").next().unwrap_or("")).collect::<Vec<_>>()
    };
    for (matrix, family) in [(Matrix::Mfma, "MFMA"), (Matrix::Mmac, "MMAC")] {
        let known: Vec<&str> =
            Arch::ALL.iter().filter(|a| a.matrix == matrix).map(|a| a.name).collect();
        assert_eq!(condition(family), known, "{family}");
        // The table of its comment too.
        let row = header.lines().find(|line| line.starts_with(&format!("//   {family}")));
        let row = row.expect("a row").rsplit("  ").next().expect("its archs");
        assert_eq!(row.split(", ").map(str::trim).collect::<Vec<_>>(), known, "{family}");
    }
}

#[test]
fn the_emulated_layouts_are_the_published_ones() {
    for matrix in BOTH {
        let map = layout::layout_map(&probe(matrix, ("", ""))).unwrap().expect("instructions");
        assert_eq!((map.matrix, map.misplaced()), (matrix, Vec::new()));
    }
    assert_eq!(layout::layout_map(&probe(Matrix::None, ("", ""))).unwrap(), None);
}

/// Hardware whose registers lie elsewhere, by edits of the probe behind the wrapper's back.
#[test]
fn a_layout_that_is_not_the_published_one_is_found_with_its_place() {
    let found = |matrix, edit| {
        let map = layout::layout_map(&probe(matrix, edit)).unwrap().expect("instructions");
        let misplaced = map.misplaced();
        let first = misplaced.first().map(ToString::to_string).unwrap_or_default();
        (first, misplaced.iter().map(|m| (m.operand, m.lane, m.element)).collect::<Vec<_>>())
    };
    // MMAC hardware behind a build that believes in MFMA: the places agree where t = 5 q = 5 r only.
    let (first, all) = found(Matrix::Mmac, ("const int own = 2;", "const int own = 1;"));
    assert_eq!(all.iter().filter(|m| m.0 == Operand::D).count(), 252, "{first}");
    assert!(all.iter().all(|m| matches!(m.0, Operand::C | Operand::D)));
    assert!(first.starts_with("__builtin_amdgcn_mfma_f32_16x16x16bf16_1k: C lane 0 element 1: "));
    assert!(first.ends_with("expected m = 1, n = 0, seen at m = 0, n = 4"), "{first}");
    // Two elements of B exchanged: their k are.
    let swapped = "b_part[i] = b[first + (i < 2 ? 1 - i : i)];";
    let (first, all) = found(Matrix::Mfma, ("b_part[i] = b[first + i];", swapped));
    assert_eq!(all.len(), 128, "{first}");
    assert!(first.contains("B lane 0 element 0: expected k = 0, n = 0, seen at k = 1, n = 0"));
    // One lane's registers of A never arrive.
    let lost = "a_part[i] = threadIdx.x == 17 ? 0 : a[first + i];";
    let (first, all) = found(Matrix::Mmac, ("a_part[i] = a[first + i];", lost));
    let lane = all.iter().filter(|m| m.0 == Operand::A).map(|m| m.1);
    assert_eq!(lane.collect::<Vec<_>>(), [17; 4], "{first}");
    // An instruction that ignores C.
    let (_, all) = found(Matrix::Mfma, ("c_part[i] = c[first + i];", "c_part[i] = 0.0f;"));
    assert!(all.len() == 256 && all.iter().all(|m| m.0 == Operand::C), "{all:?}");
}

#[test]
fn matrix_paths_are_right_and_their_bits_do_not_depend_on_the_layout() {
    for (name, measure) in
        [("gemm_bf16", strict as fn(&_, &_) -> f64), ("attention_prefill_d128", lenient)]
    {
        let kernel = kernel(name).unwrap();
        let builds = BOTH.map(|matrix| compile(kernel.source, Mode::Plain, matrix));
        let vector = compile(kernel.source, Mode::Plain, Matrix::None);
        for test in cases::of(name) {
            let [mfma, mmac] = builds.each_ref().map(|build| run(kernel, build, &test));
            for launched in [&mfma, &mmac] {
                assert!(launched.report.is_clean(), "{name} {}: {:?}", test.name, launched.report);
                let worst = measure(launched, &test);
                assert!(worst <= 1.0, "{name} {}: error {worst}", test.name);
            }
            assert!(mfma.output().bytes() == mmac.output().bytes(), "{name} {}", test.name);
            if name == "gemm_bf16" {
                // The emulator's instruction adds as the vector unit's loop does.
                let vector = run(kernel, &vector, &test);
                assert!(vector.output().bytes() == mfma.output().bytes(), "{}", test.name);
            }
        }
    }
}
