//! Which instructions the arithmetic uses. Every choice gives the same bits.

use std::fmt;
use std::str::FromStr;
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// A set of vector instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Isa {
    /// The definition itself, element by element.
    Scalar = 1,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2 = 2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512 = 3,
    /// AArch64's Advanced SIMD.
    Neon = 4,
}

/// All of them.
const ALL: [Isa; 4] = [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Neon];

/// The environment variable that chooses.
const ENV: &str = "ASSAY_ISA";

/// The choice; 0 until there is one.
static CHOSEN: AtomicU8 = AtomicU8::new(0);

impl Isa {
    /// Whether this CPU has it.
    pub fn is_supported(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_supported()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => true,
            _ => false,
        }
    }

    /// Those that this CPU has, the fastest last.
    pub fn supported() -> Vec<Isa> {
        ALL.into_iter().filter(|isa| isa.is_supported()).collect()
    }

    /// The one in use: the fastest, unless [`Isa::select`] chose another.
    #[inline]
    pub fn current() -> Isa {
        match CHOSEN.load(Ordering::Relaxed) {
            1 => Isa::Scalar,
            2 => Isa::Avx2,
            3 => Isa::Avx512,
            4 => Isa::Neon,
            _ => {
                let best = Isa::supported().pop().unwrap_or(Isa::Scalar);
                // A choice made meanwhile stays.
                let _ =
                    CHOSEN.compare_exchange(0, best as u8, Ordering::Relaxed, Ordering::Relaxed);
                best
            }
        }
    }

    /// Uses what the environment variable `ASSAY_ISA` names, if it is set.
    ///
    /// # Errors
    /// When it names none, or one that this CPU does not have.
    pub fn select_from_env() -> Result<(), String> {
        let Some(name) = std::env::var_os(ENV).filter(|name| !name.is_empty()) else {
            return Ok(());
        };
        let chosen = name.to_string_lossy().parse::<Isa>().and_then(Isa::select);
        chosen.map_err(|what| format!("{ENV}: {what}"))
    }

    /// Uses this one from now on, in the whole process. For tests of the promise that the bits do not
    /// depend on it, and to see what another machine would do.
    ///
    /// # Errors
    /// When this CPU does not have it.
    pub fn select(self) -> Result<(), String> {
        if !self.is_supported() {
            let names: Vec<String> = Isa::supported().iter().map(Isa::to_string).collect();
            return Err(format!("this CPU has no {self}; it has {}", names.join(", ")));
        }
        CHOSEN.store(self as u8, Ordering::Relaxed);
        Ok(())
    }
}

/// Whether this CPU executes an operation on 512 bits in two halves, as Zen 4 does: AMD's family 0x19.
#[cfg(target_arch = "x86_64")]
pub(super) fn halves_512() -> bool {
    use std::arch::x86_64::__cpuid;
    static HALVES: OnceLock<bool> = OnceLock::new();
    *HALVES.get_or_init(|| {
        let vendor = __cpuid(0);
        let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat();
        let id = __cpuid(1).eax;
        name == b"AuthenticAMD" && (id >> 8 & 15) + (id >> 20 & 255) == 0x19
    })
}

/// Only x86-64 has them.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn halves_512() -> bool {
    false
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Neon => "neon",
        })
    }
}

impl FromStr for Isa {
    type Err = String;

    fn from_str(name: &str) -> Result<Isa, String> {
        ALL.into_iter().find(|isa| isa.to_string() == name).ok_or_else(|| {
            format!("`{name}` is none of the instruction sets scalar, avx2, avx512, neon")
        })
    }
}
