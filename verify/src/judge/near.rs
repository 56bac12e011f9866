//! Whether two outputs of a subject differ by no more than the bounds of both allow.

use assay_reference::Result;
use assay_reference::ops::{Erased, Scope, Tile};

use super::accept::Expected;
use super::observed::Run;
use super::search::{Convention, conventions};
use super::{Observation, Options, Unseen};

/// For pairs of (element of `changed`, element of `base`) the difference must be, under some legitimate
/// convention, the oracle's within the radii of both and what rounding can move each. Says how it is not,
/// if so.
///
/// # Errors
/// When a run is not its op's.
pub fn near(
    base: &Observation,
    changed: &Observation,
    pairs: &[(usize, usize)],
    scope: Scope,
) -> Result<Option<String>> {
    let options = Options { scope, unseen: Unseen::Nothing, preset: None, known: None };
    let runs = [Run::<Erased>::new(base, None, options)?, Run::new(changed, None, options)?];
    let mut first = None;
    for convention in conventions(&runs, options) {
        let Some(text) = apart(&runs, &convention, pairs) else { return Ok(None) };
        first.get_or_insert(text);
    }
    Ok(first)
}

/// The first pair that is too far apart under a convention.
fn apart(
    runs: &[Run<'_, Erased>; 2],
    convention: &Convention<Erased>,
    pairs: &[(usize, usize)],
) -> Option<String> {
    let expected = |run: &Run<'_, Erased>| -> (Expected, Vec<f64>) {
        let setup = run.setup(&convention.edits);
        let (e, output) = (run.expect(&setup, &Tile::ALL), run.rounding(&setup));
        let room = e.v.iter().zip(&e.radius).map(|(v, r)| r + output.most(*v)).collect();
        (e.into_owned(), room)
    };
    let [(base, base_room), (changed, changed_room)] = [expected(&runs[0]), expected(&runs[1])];
    let too_far = |(c, b): &&(usize, usize)| {
        let (got, from) = (runs[1].observed[*c], runs[0].observed[*b]);
        let centre = changed.v[*c] - base.v[*b];
        if !centre.is_finite() {
            return false;
        }
        let room = changed_room[*c] + base_room[*b];
        // A difference that is not a number is too far.
        let off = (got - from - centre).abs();
        off > room || off.is_nan() || room.is_nan()
    };
    let (c, b) = pairs.iter().find(too_far)?;
    Some(format!(
        "element {c} is {}, {} before: more than the bounds of both allow",
        runs[1].observed[*c], runs[0].observed[*b]
    ))
}
