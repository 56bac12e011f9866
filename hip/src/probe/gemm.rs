//! What a matrix product computes in, measured from outside: any subject that takes x `[M, K]` and w
//! `[N, K]` and gives y `[M, N]` = x w^T.
//!
//! Every input is a small integer or a power of two, so that what each kind of arithmetic gives is
//! known to the bit.

mod honesty;

use assay_reference::dtype::pow2;
use assay_reference::{Dtype, Tensor};

use super::exact::{Exact, Round};
use super::order::{Tree, describe, tree};
use super::{Reading, findings};
use crate::error::Error;

/// Terms of a sum: several groups of what matrix instructions take at once.
const TERMS: usize = 64;
/// Columns of w: enough for a tile; the first two are looked at.
const COLUMNS: usize = 16;
/// Absorbs every other term, and is in range of bf16 and f32.
const MASK: i32 = 100;

/// A matrix product: y from x and w, all of one dtype.
pub type Product<'a> = &'a dyn Fn(&Tensor, &Tensor) -> Result<Tensor, Error>;

struct Subject<'a> {
    dtype: Dtype,
    /// As many rows as it takes at once.
    most_rows: usize,
    product: Product<'a>,
}

impl Subject<'_> {
    /// The two first columns of x w^T; column 0 of w is ones, column 1 is 2^`scale`.
    fn rows(&self, rows: &[Vec<f64>], scale: i32) -> Result<Vec<[f64; 2]>, Error> {
        let terms = rows[0].len();
        let mut w = vec![0.0; COLUMNS * terms];
        w[..terms].fill(1.0);
        w[terms..2 * terms].fill(pow2(scale));
        let w = Tensor::from_f64(self.dtype, &[COLUMNS, terms], &w);
        self.with(rows, &w)
    }

    /// x w^T.
    fn multiply(&self, x: &Tensor, w: &Tensor) -> Result<Tensor, Error> {
        let y = (self.product)(x, w)?;
        if y.shape() != [x.shape()[0], w.shape()[0]] {
            return Err(Error::Launch {
                kernel: "the product",
                probe: "the device probe".to_owned(),
                what: format!("its output has the shape {:?}", y.shape()),
            });
        }
        Ok(y)
    }

    fn with(&self, rows: &[Vec<f64>], w: &Tensor) -> Result<Vec<[f64; 2]>, Error> {
        let (mut out, n) = (Vec::new(), w.shape()[0]);
        for part in rows.chunks(self.most_rows) {
            let x = Tensor::from_f64(self.dtype, &[part.len(), w.shape()[1]], &part.concat());
            let y = self.multiply(&x, w)?;
            out.extend((0..part.len()).map(|r| [y.get(r * n), y.get(r * n + 1)]));
        }
        Ok(out)
    }
}

/// Measures a product of `dtype` (bf16 or f32), which takes up to `most_rows` rows where that is given.
///
/// # Errors
/// Those of the product.
pub fn measure(
    name: &str,
    dtype: Dtype,
    most_rows: Option<usize>,
    product: Product<'_>,
) -> Result<Vec<Reading>, Error> {
    let subject = Subject { dtype, most_rows: most_rows.unwrap_or(usize::MAX), product };
    let (order, found) = order(name, &subject)?;
    let mut readings = vec![order];
    readings.push(match found {
        Ok(found) => accumulator(name, &subject, &found)?,
        Err(why) => Reading::new(&format!("{name}.accumulator"), "not measured", why),
    });
    readings.push(subnormals(name, &subject)?);
    if dtype == Dtype::F32 {
        readings.push(honesty::small(name, &subject)?);
        readings.push(honesty::large(name, &subject)?);
    }
    Ok(readings)
}

/// Which terms meet first and last, for the accumulator's probe.
struct Meeting {
    /// These two meet before either meets any other.
    first: usize,
    near: usize,
    /// Meets them last.
    far: usize,
}

/// The reading, and what the accumulator can be measured with, or why it cannot.
type Order = (Reading, Result<Meeting, &'static str>);

fn order(name: &str, subject: &Subject<'_>) -> Result<Order, Error> {
    let unknown = Err("the order of the additions is not known");
    let pairs: Vec<(usize, usize)> =
        (0..TERMS).flat_map(|i| (i + 1..TERMS).map(move |j| (i, j))).collect();
    let rows: Vec<Vec<f64>> = pairs
        .iter()
        .map(|&(i, j)| {
            let mut row = vec![1.0; TERMS];
            (row[i], row[j]) = (pow2(MASK), -pow2(MASK));
            row
        })
        .collect();
    let sums: Vec<f64> = subject.rows(&rows, 0)?.into_iter().map(|[y, _]| y).collect();
    let what = format!("{name}.order");
    let count = |y: f64| (0..=TERMS - 2).find(|&n| n as f64 == y);
    let mut sizes = vec![0; TERMS * TERMS];
    for (&(i, j), &y) in pairs.iter().zip(&sums) {
        let Some(survivors) = count(y) else {
            let text = format!(
                "2^{MASK} at term {i}, its negative at {j} and ones give {y}, which no order of \
                 additions does"
            );
            let reading = Reading::new(&what, "unexplained", text).found(findings::UNEXPLAINED);
            return Ok((reading, unknown));
        };
        sizes[i * TERMS + j] = TERMS - survivors;
        sizes[j * TERMS + i] = TERMS - survivors;
    }
    let words: Vec<u32> = sums.iter().map(|&y| (y as f32).to_bits()).collect();
    let size = |i: usize, j: usize| sizes[i * TERMS + j];
    let all: Vec<usize> = (0..TERMS).collect();
    let Some(tree) = tree(&all, &size) else {
        let text = "the sums of masks and ones fit no tree of additions";
        let reading = Reading::new(&what, "unexplained", text).found(findings::UNEXPLAINED);
        return Ok((reading.over(&words), unknown));
    };
    let (first, near) = pairs.iter().copied().min_by_key(|&(i, j)| size(i, j)).unwrap_or((0, 1));
    let others = (0..TERMS).filter(|&k| k != first && k != near);
    let far = others.max_by_key(|&k| size(first, k)).unwrap_or(2);
    let meaning = match &tree {
        Tree::Sum(children) if children.len() == TERMS => {
            "adds all terms at once: no intermediate rounding shows"
        }
        _ => "any order is within the bounds of `matmul`; a change of it changes bits",
    };
    let reading = Reading::new(&what, describe(&tree), meaning).over(&words);
    // Two numbers must meet alone, for the third to show what their sum kept.
    let apart = size(first, near) < size(first, far);
    let together = "all terms are added at once: no sum of two of them is rounded alone";
    Ok((reading, apart.then_some(Meeting { first, near, far }).ok_or(together)))
}

/// The widest p for which 2^p + 1 - 2^p is still 1, and how the next is rounded.
fn accumulator(name: &str, subject: &Subject<'_>, at: &Meeting) -> Result<Reading, Error> {
    let row = |big: f64, small: f64| {
        let mut row = vec![0.0; TERMS];
        (row[at.first], row[at.near], row[at.far]) = (big, small, -big);
        row
    };
    let most = 80;
    let sums = subject.rows(&(1..most).map(|p| row(pow2(p), 1.0)).collect::<Vec<_>>(), 0)?;
    let bits = 1 + sums.iter().take_while(|[y, _]| *y == 1.0).count() as i32;
    // In the binade above its last exact integer the accumulator holds even numbers only.
    let ends: Vec<(f64, f64)> =
        [1.0, -1.0].iter().flat_map(|s| [1.0, 3.0].map(|n| (*s, n))).collect();
    let tried: Vec<Vec<f64>> = ends.iter().map(|&(s, n)| row(s * pow2(bits), s * n)).collect();
    let rounded = subject.rows(&tried, 0)?;
    let round = Round::ALL.iter().find(|&&round| {
        ends.iter().zip(&rounded).all(|(&(s, n), &[y, _])| {
            let sum = Exact::of(s * pow2(bits)).add(Exact::of(s * n));
            let format = super::exact::Format { bits, ..super::exact::F64 };
            sum.round(format, round) - s * pow2(bits) == y
        })
    });
    let words: Vec<u32> = sums.iter().chain(&rounded).map(|[y, _]| (*y as f32).to_bits()).collect();
    let how = round.map_or("rounds in no known way", |r| r.name());
    let what = format!("{name}.accumulator");
    let reads = format!("{bits} bits, {how}");
    let meaning = match (bits, round) {
        (24, Some(Round::NearestEven)) => "f32, as the bounds of `matmul` assume",
        (25.., _) => "wider than f32: errors stay below the bounds of `matmul`",
        (24, _) => "f32 that does not round to nearest even: long sums lean to one side",
        _ => "narrower than f32: long sums lose their small terms",
    };
    let reading = Reading::new(&what, reads, meaning).over(&words);
    let good = bits > 24 || (bits == 24 && round == Some(&Round::NearestEven));
    Ok(if good { reading } else { reading.found(findings::ACCUMULATOR) })
}

fn subnormals(name: &str, subject: &Subject<'_>) -> Result<Reading, Error> {
    // bf16 and f32 have the same smallest normal number, 2^-126.
    let first = |x: f64| {
        let mut row = vec![0.0; TERMS];
        row[0] = x;
        row
    };
    let [_, input] = subject.rows(&[first(pow2(-130))], 20)?[0];
    let [_, output] = subject.rows(&[first(pow2(-120))], -10)?[0];
    let word = |y: f64, kept: i32| match y {
        y if y == pow2(kept) => "kept",
        0.0 => "flushed",
        _ => "changed",
    };
    let (input, output) = (word(input, -110), word(output, -130));
    let reads = format!("operands {input}, results {output}");
    let what = format!("{name}.subnormals");
    if [input, output].contains(&"changed") {
        let text = "neither kept nor zero";
        return Ok(Reading::new(&what, reads, text).found(findings::UNEXPLAINED));
    }
    let meaning = if (input, output) == ("kept", "kept") {
        "as IEEE has it"
    } else {
        "activations and weights below 2^-126 count as zero there"
    };
    Ok(Reading::new(&what, reads, meaning))
}
