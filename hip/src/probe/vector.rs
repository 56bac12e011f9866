//! Single operations of the vector units: how they round, whether a multiply-add is fused, and what
//! becomes of subnormals.

use assay_reference::arith::math;

use super::exact::{Exact, F16, F32, F64, Format, Round, same};
use super::operands::{Op, ordinary, subnormal};
use super::{Reading, findings, words};
use crate::backend::Backend;
use crate::error::Error;
use crate::options::LaunchOptions;

/// An operation in a format: its name, the operation, its number in the source.
const F32_OPS: [(&str, Op, i32); 6] = [
    ("f32.add", Op::Add, 0),
    ("f32.mul", Op::Mul, 1),
    ("f32.fma", Op::Fma, 2),
    ("f32.mul_add", Op::MulAdd, 3),
    ("f32.div", Op::Div, 4),
    ("f32.sqrt", Op::Sqrt, 5),
];
const F16_OPS: [(&str, Op, i32); 3] =
    [("f16.add", Op::Add, 7), ("f16.mul", Op::Mul, 8), ("f16.fma", Op::Fma, 9)];
const EXP: i32 = 6;

/// How often an operation rounds on its way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Steps {
    /// Once, at its end.
    Once,
    /// A product first, then the sum.
    ProductFirst,
    /// To a wider format first: twice.
    ThroughWider,
}

/// What becomes of subnormal operands and results: whether each is flushed.
const SUBNORMALS: [(bool, bool, &str); 4] = [
    (false, false, "kept"),
    (true, true, "flushed"),
    (true, false, "flushed in operands"),
    (false, true, "flushed in results"),
];
/// What none of these explains.
const UNKNOWN: &str = "in no known way";

/// The result that a unit would give.
fn model(op: Op, format: Format, [a, b, c]: [f64; 3], round: Round, steps: Steps) -> f64 {
    let wider = if format == F32 { F64 } else { F32 };
    let (x, y, z) = (Exact::of(a), Exact::of(b), Exact::of(c));
    let exact = match op {
        Op::Add => x.add(y),
        Op::Mul => x.mul(y),
        Op::Div => x.div(y),
        Op::Sqrt => x.sqrt(),
        Op::Fma | Op::MulAdd if steps == Steps::ProductFirst => {
            Exact::of(x.mul(y).round(format, round)).add(z)
        }
        Op::Fma | Op::MulAdd => x.mul(y).add(z),
    };
    let y = match steps {
        Steps::ThroughWider => Exact::of(exact.round(wider, round)).round(format, round),
        _ => exact.round(format, round),
    };
    // A number and its negative add to -0 only where sums are rounded down.
    let is_sum = matches!(op, Op::Add | Op::Fma | Op::MulAdd);
    if y == 0.0 && is_sum && round == Round::Down { -0.0 } else { y }
}

/// The code of a number that the format has.
fn encode(format: Format, x: f64) -> u32 {
    if format == F32 {
        return (x as f32).to_bits();
    }
    let sign = u32::from(x.is_sign_negative()) << 15;
    // Positive codes are ordered as their values.
    let (mut low, mut high) = (0, 0x7c00);
    while low < high {
        let middle = (low + high) / 2;
        if format.decode(middle) < x.abs() { low = middle + 1 } else { high = middle }
    }
    sign | low
}

struct Measured {
    operands: Vec<[f64; 3]>,
    words: Vec<u32>,
    results: Vec<f64>,
}

fn run(
    backend: &Backend,
    options: &LaunchOptions,
    format: Format,
    number: i32,
    operands: Vec<[f64; 3]>,
) -> Result<Measured, Error> {
    let codes: Vec<[u32; 3]> = operands.iter().map(|o| o.map(|x| encode(format, x))).collect();
    let words = words::run(backend, options, "probe_vector", number, &codes)?;
    let results = words.iter().map(|&word| format.decode(word)).collect();
    Ok(Measured { operands, words, results })
}

/// Measures every operation.
///
/// # Errors
/// When the backend cannot run the probe.
pub fn measure(backend: &Backend, options: &LaunchOptions) -> Result<Vec<Reading>, Error> {
    let f32_ops = F32_OPS.iter().map(|op| (op, F32));
    let mut readings: Vec<Reading> = f32_ops
        .chain(F16_OPS.iter().map(|op| (op, F16)))
        .map(|(&(what, op, number), format)| {
            operation(backend, options, (what, op, number), format)
        })
        .collect::<Result<_, Error>>()?;
    readings.push(exponential(backend, options)?);
    Ok(readings)
}

fn operation(
    backend: &Backend,
    options: &LaunchOptions,
    (what, op, number): (&str, Op, i32),
    format: Format,
) -> Result<Reading, Error> {
    let normal = run(backend, options, format, number, ordinary(op, format))?;
    let low = run(backend, options, format, number, subnormal(op, format))?;
    let words: Vec<u32> = [&normal.words[..], &low.words].concat();
    let steps: &[Steps] = match op {
        Op::Fma | Op::MulAdd => &[Steps::Once, Steps::ProductFirst, Steps::ThroughWider],
        _ => &[Steps::Once],
    };
    let fits = |round: Round, steps: Steps| {
        let mut rows = normal.operands.iter().zip(&normal.results);
        rows.all(|(&o, &y)| same(model(op, format, o, round, steps), y))
    };
    let found = steps.iter().flat_map(|&s| Round::ALL.map(|r| (r, s))).find(|&(r, s)| fits(r, s));
    let subnormals = read_subnormals(op, format, &low);
    let Some((round, steps)) = found else {
        return Ok(inexact(what, op, format, &normal, subnormals).over(&words));
    };
    let fused = match (op, steps) {
        (Op::Fma | Op::MulAdd, Steps::Once) => "fused, ",
        (Op::Fma | Op::MulAdd, Steps::ProductFirst) => "product rounded first, ",
        (_, Steps::ThroughWider) => "rounded twice, ",
        _ => "",
    };
    let reads = format!("{fused}{}, subnormals {subnormals}", round.name());
    let relied_on = format == F32 && matches!(op, Op::Add | Op::Mul | Op::Fma);
    let wrong = round != Round::NearestEven || (op == Op::Fma && steps != Steps::Once);
    let reading = Reading::new(what, reads, meaning(op, steps, round, subnormals)).over(&words);
    Ok(if relied_on && wrong {
        reading.found(findings::ROUNDING)
    } else if subnormals == UNKNOWN {
        reading.found(findings::UNEXPLAINED)
    } else {
        reading
    })
}

fn meaning(op: Op, steps: Steps, round: Round, subnormals: &str) -> String {
    let mut out = match (op, steps) {
        _ if round != Round::NearestEven => "kernels assume nearest even: sums drift".to_owned(),
        (Op::MulAdd, Steps::Once) => {
            "a * b + c is contracted: write what must round twice as two statements".to_owned()
        }
        (Op::MulAdd, _) => {
            "a * b + c is not contracted: write fmaf where one rounding is meant".into()
        }
        (Op::Fma, Steps::Once) => "fmaf rounds once, as kernels assume".to_owned(),
        (Op::Fma, _) => "fmaf rounds twice: kernels assume once".to_owned(),
        _ => "correctly rounded".to_owned(),
    };
    if subnormals == UNKNOWN {
        out += "; subnormals are neither kept nor flushed";
    } else if subnormals != "kept" {
        out += "; small terms vanish (`assay check` tries that with subnormals flushed)";
    }
    out
}

fn read_subnormals(op: Op, format: Format, low: &Measured) -> &'static str {
    let flush =
        |on: bool, x: f64| if on && format.is_subnormal(x) { 0.0_f64.copysign(x) } else { x };
    let explains = |operands: bool, results: bool| {
        low.operands.iter().zip(&low.results).all(|(o, &y)| {
            let o = o.map(|x| flush(operands, x));
            let exact = model(op, format, o, Round::NearestEven, Steps::Once);
            same(flush(results, exact), y)
        })
    };
    let found = SUBNORMALS.iter().find(|&&(operands, results, _)| explains(operands, results));
    found.map_or(UNKNOWN, |&(_, _, name)| name)
}

/// A reading for results that are not correctly rounded: how far off they are.
fn inexact(what: &str, op: Op, format: Format, m: &Measured, subnormals: &str) -> Reading {
    let error = |o: &[f64; 3], y: f64| {
        // Fifty-three bits stand for the exact result here.
        let exact = model(op, F64, *o, Round::NearestEven, Steps::Once);
        ((y - exact) / format.ulp(exact)).abs()
    };
    let mut rows = m.operands.iter().zip(&m.results);
    let worst = rows.clone().map(|(o, &y)| error(o, y)).fold(0.0_f64, |worst, e| {
        if e.is_nan() || worst.is_nan() { f64::NAN } else { worst.max(e) }
    });
    // Approximate quotients and roots are a compiler's choice; 3 ulp is what OpenCL asks of them.
    if matches!(op, Op::Div | Op::Sqrt) && worst <= 3.0 {
        let reads = format!("within {} ulp, subnormals {subnormals}", worst.ceil().max(1.0));
        let meaning = "not correctly rounded: an approximate instruction";
        let reading = Reading::new(what, reads, meaning);
        let unknown = subnormals == UNKNOWN;
        return if unknown { reading.found(findings::UNEXPLAINED) } else { reading };
    }
    let differs = |(o, y): &(&[f64; 3], &f64)| {
        !same(model(op, format, **o, Round::NearestEven, Steps::Once), **y)
    };
    let first = rows.find(differs);
    let example = first.map_or(String::new(), |([a, b, c], y)| {
        let right = model(op, format, [*a, *b, *c], Round::NearestEven, Steps::Once);
        format!("a = {a:e}, b = {b:e}, c = {c:e} gives {y:e}, and {right:e} is nearest; ")
    });
    let text = format!("{example}off by up to {worst} ulp, and no way of rounding explains all");
    Reading::new(what, "unexplained", text).found(findings::UNEXPLAINED)
}

/// How far expf is off, in units in the last place.
fn exponential(backend: &Backend, options: &LaunchOptions) -> Result<Reading, Error> {
    let arguments: Vec<[f64; 3]> =
        (0..1024).map(|i| [f64::from((f64::from(i) * 0.1640 - 84.0) as f32), 0.0, 0.0]).collect();
    let m = run(backend, options, F32, EXP, arguments)?;
    let errors = m.operands.iter().zip(&m.results).map(|(o, y)| {
        let exact = math::exp(o[0]);
        let error = ((y - exact) / F32.ulp(exact)).abs();
        // No argument here has a NaN or an infinity for its result.
        if error.is_nan() { f64::INFINITY } else { error }
    });
    let bound = errors.fold(1.0, |worst: f64, e| worst.max(e.ceil()));
    if bound.is_infinite() {
        let meaning = "NaN or infinity where the result is an ordinary number";
        let reading = Reading::new("f32.exp", "unexplained", meaning);
        return Ok(reading.found(findings::UNEXPLAINED).over(&m.words));
    }
    let (reads, meaning) = (
        format!("within {bound} ulp"),
        if bound <= 2.0 {
            "within the 1 and 2 ulp by which `assay check` moves it on the emulator"
        } else {
            "more than the 2 ulp that `assay check` tries on the emulator: trust device runs only"
        },
    );
    let reading = Reading::new("f32.exp", reads, meaning).over(&m.words);
    // The widest bound of a device library: OpenCL asks for 3 ulp, its native functions for nothing.
    Ok(if bound <= 64.0 { reading } else { reading.found(findings::UNEXPLAINED) })
}
