//! The emulator computes what a wave64 device would.

mod common;

use assay_hip::emu::Mode::{Checked, Plain};
use assay_hip::emu::{Compiler, Mode, Role};
use assay_hip::{Error, LaunchOptions};
use common::Probe;

#[test]
fn shuffles_respect_their_width() {
    let probe = Probe { output_elements: 12 * 64, ..Probe::new("shuffles", Plain) };
    let (_, out) = probe.run_ints();
    let expected: [fn(i32) -> i32; 12] = [
        |_| 5,
        |_| 37,
        |lane| if lane < 32 { 5 } else { 37 },
        |lane| lane ^ 32,
        |lane| lane ^ 16,
        |lane| if lane < 32 { lane } else { lane ^ 32 },
        |lane| if lane + 16 < 64 { lane + 16 } else { lane },
        |lane| if lane % 32 + 16 < 32 { lane + 16 } else { lane },
        |lane| if lane < 3 { lane } else { lane - 3 },
        |lane| if lane % 8 < 3 { lane } else { lane - 3 },
        |_| 127,
        |lane| lane,
    ];
    for (row, expected) in expected.iter().enumerate() {
        for lane in 0..64 {
            assert_eq!(out[row * 64 + lane as usize], expected(lane), "row {row} lane {lane}");
        }
    }
}

#[test]
fn votes_count_the_active_lanes_of_their_own_wave() {
    let (_, out) = Probe { output_elements: 288, ..Probe::new("votes", Plain) }.run_ints();
    for lane in 0..96_usize {
        assert_eq!(out[lane], 10, "ballot, lane {lane}");
        let high = if lane % 2 == 1 && lane < 64 { 0xaaaa_aaaa_u32 } else { 0 };
        assert_eq!(out[96 + lane] as u32, high, "odd lanes, lane {lane}");
        assert_eq!(out[192 + lane], if lane < 64 { 0 } else { 3 }, "any and all, lane {lane}");
    }
}

#[test]
fn atomics_add_up() {
    for (mode, threads) in [(Plain, 1), (Plain, 2), (Checked, 2)] {
        let mut probe = Probe { role: Role::InOut, ..Probe::new("atomics", mode) };
        probe.options.threads = threads;
        let (report, out) = probe.run_ints();
        assert!(report.is_clean());
        let block_sum = 127 * 128 / 2;
        assert_eq!(&out[..3], &[8 * block_sum, block_sum + 7, 0]);
        assert_eq!(f32::from_bits(out[3] as u32), 8.0 * 64.0);
        assert_eq!(&out[4..6], &[42, 5]);
    }
}

#[test]
fn block_reduction_by_shuffle_and_lds() {
    let (_, out) = Probe::new("clean_reduction", Plain).run_ints();
    for (index, &sum) in out.iter().enumerate() {
        assert_eq!(sum, 127 * 128 + (index / 32) as i32);
    }
}

#[test]
fn same_bits_for_any_number_of_os_threads_and_any_thread_order() {
    for mode in [Plain, Checked] {
        let mut probe = Probe::new("clean_reduction", mode);
        let (_, expected) = probe.run();
        for (seed, threads) in [(0, 1), (1, 2), (2, 3), (99, 2)] {
            probe.options = LaunchOptions { seed, threads, ..LaunchOptions::default() };
            assert_eq!(probe.run().1, expected, "seed {seed}, {threads} threads");
        }
    }
}

const ARGUMENTS: usize = 128;

/// From -110 to 110, past the range in which exp is finite and not zero.
fn arguments() -> Vec<f32> {
    (0..ARGUMENTS).map(|i| (i as f32 - 64.0) * 1.7183).collect()
}

#[test]
fn transcendental_functions_are_correctly_rounded() {
    let x = arguments();
    let probe =
        Probe { output_elements: 4 * ARGUMENTS, ..Probe::new("math", Plain) }.with_floats(&x);
    let y = probe.run_floats();
    for (i, &x) in x.iter().enumerate() {
        let exact = f64::from(x);
        assert_eq!(y[i].to_bits(), (libm::exp(exact) as f32).to_bits(), "expf({x})");
        assert_eq!(y[ARGUMENTS + i].to_bits(), (libm::exp2(exact) as f32).to_bits(), "exp2f({x})");
        if x > 0.0 {
            let rsqrt = (1.0 / exact.sqrt()) as f32;
            assert_eq!(y[2 * ARGUMENTS + i].to_bits(), rsqrt.to_bits(), "rsqrtf({x})");
        }
    }
}

#[test]
fn perturbation_moves_results_by_exactly_the_given_ulps() {
    let x = arguments();
    let mut probe =
        Probe { output_elements: 4 * ARGUMENTS, ..Probe::new("math", Plain) }.with_floats(&x);
    let exact = probe.run_floats();
    for ulps in [1, 2] {
        probe.options.ulps = ulps;
        let moved = probe.run_floats();
        let mut directions = [0, 0];
        for (a, b) in exact[..ARGUMENTS].iter().zip(&moved) {
            let change = i64::from(b.to_bits()) - i64::from(a.to_bits());
            if a.is_normal() && *a != 1.0 {
                assert_eq!(change.unsigned_abs(), u64::from(ulps), "{a}");
                directions[usize::from(change > 0)] += 1;
            }
        }
        assert!(directions[0] > 20 && directions[1] > 20, "{directions:?}");
        assert_eq!(moved[64], 1.0, "exp(0) is exact everywhere");
    }
}

#[test]
fn subnormals_are_kept_or_flushed_as_asked() {
    let x = vec![0.25_f32; ARGUMENTS];
    let mut probe =
        Probe { output_elements: 4 * ARGUMENTS, ..Probe::new("math", Plain) }.with_floats(&x);
    assert!(probe.run_floats()[3 * ARGUMENTS].is_subnormal());
    probe.options.ftz = true;
    assert_eq!(probe.run_floats()[3 * ARGUMENTS].to_bits(), 0);
}

#[test]
fn narrow_floats_round_to_nearest_even_and_keep_nan() {
    let mut x: Vec<f32> = (0..=u16::MAX).map(|b| f32::from_bits(u32::from(b) << 16)).collect();
    // Ties and near ties of f16, normal and subnormal, and of bf16.
    for step in 0..40_000_u32 {
        x.push(f32::from_bits(0x3280_0000 + step * 0x1000));
        x.push(f32::from_bits(0x477f_0000 + step));
        x.push(f32::from_bits(0x3f80_0000 + step * 0x800 + step % 3));
    }
    x.push(f32::from_bits(0x7f80_0001));
    let n = x.len();
    let probe = Probe { n: n as i32, output_elements: 2 * n, ..Probe::new("conversions", Plain) };
    let y = probe.with_floats(&x).run_floats();
    for (i, &x) in x.iter().enumerate() {
        let (bf16, f16) = (half::bf16::from_f32(x).to_f32(), half::f16::from_f32(x).to_f32());
        if x.is_nan() {
            assert!(y[i].is_nan() && y[n + i].is_nan(), "NaN {:#x}", x.to_bits());
        } else {
            assert_eq!(y[i].to_bits(), bf16.to_bits(), "bf16 of {x:e}");
            assert_eq!(y[n + i].to_bits(), f16.to_bits(), "f16 of {x:e}");
        }
    }
}

#[test]
fn a_compile_error_shows_what_the_compiler_said() {
    let compiler = Compiler::find().unwrap().with_cache(env!("CARGO_TARGET_TMPDIR"));
    let source = "#include <hip/hip_runtime.h>\nint broken = undeclared_name;\n";
    let Err(Error::Compile { diagnostics, .. }) = compiler.compile(source, Mode::Plain) else {
        panic!("the source must not compile");
    };
    assert!(diagnostics.contains("kernel.hip:2") && diagnostics.contains("undeclared_name"));
    let unpinned = "#include <hip/hip_runtime.h>\nfloat f(float x) { return sinf(x); }\n";
    assert!(matches!(compiler.compile(unpinned, Mode::Plain), Err(Error::Compile { .. })));
}
