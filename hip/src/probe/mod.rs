//! Device probes: small kernels that measure a unit instead of trusting what is said of it.
//!
//! - [`vector`]: rounding, fusion and subnormals of single f32 and f16 operations;
//! - [`convert`]: f32 to bf16, f16 and the 8-bit floats;
//! - [`canary`]: whether blocks of more than 256 threads run whole;
//! - [`gemm`]: of anything that multiplies matrices: the order of its additions, the width and rounding
//!   of its accumulator, subnormals, and whether an f32 product is one;
//! - [`layout`]: where the matrix instructions hold their elements.
//!
//! Every output is compared with exact integer arithmetic under each way in which a unit may round; the
//! one way that explains all of them is the reading. What none explains is reported as such. Probes run
//! on any [`Backend`]; what the emulator gives says nothing of a device.

pub mod canary;
pub mod convert;
mod exact;
pub mod gemm;
pub mod layout;
mod matrix_product;
mod operands;
mod order;
mod sgemm;
pub mod vector;
mod words;

use serde::Serialize;

pub use sgemm::sgemm;

use crate::backend::Backend;
use crate::error::Error;
use crate::options::LaunchOptions;

/// One thing that was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reading {
    /// What: `f32.add`.
    pub what: String,
    /// How it reads, in fixed words: `nearest_even, subnormals kept`.
    pub reads: String,
    /// What follows for kernels.
    pub meaning: String,
    /// The finding, when the kernels' conventions do not allow this.
    pub finding: Option<&'static str>,
    /// The bits that it was read from.
    #[serde(skip)]
    pub raw: Vec<u8>,
}

impl Reading {
    pub(crate) fn new(what: &str, reads: impl Into<String>, meaning: impl Into<String>) -> Reading {
        let (reads, meaning) = (reads.into(), meaning.into());
        Reading { what: what.to_owned(), reads, meaning, finding: None, raw: Vec::new() }
    }

    pub(crate) fn found(mut self, finding: &'static str) -> Reading {
        self.finding = Some(finding);
        self
    }

    pub(crate) fn over(mut self, words: &[u32]) -> Reading {
        self.raw.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        self
    }
}

/// Findings that a reading can be.
pub mod findings {
    /// An operation that the kernels rely on does not round as they assume.
    pub const ROUNDING: &str = "probe.rounding";
    /// Threads of a block did not run.
    pub const CANARY: &str = "probe.canary";
    /// An f32 product is computed in fewer bits.
    pub const F32_GEMM: &str = "probe.f32_gemm";
    /// An accumulator is narrower than f32.
    pub const ACCUMULATOR: &str = "probe.accumulator";
    /// No way of rounding explains the outputs.
    pub const UNEXPLAINED: &str = "probe.unexplained";
}

/// A probe kernel.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// Its name, that of its file.
    pub name: &'static str,
    /// Its HIP source; compiles with hipcc and for the emulator.
    pub source: &'static str,
    /// What it measures, in a few words.
    pub about: &'static str,
    /// Runs it.
    pub measure: fn(&Backend, &LaunchOptions) -> Result<Vec<Reading>, Error>,
}

macro_rules! probes {
    ($($name:ident => $launcher:ident, $about:literal, $measure:path;)*) => {
        /// All probe kernels.
        pub const PROBES: &[Probe] = &[$(Probe {
            name: stringify!($name),
            source: include_str!(concat!("../../probes/", stringify!($name), ".hip")),
            about: $about,
            measure: $measure,
        }),*];

        /// The address of a launcher that was compiled for the device.
        #[cfg(feature = "hip")]
        #[expect(unsafe_code, reason = "declares what build.rs compiles")]
        pub(crate) fn device_launcher(name: &'static str) -> Option<*const std::ffi::c_void> {
            // Only the addresses are taken here; the callers know the types.
            unsafe extern "C" {
                $(fn $launcher();)*
            }
            match name {
                $(stringify!($launcher) => Some($launcher as *const std::ffi::c_void),)*
                _ => None,
            }
        }

        /// The object file that hipcc made of a probe.
        #[cfg(feature = "hip")]
        pub(crate) fn device_object(name: &str) -> Option<&'static [u8]> {
            match name {
                $(stringify!($name) => Some(include_bytes!(concat!(
                    env!("OUT_DIR"), "/probe_", stringify!($name), ".o"
                ))),)*
                _ => None,
            }
        }
    };
}

// One line a probe: its file, its launcher, what it measures, and how.
probes! {
    vector => probe_vector, "single operations of the vector units", vector::measure;
    convert => probe_convert, "conversions from f32", convert::measure;
    canary => probe_canary, "blocks of more than 256 threads", canary::measure;
    matrix_layout => matrix_layout, "where the matrix instructions hold their elements", layout::measure;
    sgemm => probe_sgemm, "an f32 product as the compiler makes it", sgemm::measure;
}

/// The probe of this name.
#[must_use]
pub fn probe(name: &str) -> Option<&'static Probe> {
    PROBES.iter().find(|probe| probe.name == name)
}
