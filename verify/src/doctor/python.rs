//! The Python that serves: whether numpy and torch fit one another, whether its process flushes
//! subnormals, and what its Triton compiles for.

use std::collections::BTreeSet;

use super::{Check, Machine, Tool};

/// Prints `kind|text` lines for numpy, torch and the floating-point environment after importing what
/// a service imports.
const SCRIPT: &str = r"
import warnings, sys
def say(kind, text): print(kind + '|' + ' '.join(str(text).split()))
try:
    import numpy
    say('numpy', numpy.__version__)
except Exception as e:
    say('no_numpy', repr(e)); sys.exit(0)
try:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        import torch
        say('torch', torch.__version__)
        try:
            torch.from_numpy(numpy.zeros(2, dtype=numpy.float32)).numpy()
            say('abi', 'ok')
        except Exception as e:
            say('no_abi', repr(e))
    for w in caught:
        if 'NumPy' in str(w.message): say('abi_warning', str(w.message)[:200])
except Exception as e:
    say('no_torch', repr(e))
for name in sys.argv[1:]:
    try: __import__(name); say('imported', name)
    except Exception as e: say('not_imported', name)
tiny = numpy.float32(1e-30)
kept = float((numpy.full(4, tiny, dtype=numpy.float32) * numpy.float32(1e-10))[0]) != 0.0
say('subnormals', 'kept' if kept else 'flushed')
";

/// Compiles one small kernel for an architecture, without a device.
const TRITON: &str = r"
import sys, tempfile, importlib.util
try:
    import triton
except Exception as e:
    print('none|' + repr(e)); sys.exit(0)
text = '''import triton, triton.language as tl
@triton.jit
def k(x, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(x + i, tl.load(x + i) + 1.0)
'''
folder = tempfile.TemporaryDirectory()
path = folder.name + '/k.py'
with open(path, 'w') as f: f.write(text)
spec = importlib.util.spec_from_file_location('k', path)
m = importlib.util.module_from_spec(spec); spec.loader.exec_module(m)
try:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
except ImportError as e:
    print('unknown|' + repr(e)); sys.exit(0)
for arch in sys.argv[1:]:
    try:
        try: source = ASTSource(fn=m.k, signature={'x': '*fp32', 'n': 'constexpr'}, constexprs={'n': 64})
        except TypeError: source = ASTSource(fn=m.k, signature={'x': '*fp32'}, constants={'n': 64})
        triton.compile(source, target=GPUTarget('hip', arch, 64))
        print('ok|' + arch)
    except Exception as e:
        print('bad|' + arch + ' ' + ' '.join(repr(e).split())[:300])
";

/// Packages of serving stacks whose import changes the floating-point environment.
const PACKAGES: &[&str] = &["scipy", "vllm", "sglang"];

pub(super) fn checks(machine: &Machine, archs: &BTreeSet<String>) -> Vec<Check> {
    let mut args = vec!["-c", SCRIPT];
    args.extend(PACKAGES);
    let said = machine.tool(&machine.python, &args);
    let Some(out) = said.output() else {
        let found = format!("{} {}", machine.python, said.failure());
        return vec![match said {
            Tool::Missing => Check::absent("python", found),
            _ => Check::bad(
                "python",
                found,
                "importing numpy, torch, scipy, vllm and sglang in one process ends so: import them one by one",
            ),
        }];
    };
    let get = |kind: &str| {
        out.lines().find_map(|l| l.strip_prefix(kind)?.strip_prefix('|')).map(str::to_owned)
    };
    let mut checks = vec![packages(&get), environment(&get, out)];
    checks.extend(triton(machine, archs));
    checks
}

fn packages(get: &dyn Fn(&str) -> Option<String>) -> Check {
    const NAME: &str = "python.numpy";
    let Some(numpy) = get("numpy") else {
        return Check::absent(NAME, "this Python has no numpy; --python names the one that serves");
    };
    let Some(torch) = get("torch") else {
        let why = get("no_torch").unwrap_or_default();
        return Check::absent(NAME, format!("numpy {numpy}, no torch: {why}"));
    };
    let advice = "install the numpy that this torch was built against (`numpy<2` for most DTK wheels): tensors \
                  do not cross between the two, and what falls back copies or fails late";
    if let Some(why) = get("no_abi") {
        return Check::bad(NAME, format!("torch {torch} cannot use numpy {numpy}: {why}"), advice);
    }
    if let Some(why) = get("abi_warning") {
        return Check::bad(NAME, format!("torch {torch} with numpy {numpy}: {why}"), advice);
    }
    Check::ok(NAME, format!("torch {torch} and numpy {numpy} share arrays"))
}

fn environment(get: &dyn Fn(&str) -> Option<String>, out: &str) -> Check {
    const NAME: &str = "python.subnormals";
    let mut imported = vec!["numpy"];
    imported.extend(get("torch").map(|_| "torch"));
    imported.extend(out.lines().filter_map(|l| l.strip_prefix("imported|")));
    let after = imported.join(", ");
    match get("subnormals").as_deref() {
        Some("kept") => Check::ok(NAME, format!("kept after importing {after}")),
        Some(_) => Check::warning(
            NAME,
            format!("flushed to zero after importing {after} (MXCSR FTZ/DAZ)"),
            "a library built with -ffast-math sets this for the whole process: references computed on its \
             CPU are not IEEE arithmetic; compute them in a process of their own",
        ),
        None => Check::absent(NAME, "this Python has no numpy"),
    }
}

fn triton(machine: &Machine, archs: &BTreeSet<String>) -> Vec<Check> {
    const NAME: &str = "triton.arch";
    if archs.is_empty() {
        return vec![Check::absent(NAME, "no device, so no arch to compile for")];
    }
    let mut args = vec!["-c", TRITON];
    args.extend(archs.iter().map(String::as_str));
    let said = machine.tool(&machine.python, &args);
    let Some(out) = said.output() else {
        let found = format!("a kernel cannot be compiled: {}", said.failure());
        return vec![Check::bad(NAME, found, "run the engine with its Triton kernels off")];
    };
    let one = |line: &str| {
        let (kind, text) = line.split_once('|')?;
        Some(match kind {
            "none" => Check::absent(NAME, format!("this Python has no Triton: {text}")),
            "unknown" => {
                Check::absent(NAME, format!("this Triton cannot compile without a device: {text}"))
            }
            "ok" => Check::ok(NAME, format!("Triton compiles for {text}")),
            "bad" => Check::bad(
                NAME,
                format!("Triton does not compile for {text}"),
                "install DTK's own Triton wheel: upstream's does not know this device",
            ),
            _ => return None,
        })
    };
    out.lines().filter_map(one).collect()
}
