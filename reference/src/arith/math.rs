//! Elementary functions with the same bits on every host: the `libm` crate in f64.

/// e^x.
pub fn exp(x: f64) -> f64 {
    libm::exp(x)
}

/// e^x - 1.
pub fn expm1(x: f64) -> f64 {
    libm::expm1(x)
}

/// Natural logarithm.
pub fn ln(x: f64) -> f64 {
    libm::log(x)
}

/// Base-2 logarithm.
pub fn log2(x: f64) -> f64 {
    libm::log2(x)
}

/// Sine of x in radians.
pub fn sin(x: f64) -> f64 {
    libm::sin(x)
}

/// Cosine of x in radians.
pub fn cos(x: f64) -> f64 {
    libm::cos(x)
}

/// x^y.
pub fn pow(x: f64, y: f64) -> f64 {
    libm::pow(x, y)
}

/// The angle of the point (x, y) in radians, from -pi to pi.
pub fn atan2(y: f64, x: f64) -> f64 {
    libm::atan2(y, x)
}
