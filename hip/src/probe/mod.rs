//! Probes: what the hardware under a backend does, found out by running it.

pub mod layout;
mod matrix_product;
