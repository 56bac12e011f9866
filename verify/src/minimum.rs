//! The least value of a function of one number.

/// `(f(x), x)` with the least f found: the best of `grid`, which ascends, then a golden section of `steps` steps between
/// its neighbours. `None` when f is finite nowhere on the grid.
///
/// # Errors
/// What `f` returned.
pub(crate) fn minimum<E>(
    grid: &[f64],
    steps: usize,
    f: &mut dyn FnMut(f64) -> Result<f64, E>,
) -> Result<Option<(f64, f64)>, E> {
    let all = grid.iter().map(|&x| f(x)).collect::<Result<Vec<f64>, E>>()?;
    let best = (0..grid.len()).filter(|&i| all[i].is_finite());
    let Some(i) = best.min_by(|&a, &b| all[a].total_cmp(&all[b])) else { return Ok(None) };
    let (mut low, mut high) = (grid[i.saturating_sub(1)], grid[(i + 1).min(grid.len() - 1)]);
    let golden = (5f64.sqrt() - 1.0) / 2.0;
    let inner = |low: f64, high: f64| (high - golden * (high - low), low + golden * (high - low));
    let (mut a, mut b) = inner(low, high);
    let (mut fa, mut fb) = (f(a)?, f(b)?);
    for _ in 0..steps {
        if fa <= fb {
            (high, b, fb) = (b, a, fa);
            a = inner(low, high).0;
            fa = f(a)?;
        } else {
            (low, a, fa) = (a, b, fb);
            b = inner(low, high).1;
            fb = f(b)?;
        }
    }
    let nearer = |best: (f64, f64), x: (f64, f64)| if x.0 < best.0 { x } else { best };
    Ok(Some([(fa, a), (fb, b)].into_iter().fold((all[i], grid[i]), nearer)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(grid: &[f64], f: impl Fn(f64) -> f64) -> Option<(f64, f64)> {
        minimum::<()>(grid, 24, &mut |x| Ok(f(x))).expect("no error")
    }

    #[test]
    fn the_minimum_is_found_inside_at_an_end_and_beside_what_is_no_number() {
        let grid = [0.0, 1.0, 2.0, 3.0];
        for at in [0.0, 0.3, 1.0, 1.7, 3.0] {
            let (_, x) = found(&grid, |x| (x - at).powi(2)).expect("a minimum");
            assert!((x - at).abs() < 1e-4, "{at}: {x}");
        }
        let (_, x) = found(&grid, |x| if x < 0.5 { f64::NAN } else { x }).expect("a minimum");
        assert!((0.5..=1.0).contains(&x), "{x}");
        assert_eq!(found(&grid, |_| f64::INFINITY), None);
        assert_eq!(minimum(&grid, 1, &mut |_| Err("no")), Err("no"));
    }
}
