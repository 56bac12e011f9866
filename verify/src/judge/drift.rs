//! What a small bias does over depth.

/// Additions to the residual stream of a model with this many layers: two a layer.
pub const fn additions(layers: usize) -> usize {
    2 * layers
}

/// The part of a signal that is left after `calls` roundings in a row of which each keeps `gain` of it
/// on average. Roundings to nearest keep 1; truncation to bf16 keeps about 1 - 2^-9 / ln 4, since the
/// mean of half an ulp over a value is that over a binade.
pub fn left_after(gain: f64, calls: usize) -> f64 {
    // A product, since std's powf may differ from host to host.
    (0..calls).fold(1.0, |left, _| left * gain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gain_of_one_stays_and_a_loss_compounds() {
        assert_eq!(left_after(1.0, 56), 1.0);
        assert_eq!(left_after(0.5, 3), 0.125);
        assert_eq!(left_after(0.9, 0), 1.0);
        assert_eq!(additions(28), 56);
    }
}
