//! Variants: setups and the edits that make conventions and faults of them.

use std::fmt;
use std::sync::Arc;

use super::fit::stored_gains;
use super::{Basis, Op, Out, Tensors, Tile};
use crate::dtype::{Dtype, Mode, Rounding, pow2};
use crate::policy::{At, Policy, Transform};
use crate::tensor::Tensor;

/// Everything that an evaluation depends on.
#[derive(Debug)]
pub struct Setup<O: Op> {
    /// Shapes, flags, semantic knobs.
    pub params: O::Params,
    /// Accumulator and transforms.
    pub policy: Policy,
    /// The case's tensors.
    pub tensors: Tensors,
}

impl<O: Op> Clone for Setup<O> {
    fn clone(&self) -> Self {
        Setup {
            params: self.params.clone(),
            policy: self.policy.clone(),
            tensors: self.tensors.clone(),
        }
    }
}

impl<O: Op> Setup<O> {
    /// Evaluates a tile in the default floating-point environment.
    pub fn eval<R: Basis>(&self, tile: &Tile) -> Vec<Out<R>> {
        O::evaluate(self, tile)
    }

    /// Whether another setup is this one: the same params and policy, on the very same tensors.
    pub fn is_same(&self, other: &Self) -> bool {
        let tensors = self.tensors.iter().zip(&other.tensors);
        self.tensors.len() == other.tensors.len()
            && tensors.into_iter().all(|(a, b)| a.0 == b.0 && a.1.shares(b.1))
            && self.policy == other.policy
            && self.params == other.params
    }
}

/// A change of a setup.
pub type Edit<O> = Arc<dyn Fn(&mut Setup<O>) + Send + Sync>;

/// Whose conventions are legitimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A device kernel: f32 inside, as its contract claims.
    Kernel,
    /// A framework's eager forward, which stores a tensor after every elementary operation.
    Framework,
}

/// One value of a knob.
pub struct Choice<O: Op> {
    /// Value as printed.
    pub value: &'static str,
    /// Legitimate only in a framework's eager forward (for a kernel it is at best a fault).
    pub framework_only: bool,
    /// Few implementations do it: tried when no common choice explains the output.
    pub rare: bool,
    /// How to get there from the default.
    pub edit: Edit<O>,
}

/// A legitimate difference between implementations.
pub struct Knob<O: Op> {
    /// Name as printed.
    pub name: &'static str,
    /// The default first.
    pub choices: Vec<Choice<O>>,
}

impl<O: Op> Knob<O> {
    /// A knob whose first choice changes nothing.
    pub fn new(name: &'static str, default: &'static str) -> Self {
        let edit: Edit<O> = Arc::new(|_| {});
        let first = Choice { value: default, framework_only: false, rare: false, edit };
        Knob { name, choices: vec![first] }
    }

    /// Adds a choice that is legitimate anywhere.
    pub fn or(
        self,
        value: &'static str,
        edit: impl Fn(&mut Setup<O>) + Send + Sync + 'static,
    ) -> Self {
        self.choice(value, false, edit)
    }

    /// Adds a choice that is legitimate anywhere but that few implementations make.
    pub fn or_rarely(
        self,
        value: &'static str,
        edit: impl Fn(&mut Setup<O>) + Send + Sync + 'static,
    ) -> Self {
        let mut knob = self.choice(value, false, edit);
        knob.choices.last_mut().expect("just added").rare = true;
        knob
    }

    /// Adds a choice that is legitimate in a framework's eager forward only.
    pub fn or_eager(
        self,
        value: &'static str,
        edit: impl Fn(&mut Setup<O>) + Send + Sync + 'static,
    ) -> Self {
        self.choice(value, true, edit)
    }

    fn choice(
        mut self,
        value: &'static str,
        framework_only: bool,
        edit: impl Fn(&mut Setup<O>) + Send + Sync + 'static,
    ) -> Self {
        self.choices.push(Choice { value, framework_only, rare: false, edit: Arc::new(edit) });
        self
    }
}

impl<O: Op> fmt::Debug for Knob<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values: Vec<_> = self.choices.iter().map(|c| c.value).collect();
        write!(f, "{}: {}", self.name, values.join(" | "))
    }
}

/// A wrong variant.
pub struct Fault<O: Op> {
    /// Stable finding code: `A141`.
    pub code: &'static str,
    /// Name within the op: `kv_head_modulo`. Faults that differ in a parameter share it.
    pub slug: &'static str,
    /// Tells faults of one slug apart, the same in every case: `tile 32`. May be empty.
    pub key: String,
    /// What is wrong, in one sentence with the parameter's value.
    pub detail: String,
    /// How to get there from a legitimate setup.
    pub edit: Edit<O>,
}

impl<O: Op> Clone for Fault<O> {
    fn clone(&self) -> Self {
        Fault {
            code: self.code,
            slug: self.slug,
            key: self.key.clone(),
            detail: self.detail.clone(),
            edit: self.edit.clone(),
        }
    }
}

impl<O: Op> Fault<O> {
    /// A fault.
    pub fn new(
        code: &'static str,
        slug: &'static str,
        detail: impl Into<String>,
        edit: impl Fn(&mut Setup<O>) + Send + Sync + 'static,
    ) -> Self {
        Fault { code, slug, key: String::new(), detail: detail.into(), edit: Arc::new(edit) }
    }

    /// The same fault with a key.
    pub fn keyed(self, key: impl Into<String>) -> Self {
        Fault { key: key.into(), ..self }
    }

    /// `op.slug`.
    pub fn name(&self) -> String {
        format!("{}.{}", O::NAME, self.slug)
    }
}

impl<O: Op> fmt::Debug for Fault<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code, self.name(), self.detail)
    }
}

/// What a subject stored, against the closest legitimate convention: food for [`Op::propose`].
#[derive(Clone, Copy, Debug)]
pub struct Residual<'a> {
    /// The case's tensors.
    pub tensors: &'a Tensors,
    /// Columns of the output.
    pub cols: usize,
    /// The oracle before the output's rounding, row-major.
    pub expected: &'a [f64],
    /// Radius of the oracle before the output's rounding.
    pub radius: &'a [f64],
    /// The subject's output.
    pub observed: &'a [f64],
    /// The output's rounding.
    pub output: Rounding,
}

impl Residual<'_> {
    /// The factors g for which g * expected is consistent with what was observed on `elements`:
    /// the intersection of every element's interval. `None` when there is none.
    pub fn gain_interval(&self, elements: impl Iterator<Item = usize>) -> Option<(f64, f64)> {
        self.gain_before(elements, |_| 0.0)
    }

    /// The same for a factor that acts before `addend(i)` is added: g (expected - addend) + addend.
    pub fn gain_before(
        &self,
        elements: impl Iterator<Item = usize>,
        addend: impl Fn(usize) -> f64,
    ) -> Option<(f64, f64)> {
        // The gain, as a constant of the arithmetic, and its product are rounded once each.
        let bits = if self.output.dtype == crate::Dtype::F64 { 53 } else { 24 };
        let rounding = 2.0 * pow2(-bits);
        let (mut low, mut high) = (f64::NEG_INFINITY, f64::INFINITY);
        let mut constraints = 0;
        for i in elements {
            let (b, o) = (addend(i), self.observed[i]);
            let y = self.expected[i] - b;
            // Elements known to less than 1 % say nothing about a gain.
            if !(y.is_finite() && o.is_finite()) || self.radius[i] > y.abs() / 64.0 || y == 0.0 {
                continue;
            }
            let (o_low, o_high) = preimage(o, self.output);
            let slack = self.radius[i] * ((o - b) / y).abs().max(1.0) + y.abs() * rounding;
            let (a, c) = ((o_low - slack - b) / y, (o_high + slack - b) / y);
            constraints += 1;
            low = low.max(a.min(c));
            high = high.min(a.max(c));
            if low > high {
                return None;
            }
        }
        let enough = constraints >= ENOUGH && low.is_finite() && high.is_finite();
        enough.then_some((low, high))
    }
}

/// Fewest elements that fix a gain: any one element has some factor.
const ENOUGH: usize = 16;

/// The closed interval of values that a rounding may send to `o`.
fn preimage(o: f64, rounding: Rounding) -> (f64, f64) {
    let ulp = rounding.ulp(o);
    match rounding.mode {
        Mode::TowardZero if o > 0.0 => (o, o + ulp),
        Mode::TowardZero if o < 0.0 => (o - ulp, o),
        Mode::TowardZero => (-ulp, ulp),
        Mode::Nearest | Mode::NearestAway => (o - ulp / 2.0, o + ulp / 2.0),
    }
}

/// The number with the fewest decimal digits in [low, high].
pub(crate) fn simplest(low: f64, high: f64) -> f64 {
    let middle = low + (high - low) / 2.0;
    for digits in 0..17 {
        let text = format!("{middle:.digits$e}");
        if let Ok(x) = text.parse::<f64>()
            && (low..=high).contains(&x)
        {
            return x;
        }
    }
    middle
}

/// Faults of the store itself, which every op with a rounded output can have: truncation and ties away
/// from zero, with a code each.
pub fn store_faults<O: Op>(codes: [&'static str; 2]) -> Vec<Fault<O>> {
    let rounded = |mode: Mode, how: &str| {
        let detail = format!("the output is rounded {how} instead of to nearest even");
        let edit = move |s: &mut Setup<O>| s.policy.output.mode = mode;
        (detail, edit)
    };
    let (truncated, truncate) = rounded(Mode::TowardZero, "toward zero");
    let (away, round_away) = rounded(Mode::NearestAway, "to nearest with ties away from zero");
    vec![
        Fault::new(codes[0], "truncating_store", truncated, truncate),
        Fault::new(codes[1], "ties_away_store", away, round_away),
    ]
}

/// The store of a bf16 output by way of f16, which rounds twice: for ops whose input `main` is bf16.
pub fn via_f16_fault<O: Op>(main: Option<&Tensor>) -> Option<Fault<O>> {
    main.filter(|t| t.dtype() == Dtype::Bf16).map(|_| {
        let detail = "the output is rounded to f16 before it is rounded to bf16";
        Fault::new("A230", "store_via_f16", detail, |s: &mut Setup<O>| {
            s.policy.round_at("output", Dtype::F16);
        })
    })
}

/// A constant factor on the output, solved from the residual.
pub fn gain_faults<O: Op>(code: &'static str, residual: &Residual<'_>) -> Vec<Fault<O>> {
    let mut faults = gain_at(code, "output", residual.gain_interval(0..residual.expected.len()));
    faults.extend(stored_gains(code, residual));
    faults
}

/// A constant factor at a point, from the interval that explains the output.
pub fn gain_at<O: Op>(
    code: &'static str,
    point: &'static str,
    interval: Option<(f64, f64)>,
) -> Vec<Fault<O>> {
    let says_something = |(l, h): &(f64, f64)| ![0.0, 1.0].iter().any(|g| (*l..=*h).contains(g));
    let Some((low, high)) = interval.filter(says_something) else {
        return Vec::new();
    };
    let by = simplest(low, high);
    let detail = format!("the {point} value is multiplied by {by}");
    let edit = move |s: &mut Setup<O>| s.policy.at(point, Transform::Scale { at: At::All, by });
    vec![Fault::new(code, "gain", detail, edit).keyed(point)]
}
