//! The lane layout of the matrix instructions: which element of A, B, C and D each register holds.
//!
//! A wrong layout gives plausible numbers in wrong places, so it is derived before a matrix path is
//! trusted. A register of A is set to 1 and every other to 0, and the registers of B are numbered
//! 1 to 256, all exact in bf16. Then a register of D holds 0, or the number of the one register of B
//! that it was multiplied with: 256 such products show every pairing of the hardware.
//!
//! Hardware has no names for rows, columns and k. They are taken from the published places of A, and
//! for columns of B; the k of B and the places of C and D follow from the pairings, and contradictions
//! show in A and B. Elements of k that A and B exchange alike cannot show, and change no product.

use assay_reference::{Dtype, Tensor};

use super::Reading;
use super::matrix_product::{REGISTERS, products};
use crate::backend::Backend;
use crate::emu::{Compiler, Mode};
use crate::error::Error;
use crate::matrix::Matrix;
use crate::options::LaunchOptions;

/// The probe's HIP source: compiled into a build with feature `hip`, and here for the emulator.
pub const SOURCE: &str = include_str!("../../probes/matrix_layout.hip");

/// Rows, columns and k of an instruction.
const SIZE: usize = 16;

/// Two coordinates of an element: m and k of A, k and n of B, m and n of C and D.
pub type Place = [usize; 2];

/// An operand of D = A B + C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// `[m, k]`.
    A,
    /// `[k, n]`.
    B,
    /// `[m, n]`.
    C,
    /// `[m, n]`.
    D,
}

impl Operand {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::A, Self::B, Self::C, Self::D];

    fn coordinates(self) -> [&'static str; 2] {
        match self {
            Self::A => ["m", "k"],
            Self::B => ["k", "n"],
            Self::C | Self::D => ["m", "n"],
        }
    }
}

/// The places of an instruction's registers, by operand and `4 * lane + element`; `None` for a register
/// that is at no single place.
#[derive(Debug, PartialEq, Eq)]
pub struct LayoutMap {
    /// The instructions of the build; never [`Matrix::None`].
    pub matrix: Matrix,
    /// A, B, C and D, 256 registers each.
    pub places: [Vec<Option<Place>>; 4],
}

/// A register that is not where it should be.
#[derive(Debug, PartialEq, Eq)]
pub struct Misplaced {
    /// The instruction.
    pub builtin: &'static str,
    /// Which operand.
    pub operand: Operand,
    /// Lane of the wave.
    pub lane: usize,
    /// Element of the lane's four.
    pub element: usize,
    /// Where it is by the published layout.
    pub expected: Place,
    /// Where it was seen; `None` at several places or at none.
    pub seen: Option<Place>,
}

impl std::fmt::Display for Misplaced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { builtin, operand, lane, element, expected: [e0, e1], seen } = self;
        let [x, y] = operand.coordinates();
        write!(f, "{builtin}: {operand:?} lane {lane} element {element}: ")?;
        write!(f, "expected {x} = {e0}, {y} = {e1}, ")?;
        match seen {
            Some([s0, s1]) => write!(f, "seen at {x} = {s0}, {y} = {s1}"),
            None => write!(f, "seen at no single place"),
        }
    }
}

/// The builtin that a build's `matrix_multiply_add` stands for.
#[must_use]
pub fn builtin(matrix: Matrix) -> &'static str {
    match matrix {
        Matrix::None => "none",
        Matrix::Mfma => "__builtin_amdgcn_mfma_f32_16x16x16bf16_1k",
        Matrix::Mmac => "__builtin_hcu_mmac_f32_16x16x16_bf16",
    }
}

/// The published place of a register; the sources are in `hip/include/assay_matrix.h`.
#[must_use]
pub fn published(matrix: Matrix, operand: Operand, lane: usize, element: usize) -> Place {
    let (t, q) = (lane & 15, lane >> 4);
    match (operand, matrix) {
        (Operand::A, _) => [t, q << 2 | element],
        (Operand::B, _) => [q << 2 | element, t],
        (_, Matrix::Mmac) => [t, element << 2 | q],
        (_, _) => [q << 2 | element, t],
    }
}

impl LayoutMap {
    /// The registers that are not where the published layout has them, in the order of the operands.
    #[must_use]
    pub fn misplaced(&self) -> Vec<Misplaced> {
        let of = |(places, operand): (&Vec<Option<Place>>, Operand)| -> Vec<Misplaced> {
            let all = places.iter().enumerate().map(|(register, &seen)| {
                let (lane, element) = (register / 4, register % 4);
                let expected = published(self.matrix, operand, lane, element);
                let builtin = builtin(self.matrix);
                Misplaced { builtin, operand, lane, element, expected, seen }
            });
            all.filter(|m| m.seen != Some(m.expected)).collect()
        };
        self.places.iter().zip(Operand::ALL).flat_map(of).collect()
    }
}

/// D for registers `[products, 64, 4]` of A, B (bf16) and C (f32); 0 without an instruction.
///
/// # Errors
/// Those of [`layout_map`].
pub fn multiply(backend: &Backend, abc: [&Tensor; 3]) -> Result<Tensor, Error> {
    Ok(products(backend, abc, &LaunchOptions::default())?.1)
}

/// The map of the instructions that a build has on the emulator; `None` for [`Matrix::None`].
///
/// # Errors
/// Those of [`layout_map`], and of compiling the probe.
pub fn emulated(matrix: Matrix) -> Result<Option<LayoutMap>, Error> {
    layout_map(&Compiler::find()?.with_matrix(matrix).compile(SOURCE, Mode::Plain)?.into())
}

/// Derives the map of the matrix instructions of a backend: the emulator with [`SOURCE`] compiled, or
/// a device. `None` when the build has no such instruction.
///
/// # Errors
/// [`Error::Launch`] when the probe does not end well, and those of the backend.
pub fn layout_map(backend: &Backend) -> Result<Option<LayoutMap>, Error> {
    // Product p: register p of A alone is 1. The last one: C alone.
    let count = REGISTERS + 1;
    let numbers = |last: bool, of: &dyn Fn(usize, usize) -> f64| -> Vec<f64> {
        let all = (0..count * REGISTERS).map(|i| (i / REGISTERS, i % REGISTERS));
        all.map(|(p, r)| if (p == REGISTERS) == last { of(p, r) } else { 0.0 }).collect()
    };
    let shape = [count, 64, 4];
    let tensor = |dtype, values: Vec<f64>| Tensor::from_f64(dtype, &shape, &values);
    let a = tensor(Dtype::Bf16, numbers(false, &|p, r| f64::from(u8::from(p == r))));
    let b = tensor(Dtype::Bf16, numbers(false, &|_, r| (r + 1) as f64));
    let c = tensor(Dtype::F32, numbers(true, &|_, r| (r + 1) as f64));
    let (matrix, d) = products(backend, [&a, &b, &c], &LaunchOptions::default())?;
    if matrix == Matrix::None {
        return Ok(None);
    }
    Ok(Some(derive(matrix, &d.to_f64())))
}

/// Derives the map, and compares it with the published one.
pub(super) fn measure(backend: &Backend, _: &LaunchOptions) -> Result<Vec<Reading>, Error> {
    let Some(map) = layout_map(backend)? else {
        let meaning = "this build multiplies on the vector units";
        return Ok(vec![Reading::new("matrix.layout", "absent", meaning)]);
    };
    let what = format!("matrix.layout {}", builtin(map.matrix));
    let places = map.places.iter().flatten();
    let words: Vec<u32> =
        places.map(|p| p.map_or(u32::MAX, |[x, y]| (x << 8 | y) as u32)).collect();
    let misplaced = map.misplaced();
    let Some(first) = misplaced.first() else {
        let meaning = "the matrix paths read and store where the instruction does";
        return Ok(vec![Reading::new(&what, "as published", meaning).over(&words)]);
    };
    let reads = format!("{} of {} registers elsewhere", misplaced.len(), words.len());
    let meaning = format!("no kernel with a matrix path can be trusted: {first}");
    Ok(vec![Reading::new(&what, reads, meaning).found("matrix.layout").over(&words)])
}

/// The register whose number a register of D holds: `Ok(None)` for 0, `Err` for no number of one.
fn register(value: f64) -> Result<Option<usize>, ()> {
    match value {
        0.0 => Ok(None),
        v if v.fract() == 0.0 && (1.0..=REGISTERS as f64).contains(&v) => Ok(Some(v as usize - 1)),
        _ => Err(()),
    }
}

/// Values voted for: a register of an operand takes part in 16 products.
#[derive(Clone, Default)]
struct Votes(Vec<usize>);

impl Votes {
    /// What most of the 16 say. `all` of them must be there, or else some may be lost, which then shows
    /// in another operand.
    fn agreed(&self, all: bool) -> Option<usize> {
        let count = |value: usize| self.0.iter().filter(|v| **v == value).count();
        let winner = self.0.iter().copied().max_by_key(|v| count(*v))?;
        let complete = if all { self.0.len() == SIZE } else { self.0.len() <= SIZE };
        (complete && 2 * count(winner) > SIZE).then_some(winner)
    }
}

/// From what D held: of the one-hot products, then of C alone.
fn derive(matrix: Matrix, d: &[f64]) -> LayoutMap {
    let place = |operand, r: usize| published(matrix, operand, r / 4, r % 4);
    let mut broken = vec![false; REGISTERS]; // registers of D that held no number of a register
    let mut pairs: Vec<[usize; 3]> = Vec::new(); // registers of A, B and D
    for (i, &value) in d[..REGISTERS * REGISTERS].iter().enumerate() {
        let (in_a, in_d) = (i / REGISTERS, i % REGISTERS);
        match register(value) {
            Ok(None) => {}
            Ok(Some(in_b)) => pairs.push([in_a, in_b, in_d]),
            Err(()) => broken[in_d] = true,
        }
    }
    // What the pairs say of the coordinate `value` of each register of an operand, by its index in a pair.
    let agree = |index: usize, value: &dyn Fn([usize; 3]) -> Option<usize>| -> Vec<Option<usize>> {
        let mut votes = vec![Votes::default(); REGISTERS];
        for &pair in &pairs {
            votes[pair[index]].0.extend(value(pair));
        }
        // A lost product is held against the register of A.
        votes.iter().map(|v| v.agreed(index == 0)).collect()
    };
    let join = |x: &[Option<usize>], y: &[Option<usize>]| -> Vec<Option<Place>> {
        x.iter().zip(y).map(|(x, y)| Some([(*x)?, (*y)?])).collect()
    };
    let d_row = agree(2, &|[a, _, _]| Some(place(Operand::A, a)[0]));
    let d_column = agree(2, &|[_, b, _]| Some(place(Operand::B, b)[1]));
    let b_k = agree(1, &|[a, _, _]| Some(place(Operand::A, a)[1]));
    let b_column = agree(1, &|[_, _, d]| d_column[d]);
    let a_row = agree(0, &|[_, _, d]| d_row[d]);
    let a_k = agree(0, &|[_, b, _]| b_k[b]);
    let mut in_d = join(&d_row, &d_column);
    in_d.iter_mut().zip(&broken).filter(|(_, broken)| **broken).for_each(|(d, _)| *d = None);
    // C comes out where D has the same element.
    let mut in_c = vec![None; REGISTERS];
    for (r, &value) in d[REGISTERS * REGISTERS..].iter().enumerate() {
        if let Ok(Some(from)) = register(value) {
            in_c[from] = in_d[r];
        }
    }
    LayoutMap { matrix, places: [join(&a_row, &a_k), join(&b_k, &b_column), in_c, in_d] }
}
