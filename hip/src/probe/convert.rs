//! Conversions from f32 to narrower formats: how they round, what becomes of subnormals, of what is too
//! large, and of NaN.

use assay_reference::dtype::pow2;

use super::exact::{
    BF16, E4M3, E4M3_FNUZ, E5M2, E5M2_FNUZ, Exact, F16, Format, Round, Specials, same,
};
use super::{Reading, findings, words};
use crate::backend::Backend;
use crate::error::Error;
use crate::options::LaunchOptions;

/// What a conversion may give, by name.
type Formats = &'static [(&'static str, Format)];

/// What becomes of numbers that are too large, and of infinity: `assay_bf16.h` rounds to infinity.
const INFINITE: &str = "becomes infinity";
/// The same: `assay_fp8.h` promises the largest finite number.
const SATURATED: &str = "saturates, infinity too";

/// Name, number in `probes/convert.hip`, and, where kernels rely on it, what they assume of numbers that
/// are too large.
const CONVERSIONS: [(&str, i32, Formats, Option<&str>); 7] = [
    ("f32_to_bf16.own", 0, &[("bf16", BF16)], Some(INFINITE)),
    ("f32_to_f16.own", 1, &[("f16", F16)], Some(INFINITE)),
    ("f32_to_e4m3.own", 2, &[("ocp", E4M3), ("fnuz", E4M3_FNUZ)], Some(SATURATED)),
    ("f32_to_e5m2.own", 3, &[("ocp", E5M2), ("fnuz", E5M2_FNUZ)], Some(SATURATED)),
    ("f32_to_f16.unit", 4, &[("f16", F16)], None),
    ("f32_to_e4m3.unit", 5, &[("ocp", E4M3), ("fnuz", E4M3_FNUZ)], None),
    ("f32_to_e5m2.unit", 6, &[("ocp", E5M2), ("fnuz", E5M2_FNUZ)], None),
];

/// What a conversion that the target lacks gives.
const ABSENT: u32 = u32::MAX;

/// NaN with the quiet bit, signalling, with nothing but the last bit, and with all bits.
const NANS: [u32; 5] = [0x7fc0_0000, 0x7fa0_0000, 0x7f80_0001, 0x7fff_ffff, 0xffc0_0000];

/// Measures every conversion.
///
/// # Errors
/// When the backend cannot run the probe.
pub fn measure(backend: &Backend, options: &LaunchOptions) -> Result<Vec<Reading>, Error> {
    CONVERSIONS.iter().map(|conversion| one(backend, options, *conversion)).collect()
}

/// Of each exponent of the format: numbers of even and odd last place, ties above them, near ties.
fn ordinary(format: Format) -> Vec<f64> {
    let (mut out, ulps) = (vec![0.0], 1 << (format.bits - 1));
    // All exponents of small formats; the ends of large ones.
    let top = Exact::of(format.largest).round(format, Round::TowardZero);
    let exponents = (format.min_exp - 2..128).filter(|&e| {
        let near_end = e < format.min_exp + 3 || pow2(e + 3) > top;
        pow2(e) <= top && (near_end || e % 5 == 0 || format.bits < 8)
    });
    for e in exponents {
        let last_place = pow2(e.max(format.min_exp) - format.bits + 1);
        for step in [0, 1, 2, 3, ulps - 2, ulps - 1] {
            let x = pow2(e.max(format.min_exp)) * f64::from(i32::from(e >= format.min_exp))
                + last_place * f64::from(step);
            // Near ties are off by the last bit of an f32 of this size.
            let near = last_place * pow2(format.bits - 25).max(pow2(-10));
            for off in [0.0, 0.25, 0.5, 0.75].map(|part| part * last_place) {
                out.extend([x + off, x + off + near, (x + off - near).max(0.0)]);
            }
        }
    }
    let f32s: Vec<f64> =
        out.into_iter().filter(|&x| f64::from(x as f32) == x && x <= top).collect();
    f32s.iter().flat_map(|&x| [x, -x]).collect()
}

/// Finite numbers beyond every format's largest by more than half of its last place, then infinity.
fn too_large(format: Format) -> [f64; 3] {
    let beyond = format.largest + format.ulp(format.largest);
    if beyond * 2.0 < f64::from(f32::MAX) {
        [beyond, 2.0 * beyond, f64::INFINITY]
    } else {
        // Of f32's own range: what rounds up to 2^128.
        [f64::from(f32::MAX), f64::from(f32::MAX), f64::INFINITY]
    }
}

fn one(
    backend: &Backend,
    options: &LaunchOptions,
    (what, number, formats, relied_on): (&str, i32, Formats, Option<&str>),
) -> Result<Reading, Error> {
    let run = |codes: Vec<u32>| {
        let operands: Vec<[u32; 3]> = codes.into_iter().map(|code| [code, 0, 0]).collect();
        words::run(backend, options, "probe_convert", number, &operands)
    };
    let codes =
        |values: &[f64]| -> Vec<u32> { values.iter().map(|&x| (x as f32).to_bits()).collect() };
    // The narrowest range of the candidates: all agree on what is not too large.
    let inputs = ordinary(formats[formats.len() - 1].1);
    let given = run(codes(&inputs))?;
    if given.iter().all(|&word| word == ABSENT) {
        let meaning = "this target has no such instruction, or none that is known here";
        return Ok(Reading::new(what, "absent", meaning).over(&given));
    }
    let nans = run(NANS.to_vec())?;
    let candidates = formats.iter().flat_map(|&(name, format)| {
        let flushes = [false, true].into_iter();
        flushes.flat_map(move |flush| Round::ALL.map(|round| (name, format, round, flush)))
    });
    let found = candidates.into_iter().find(|&(_, format, round, flush)| {
        inputs.iter().zip(&given).all(|(&x, &code)| {
            let y = Exact::of(x).round(format, round);
            let y = if flush && format.is_subnormal(y) { 0.0_f64.copysign(y) } else { y };
            let unsigned = y == 0.0 && format.specials == Specials::MinusZero;
            fits(format, code) && same(format.decode(code), if unsigned { 0.0 } else { y })
        })
    });
    let mut all = given.clone();
    all.extend(&nans);
    let Some((name, format, round, flush)) = found else {
        return Ok(unexplained(what, formats[0].1, &inputs, &given).over(&all));
    };
    let large = run(codes(&too_large(format)))?;
    all.extend(&large);
    let [overflow, nan] = [read_overflow(format, &large), read_nan(format, &nans)];
    let encoding = if formats.len() > 1 { format!("{name}, ") } else { String::new() };
    let subnormals = if flush { "flushed" } else { "kept" };
    let reads = format!(
        "{encoding}{}, subnormals {subnormals}, too large {overflow}, NaN {nan}",
        round.name()
    );
    let rounds = round == Round::NearestEven && nan == "stays" && !flush;
    let good = rounds && relied_on.is_none_or(|expected| expected == overflow);
    let meaning = match (good, relied_on.is_some()) {
        (true, true) => "as kernels assume",
        (true, false) => {
            "could stand for the kernels' own conversion where range and encoding agree"
        }
        (false, _) if round == Round::TowardZero => {
            "truncates: every stored value leans to zero (`A004`, truncating_store)"
        }
        (false, _) if round == Round::NearestAway => "half up: ties lean away from zero",
        (false, _) if rounds => "what is too large becomes something else than kernels assume",
        (false, _) => "not what kernels assume: nearest even, subnormals kept, NaN stays",
    };
    let reading = Reading::new(what, reads, meaning).over(&all);
    Ok(if relied_on.is_some() && !good { reading.found(findings::ROUNDING) } else { reading })
}

/// Whether a word has no bits but the format's.
fn fits(format: Format, code: u32) -> bool {
    code >> (format.exponent_bits + format.bits as u32) == 0
}

fn read_overflow(format: Format, codes: &[u32]) -> &'static str {
    let values: Vec<f64> = codes.iter().map(|&code| format.decode(code)).collect();
    let (finite, infinite) = values.split_at(2);
    let all = |of: &[f64], test: &dyn Fn(f64) -> bool| of.iter().all(|&x| test(x));
    if all(&values, &|x| x.is_nan()) {
        "becomes NaN"
    } else if all(&values, &|x| x == format.largest) {
        SATURATED
    } else if all(finite, &|x| x == format.largest) {
        match infinite[0] {
            x if x.is_infinite() => "saturates, infinity stays",
            _ => "saturates, infinity becomes NaN",
        }
    } else if format.specials == Specials::Ieee && all(&values, &f64::is_infinite) {
        INFINITE
    } else {
        "in no known way"
    }
}

fn read_nan(format: Format, codes: &[u32]) -> &'static str {
    let values = || codes.iter().map(|&code| format.decode(code));
    if values().all(f64::is_nan) {
        "stays"
    } else if values().any(f64::is_infinite) {
        "becomes infinity"
    } else {
        "becomes a number"
    }
}

fn unexplained(what: &str, format: Format, inputs: &[f64], given: &[u32]) -> Reading {
    let right = |x: f64| Exact::of(x).round(format, Round::NearestEven);
    let first = inputs.iter().zip(given).find(|&(&x, &code)| !same(format.decode(code), right(x)));
    let text = first.map_or_else(String::new, |(&x, &code)| {
        let (y, nearest) = (format.decode(code), right(x));
        format!("{x:e} becomes {y:e} (code {code:#x}), and {nearest:e} is nearest; ")
    });
    let text = text + "no way of rounding explains all";
    Reading::new(what, "unexplained", text).found(findings::UNEXPLAINED)
}
