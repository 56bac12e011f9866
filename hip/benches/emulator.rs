//! What the emulator's parts cost, as multiples of an empty thread of the same run.
//!
//!     cargo bench -p assay-hip --bench emulator
//!
//! Times are CPU times of the process, which other work on the machine touches little; what is printed as
//! a multiple is each bench's fastest sample over the fastest of the empty thread, `not measured` where a
//! filter leaves one of them out. The last line is JSON: the multiples, the targets and the compiler.
//! `$CXX` chooses the compiler of the kernels.
#![expect(unsafe_code, reason = "calls a launcher through its C signature, and reads a clock")]
#![expect(clippy::print_stdout, reason = "the summary is the point")]

use std::ffi::{c_int, c_void};
use std::time::Duration;

use assay_hip::emu::{BufferSpec, Compiler, Device, Mode, Module, Role};
use assay_hip::kernels::{attention_prefill_d128, gemm_bf16};
use assay_hip::{Backend, LaunchOptions, kernel};
use assay_reference::{Dtype, Tensor};
use criterion::{Criterion, SamplingMode};

/// Threads of a block, blocks of a launch, operations of a thread.
const THREADS: u32 = 256;
const BLOCKS: u32 = 64;
const TIMES: u32 = 32;

/// `launch(what, blocks, threads, times)`: empty threads, barriers or shuffles.
const SOURCE: &str = r#"
#include <hip/hip_runtime.h>
__global__ void empty_kernel() {}
__global__ void barrier_kernel(int times) {
    for (int i = 0; i < times; ++i) __syncthreads();
}
__global__ void shuffle_kernel(int times, float* out) {
    float value = threadIdx.x;
    for (int i = 0; i < times; ++i) value = __shfl_xor(value, 1 + (i & 31));
    if (value < 0.0f) *out = value;
}
extern "C" int launch(int what, int blocks, int threads, int times, void* out) {
    const dim3 grid(blocks), block(threads);
    if (what == 0) hipLaunchKernelGGL(empty_kernel, grid, block, 0, nullptr);
    if (what == 1) hipLaunchKernelGGL(barrier_kernel, grid, block, 0, nullptr, times);
    if (what == 2)
        hipLaunchKernelGGL(shuffle_kernel, grid, block, 0, nullptr, times, static_cast<float*>(out));
    return hipGetLastError();
}
"#;

type Launcher = unsafe extern "C" fn(c_int, c_int, c_int, c_int, *mut c_void) -> c_int;

/// (bench, target in empty threads with g++, with clang).
const TARGETS: [(&str, f64, f64); 4] = [
    ("barrier", 0.6, 0.6),
    ("shuffle", 1.5, 1.5),
    ("gemm 256x256x1024", 2.5e6, 8.5e5),
    ("flash 4 heads x 256 tokens", 4.6e6, 4.6e6),
];

/// CPU time of the process so far.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn options() -> LaunchOptions {
    LaunchOptions { deadline: Duration::from_secs(600), ..LaunchOptions::default() }
}

/// One launch of a part of [`SOURCE`].
fn launch(module: &Module, what: c_int, times: u32) {
    let address = module.launcher("launch").expect("it is defined");
    // SAFETY: the source defines it with this signature.
    let launcher: Launcher = unsafe { std::mem::transmute(address) };
    let mut device = Device::new(assay_hip::emu::Placement::End).expect("address space");
    let spec = BufferSpec { name: "out", role: Role::InOut, bytes: 4, element: 4, shape: &[] };
    let out = device.alloc(spec).expect("memory");
    let pointer = device.pointer(out).cast();
    let [blocks, threads, times] = [BLOCKS, THREADS, times].map(u32::cast_signed);
    // SAFETY: the pointer is the device's buffer.
    let call = || unsafe { launcher(what, blocks, threads, times, pointer) };
    let report = module.run(&mut device, &options(), call).expect("memory");
    assert!(report.is_clean(), "{report:?}");
}

/// How many empty threads' times a time is; none where a filter left one of them out.
fn multiple_of(time: Option<f64>, empty: Option<f64>) -> Option<f64> {
    Some(time? / empty.filter(|&e| e > 0.0)?)
}

/// Benches `run`, and its fastest sample in seconds; none where a filter leaves it out.
fn fastest(criterion: &mut Criterion, name: &str, mut run: impl FnMut()) -> Option<f64> {
    let mut best: Option<f64> = None;
    let mut group = criterion.benchmark_group("emulator");
    group.sampling_mode(SamplingMode::Flat).sample_size(20);
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2));
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|times| {
            let mut sum = Duration::ZERO;
            for _ in 0..times {
                let start = cpu_time();
                run();
                let took = cpu_time().saturating_sub(start);
                let took_seconds = took.as_secs_f64();
                best = Some(best.map_or(took_seconds, |b| b.min(took_seconds)));
                sum += took;
            }
            sum
        });
    });
    group.finish();
    best
}

fn bf16(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f64> = (0..n).map(|i| (i * 37 % 64) as f64 / 64.0 - 0.5).collect();
    Tensor::from_f64(Dtype::Bf16, shape, &values)
}

fn kernel_backend(compiler: &Compiler, name: &str) -> Backend {
    let source = kernel(name).expect("a kernel").source;
    compiler.compile(source, Mode::Plain).expect("it compiles").into()
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args().without_plots();
    let compiler = Compiler::find().expect("a C++ compiler");
    let module = compiler.compile(SOURCE, Mode::Plain).expect("it compiles");
    let threads = f64::from(BLOCKS * THREADS);

    let empty =
        fastest(&mut criterion, "empty thread", || launch(&module, 0, 0)).map(|t| t / threads);
    // Without the threads themselves.
    let none = fastest(&mut criterion, "threads of no barrier", || launch(&module, 1, 0));
    let each = |time: Option<f64>| Some(((time? - none?) / threads / f64::from(TIMES)).max(0.0));
    let barrier = each(fastest(&mut criterion, "barrier", || launch(&module, 1, TIMES)));
    let shuffle = each(fastest(&mut criterion, "shuffle", || launch(&module, 2, TIMES)));

    let (x, weight) = (bf16(&[256, 1024]), bf16(&[256, 1024]));
    let args = gemm_bf16::Args { x: &x, weight: &weight, bias: None };
    let backend = kernel_backend(&compiler, "gemm_bf16");
    let gemm = fastest(&mut criterion, TARGETS[2].0, || {
        let launched = gemm_bf16::launch(&backend, &args, &options()).expect("it runs");
        assert!(launched.report.is_clean());
    });

    let heads = bf16(&[256, 4, 128]);
    let args = attention_prefill_d128::Args { q: &heads, k: &heads, v: &heads, scale: 0.088 };
    let backend = kernel_backend(&compiler, "attention_prefill_d128");
    let flash = fastest(&mut criterion, TARGETS[3].0, || {
        let launched =
            attention_prefill_d128::launch(&backend, &args, &options()).expect("it runs");
        assert!(launched.report.is_clean());
    });
    criterion.final_summary();

    let clang = compiler.version().contains("clang");
    let mut summary = serde_json::Map::new();
    summary.insert("compiler".into(), compiler.version().into());
    println!("\nas multiples of an empty thread, kernels by {}:", compiler.version());
    for ((name, gcc, by_clang), time) in TARGETS.into_iter().zip([barrier, shuffle, gemm, flash]) {
        let target = if clang { by_clang } else { gcc };
        let multiple = multiple_of(time, empty);
        let met = multiple.map(|m| m <= target);
        match multiple {
            Some(m) => {
                let verdict = if m <= target { "met" } else { "missed" };
                println!("{name:<28} {m:>12.3} (target {target:.3e}: {verdict})");
            }
            None => println!("{name:<28} {:>12} (target {target:.3e})", "not measured"),
        }
        let entry = serde_json::json!({ "multiple": multiple, "target": target, "met": met });
        summary.insert(name.into(), entry);
    }
    println!("{}", serde_json::Value::Object(summary));
}
