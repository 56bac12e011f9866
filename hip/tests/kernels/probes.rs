//! The device probes: what they read of the emulator's units, and of units that are other on purpose.

use std::collections::BTreeMap;
use std::time::Duration;

use assay_hip::emu::{Compiler, Mode};
use assay_hip::probe::{Reading, gemm, probe, sgemm};
use assay_hip::{Backend, Error, LaunchOptions, Matrix, Replacement, SourceEdit, kernel, mutate};
use assay_reference::{Case, Dtype, Tensor};

/// What a probe reads of its source, edited.
fn readings(name: &str, edits: &[(&str, &str)], options: &LaunchOptions) -> Vec<Reading> {
    let probe = probe(name).unwrap();
    let source = edits.iter().fold(probe.source.to_owned(), |source, (anchor, replacement)| {
        let at =
            Replacement { anchor: (*anchor).to_owned(), replacement: (*replacement).to_owned() };
        let edit = SourceEdit {
            name: name.to_owned(),
            at,
            also: Vec::new(),
            description: String::new(),
            matrix: Matrix::None,
        };
        mutate(&source, &edit).unwrap()
    });
    (probe.measure)(&super::compile(&source, Mode::Plain, Matrix::None), options).unwrap()
}

/// Readings by what was measured, with their findings.
fn by_name(readings: Vec<Reading>) -> BTreeMap<String, (String, Option<&'static str>)> {
    readings.into_iter().map(|r| (r.what, (r.reads, r.finding))).collect()
}

fn check(name: &str, edits: &[(&str, &str)], expected: &[(&str, &str, Option<&str>)]) {
    let found = by_name(readings(name, edits, &LaunchOptions::default()));
    for (what, reads, finding) in expected {
        let (given, found) = &found[*what];
        assert_eq!((given.as_str(), *found), (*reads, *finding), "{what} after {edits:?}");
    }
}

#[test]
fn probes_read_the_emulators_units_as_ieee_units_without_contraction() {
    let once = "nearest_even, subnormals kept";
    check(
        "vector",
        &[],
        &[
            ("f32.add", once, None),
            ("f32.mul", once, None),
            ("f32.fma", "fused, nearest_even, subnormals kept", None),
            ("f32.mul_add", "product rounded first, nearest_even, subnormals kept", None),
            ("f32.div", once, None),
            ("f32.sqrt", once, None),
            ("f32.exp", "within 1 ulp", None),
            ("f16.add", once, None),
            ("f16.mul", once, None),
            ("f16.fma", "fused, nearest_even, subnormals kept", None),
        ],
    );
    let infinite = "nearest_even, subnormals kept, too large becomes infinity, NaN stays";
    let saturated =
        "ocp, nearest_even, subnormals kept, too large saturates, infinity too, NaN stays";
    check(
        "convert",
        &[],
        &[
            ("f32_to_bf16.own", infinite, None),
            ("f32_to_f16.own", infinite, None),
            ("f32_to_e4m3.own", saturated, None),
            ("f32_to_e5m2.own", saturated, None),
            ("f32_to_f16.unit", "absent", None),
            ("f32_to_e4m3.unit", "absent", None),
        ],
    );
    check("canary", &[], &[("block.1024_threads", "every thread ran", None)]);
    check(
        "sgemm",
        &[],
        &[
            ("sgemm.order", "one after another", None),
            ("sgemm.accumulator", "24 bits, nearest_even", None),
            ("sgemm.subnormals", "operands kept, results kept", None),
            ("sgemm.f32", "f32", None),
            ("sgemm.f32 large", "f32", None),
        ],
    );
}

#[test]
fn a_unit_that_flushes_subnormals_reads_so() {
    let options = LaunchOptions { ftz: true, ..LaunchOptions::default() };
    let found = by_name(readings("vector", &[], &options));
    assert_eq!(found["f32.add"].0, "nearest_even, subnormals flushed");
    assert_eq!(found["f32.fma"].0, "fused, nearest_even, subnormals flushed");
    let found = by_name(readings("sgemm", &[], &options));
    assert_eq!(found["sgemm.subnormals"].0, "operands flushed, results flushed");
}

#[test]
fn units_that_round_otherwise_read_so() {
    let rounding = Some("probe.rounding");
    // Toward zero, from the exact sum that a double holds.
    let truncated = "case kAdd: { const double d = static_cast<double>(a) + b; \
                     const float r = static_cast<float>(d); \
                     return __builtin_fabs(r) > __builtin_fabs(d) \
                         ? __uint_as_float(__float_as_uint(r) - 1u) : r; }";
    check(
        "vector",
        &[("case kAdd: return a + b;", truncated)],
        &[("f32.add", "toward_zero, subnormals kept", rounding)],
    );
    let fma = "case kFma: return fmaf(a, b, c);";
    check(
        "vector",
        &[(fma, "case kFma: return a * b + c;")],
        &[("f32.fma", "product rounded first, nearest_even, subnormals kept", rounding)],
    );
    let twice = "case kFma: return static_cast<float>(static_cast<double>(a) * b + c);";
    check(
        "vector",
        &[(fma, twice)],
        &[("f32.fma", "rounded twice, nearest_even, subnormals kept", rounding)],
    );
    let others = [
        ("case kMulAdd: return a * b + c;", "case kMulAdd: return fmaf(a, b, c);"),
        ("case kDiv: return a / b;", "case kDiv: return a * (1.0f / b);"),
        ("default: return expf(a);", "default: return expf(a) * 1.000001f;"),
        ("if (rest > half || (rest == half && (kept & 1u) != 0)) ++kept;", ""),
        ("(bits < 0x7c00u ? bits : 0x7c00u)", "(bits < 0x400u ? 0u : bits)"),
        ("case kMul: return a * b;", "case kMul: return a * b * 1.5f;"),
    ];
    check(
        "vector",
        &others,
        &[
            ("f32.mul_add", "fused, nearest_even, subnormals kept", None),
            ("f32.div", "within 2 ulp, subnormals kept", None),
            ("f32.mul", "unexplained", Some("probe.unexplained")),
            ("f16.add", "toward_zero, subnormals flushed in results", None),
            ("f16.mul", "toward_zero, subnormals flushed in results", None),
        ],
    );
    let exp = &by_name(readings("vector", &others, &LaunchOptions::default()))["f32.exp"].0;
    assert_ne!(exp, "within 1 ulp");
    // Subnormals that are neither kept nor flushed, and zeros of the wrong sign.
    let lifted = "case kAdd: { const float s = a + b; \
                  return s != 0.0f && __builtin_fabsf(s) < 1.17549435e-38f ? 1.17549435e-38f : s; }";
    let minus = "case kMulAdd: { const float r = a * b + c; return r == 0.0f ? -0.0f : r; }";
    check(
        "vector",
        &[("case kAdd: return a + b;", lifted), ("case kMulAdd: return a * b + c;", minus)],
        &[
            ("f32.add", "nearest_even, subnormals in no known way", Some("probe.unexplained")),
            ("f32.mul_add", "unexplained", Some("probe.unexplained")),
        ],
    );
    // One NaN, and not the last.
    let nan = "default: return a > 0.0f && a < 0.2f ? __uint_as_float(0x7fc00000u) : expf(a);";
    check(
        "vector",
        &[("default: return expf(a);", nan)],
        &[("f32.exp", "unexplained", Some("probe.unexplained"))],
    );
}

#[test]
fn conversions_that_round_otherwise_read_so() {
    let rounding = Some("probe.rounding");
    let bf16 = "case kOwnBf16: out[i] = float_to_bf16(x); break;";
    check(
        "convert",
        &[(bf16, "case kOwnBf16: out[i] = a[i] >> 16; break;")],
        &[(
            "f32_to_bf16.own",
            "toward_zero, subnormals kept, too large saturates, infinity stays, NaN becomes infinity",
            rounding,
        )],
    );
    check(
        "convert",
        &[(bf16, "case kOwnBf16: out[i] = (a[i] + 0x8000u) >> 16; break;")],
        &[(
            "f32_to_bf16.own",
            "nearest_away, subnormals kept, too large becomes infinity, NaN becomes infinity",
            rounding,
        )],
    );
    // A unit of the other 8-bit encoding: a bias of 8, and minus zero is the NaN.
    let fnuz = "case kUnitE4m3: { const unsigned u = float_to_fp8<3, 8, 0x7fu, 0x80u>(x); \
                out[i] = u == 0x80u && x == x ? 0u : u; break; }";
    check(
        "convert",
        &[("case kUnitE4m3: out[i] = unit_e4m3(x); break;", fnuz)],
        &[(
            "f32_to_e4m3.unit",
            "fnuz, nearest_even, subnormals kept, too large saturates, infinity too, NaN stays",
            None,
        )],
    );
    let unsigned = "case kOwnBf16: out[i] = x == 0.0f ? 0u : float_to_bf16(x); break;";
    check(
        "convert",
        &[(bf16, unsigned)],
        &[("f32_to_bf16.own", "unexplained", Some("probe.unexplained"))],
    );
    // Rounded right, but what is too large is another number than kernels assume.
    let saturating = "case kOwnBf16: { const unsigned u = float_to_bf16(x); \
                      out[i] = (u & 0x7fffu) == 0x7f80u ? u - 1u : u; break; }";
    check(
        "convert",
        &[(bf16, saturating)],
        &[(
            "f32_to_bf16.own",
            "nearest_even, subnormals kept, too large saturates, infinity too, NaN stays",
            rounding,
        )],
    );
    let infinite = "case kOwnE5m2: { const unsigned u = float_to_fp8_e5m2(x); \
                    out[i] = __builtin_fabsf(x) > 57344.0f && x == x ? (u & 0x80u) | 0x7cu : u; break; }";
    check(
        "convert",
        &[("case kOwnE5m2: out[i] = float_to_fp8_e5m2(x); break;", infinite)],
        &[(
            "f32_to_e5m2.own",
            "ocp, nearest_even, subnormals kept, too large becomes infinity, NaN stays",
            rounding,
        )],
    );
    let noise = "case kOwnF16: out[i] = float_to_f16(x) ^ (i == 40); break;";
    check(
        "convert",
        &[("case kOwnF16: out[i] = float_to_f16(x); break;", noise)],
        &[("f32_to_f16.own", "unexplained", Some("probe.unexplained"))],
    );
}

#[test]
fn a_block_whose_upper_waves_do_not_run_is_counted() {
    let store = "out[blockIdx.x * threads + threadIdx.x] =";
    let lost = format!("if (threadIdx.x < 256) {store}");
    check(
        "canary",
        &[(store, &lost)],
        &[
            ("block.256_threads", "every thread ran", None),
            ("block.320_threads", "768 of 960 threads ran", Some("probe.canary")),
            ("block.1024_threads", "768 of 3072 threads ran", Some("probe.canary")),
        ],
    );
    let refused = ("op > 1024", "op > 512");
    check("canary", &[refused], &[("block.1024_threads", "refused", Some("probe.canary"))]);
    // What stops a launch is told apart, and the smaller blocks are measured all the same.
    let wild =
        "if (threads > 512) *reinterpret_cast<unsigned*>(static_cast<unsigned long>(threads)) = 0;";
    check(
        "canary",
        &[(store, &format!("{wild} {store}"))],
        &[
            ("block.512_threads", "every thread ran", None),
            ("block.1024_threads", "failed", Some("probe.canary")),
        ],
    );
    let endless = "volatile int on = threads > 512; while (on) {}";
    let deadline = Duration::from_millis(300);
    let options = LaunchOptions { deadline, ..LaunchOptions::default() };
    let found = by_name(readings("canary", &[(store, &format!("{endless} {store}"))], &options));
    assert_eq!(found["block.512_threads"].0, "every thread ran");
    assert_eq!(found["block.1024_threads"], ("hang".to_owned(), Some("probe.canary")));
}

#[test]
fn an_f32_product_in_fewer_bits_is_told_from_f32() {
    // Rounds the significand to 8 bits, ties to even, or cuts it to 11.
    let parts = "__device__ inline float bf(float v) { const unsigned b = __float_as_uint(v); \
         return __uint_as_float((b + 0x7fffu + (b >> 16 & 1u)) & 0xffff0000u); } \
         __device__ inline float tf(float v) { \
         return __uint_as_float((__float_as_uint(v) + kHalf) & 0xffffe000u); } \
         __device__ __forceinline__ float multiply_add(";
    let anchor = "__device__ __forceinline__ float multiply_add(";
    let plain = "return fmaf(x, w, sum);";
    let three = "const float x1 = bf(x), w1 = bf(w), x2 = bf(x - x1), w2 = bf(w - w1);";
    let six = format!("{three} const float x3 = bf(x - x1 - x2), w3 = bf(w - w1 - w2);");
    for (half, body, reads) in [
        ("0u", "return fmaf(tf(x), tf(w), sum);".to_owned(), "tf32"),
        ("0x1000u", "return fmaf(tf(x), tf(w), sum);".to_owned(), "tf32"),
        ("0u", "return fmaf(bf(x), bf(w), sum);".to_owned(), "bf16"),
        ("0u", format!("{three} return sum + ((x2 * w1 + x1 * w2) + x1 * w1);"), "bf16x2"),
        (
            "0u",
            format!(
                "{six} return sum + (((x3 * w1 + x1 * w3 + x2 * w2) + (x2 * w1 + x1 * w2)) + x1 * w1);"
            ),
            "bf16x3",
        ),
    ] {
        let parts = parts.replace("kHalf", half);
        let found =
            readings("sgemm", &[(anchor, &parts), (plain, &body)], &LaunchOptions::default());
        let meaning = found.iter().find(|r| r.what == "sgemm.f32").unwrap().meaning.clone();
        let found = by_name(found);
        let (given, finding) = &found["sgemm.f32"];
        assert_eq!((given.as_str(), *finding), (reads, Some("probe.f32_gemm")), "{body}");
        assert_eq!(found["sgemm.f32 large"], ("not f32".to_owned(), Some("probe.f32_gemm")));
        if reads == "tf32" {
            let to = if half == "0u" { "toward zero" } else { "nearest" };
            assert!(meaning.contains(to), "{meaning}");
        }
    }
}

/// As a library does that has other kernels for large matrices.
#[test]
fn an_f32_product_in_fewer_bits_only_where_it_is_large_is_seen() {
    let body = "return fmaf(x, w, sum);";
    let cut = "__uint_as_float(__float_as_uint(x) & 0xffffe000u)";
    let signature = "float multiply_add(float x, float w, float sum) {";
    let call = "sum = multiply_add(row[j], column[j], sum);";
    check(
        "sgemm",
        &[
            (signature, "float multiply_add(float x, float w, float sum, bool large) {"),
            (body, &format!("return fmaf(large ? {cut} : x, w, sum);")),
            (call, "sum = multiply_add(row[j], column[j], sum, m >= 256 && n >= 256);"),
        ],
        &[("sgemm.f32", "f32", None), ("sgemm.f32 large", "not f32", Some("probe.f32_gemm"))],
    );
}

/// A product whose sums are made by `sum` of a row's products.
fn summed(sum: impl Fn(&[f32]) -> f32) -> Vec<Reading> {
    let product = |x: &Tensor, w: &Tensor| -> Result<Tensor, Error> {
        let ([m, k], n) = ([x.shape()[0], x.shape()[1]], w.shape()[0]);
        // Sums of the host take their time: no large ones.
        if k > 64 {
            let (expected, given) = ("at most 64 terms".to_owned(), k.to_string());
            return Err(Error::Argument { kernel: "product", argument: "x", expected, given });
        }
        let (x, w) = (x.to_f64(), w.to_f64());
        let mut y = Vec::new();
        for i in 0..m * n {
            let (row, column) = (&x[i / n * k..], &w[i % n * k..]);
            let products: Vec<f32> = (0..k).map(|j| (row[j] * column[j]) as f32).collect();
            y.push(f64::from(sum(&products)));
        }
        Ok(Tensor::from_f64(Dtype::F32, &[m, n], &y))
    };
    gemm::measure("product", Dtype::F32, None, &product).unwrap()
}

#[test]
fn orders_and_accumulators_are_read_from_outside() {
    let reads = |readings: Vec<Reading>, what: &str| by_name(readings)[what].clone();
    let order = |sum: &dyn Fn(&[f32]) -> f32| reads(summed(sum), "product.order").0;
    let chain = |p: &[f32]| p.iter().fold(0.0_f32, |s, x| s + x);
    assert_eq!(order(&chain), "one after another");
    assert_eq!(
        order(&|p| p.iter().rev().fold(0.0_f32, |s, x| s + x)),
        "one after another, from the last"
    );
    fn halves(p: &[f32]) -> f32 {
        if p.len() == 1 { p[0] } else { halves(&p[..p.len() / 2]) + halves(&p[p.len() / 2..]) }
    }
    assert_eq!(order(&halves), "a tree over 32 chains of 2 (consecutive terms), 5 levels");
    let lanes = |p: &[f32]| {
        let lane = |l: usize| p.iter().skip(l).step_by(16).fold(0.0_f32, |s, x| s + x);
        halves(&(0..16.min(p.len())).map(lane).collect::<Vec<f32>>())
    };
    assert_eq!(order(&lanes), "a tree over 16 chains of 4 (every 16th term), 4 levels");
    // Four products and the accumulator at once, exactly, as a matrix instruction may.
    let fused = |p: &[f32]| {
        p.chunks(4).fold(0.0_f32, |s, group| {
            let big = group.iter().chain([&s]).any(|x| x.abs() > 1e20);
            let kept = |x: &f32| if big && x.abs() < 1e20 { 0.0 } else { f64::from(*x) };
            (group.iter().map(kept).sum::<f64>() + kept(&s)) as f32
        })
    };
    assert_eq!(order(&fused), "4 at once, one group after another");
    // All of them at once, exactly.
    let at_once = |p: &[f32]| {
        let big: f64 = p.iter().filter(|x| x.abs() > 1e20).map(|x| f64::from(*x)).sum();
        let few = p.iter().any(|x| x.abs() > 1e20);
        let rest = p.iter().filter(|x| x.abs() <= 1e20).map(|x| f64::from(*x)).sum::<f64>();
        if few { big as f32 } else { rest as f32 }
    };
    assert_eq!(order(&at_once), "all 64 at once");

    let accumulator = |sum: &dyn Fn(&[f32]) -> f32| reads(summed(sum), "product.accumulator");
    assert_eq!(accumulator(&chain), ("24 bits, nearest_even".to_owned(), None));
    let large = reads(summed(chain), "product.f32 large");
    assert_eq!(large, ("not measured".to_owned(), None));
    // Nothing is said in silence.
    assert_eq!(accumulator(&at_once), ("not measured".to_owned(), None));
    let wide = |p: &[f32]| p.iter().fold(0.0_f64, |s, x| s + f64::from(*x)) as f32;
    let backwards = |p: &[f32]| p.iter().rev().fold(0.0_f32, |s, x| s + x);
    assert_eq!(accumulator(&backwards), ("24 bits, nearest_even".to_owned(), None));
    assert_eq!(accumulator(&wide), ("53 bits, nearest_even".to_owned(), None));
    let cut = |x: f32, bits: u32| f32::from_bits(x.to_bits() & (u32::MAX << (24 - bits)));
    let narrow = |p: &[f32]| p.iter().fold(0.0_f32, |s, x| cut(s + x, 12));
    assert_eq!(
        accumulator(&narrow),
        ("12 bits, toward_zero".to_owned(), Some("probe.accumulator"))
    );
    let wrong = |p: &[f32]| p.iter().sum::<f32>() + 0.5;
    assert_eq!(reads(summed(wrong), "product.order").1, Some("probe.unexplained"));
}

#[test]
fn the_kernels_add_in_the_order_that_they_state() {
    let kernel = kernel("gemm_bf16").unwrap();
    let backend = super::compile(kernel.source, Mode::Plain, Matrix::None);
    let product = |x: &Tensor, w: &Tensor| -> Result<Tensor, Error> {
        let case = Case {
            op: "matmul".into(),
            params: serde_json::json!({}),
            dtype: Dtype::Bf16,
            tensors: [("x".into(), x.clone()), ("weight".into(), w.clone())].into(),
            outputs: BTreeMap::new(),
            family: "probe".into(),
            seed: 0,
        };
        let launched = (kernel.run)(&backend, &case, &LaunchOptions::default())?;
        Ok(launched.output().clone())
    };
    let found = by_name(gemm::measure("gemm_bf16", Dtype::Bf16, None, &product).unwrap());
    assert_eq!(found["gemm_bf16.order"], ("one after another".to_owned(), None));
    assert_eq!(found["gemm_bf16.accumulator"].0, "24 bits, nearest_even");
}

#[test]
fn a_probe_without_its_launcher_or_for_other_shapes_is_an_error() {
    let compiler = Compiler::find().unwrap().with_cache(env!("CARGO_TARGET_TMPDIR"));
    let canary = compiler.compile(probe("canary").unwrap().source, Mode::Plain).unwrap();
    let backend: Backend = canary.into();
    let options = LaunchOptions::default();
    let other = (probe("vector").unwrap().measure)(&backend, &options);
    assert!(matches!(other, Err(Error::NoLauncher { .. })), "{other:?}");
    let x = Tensor::from_f64(Dtype::F32, &[2, 3], &[0.0; 6]);
    let w = Tensor::from_f64(Dtype::F32, &[2, 4], &[0.0; 8]);
    assert!(matches!(sgemm(&backend, &x, &w, &options), Err(Error::Argument { .. })));
}
