//! The floating-point environment: default rounding, subnormals kept.
//!
//! Hosts that load a library built with fast-math run with subnormals flushed to zero; an entry point
//! of this crate must give the same bits there.

/// Sets the default environment (round to nearest, no flushing) until dropped.
#[derive(Debug)]
pub struct DefaultEnv {
    saved: u64,
}

impl DefaultEnv {
    /// Saves this thread's environment and sets the default one.
    pub fn enter() -> DefaultEnv {
        let saved = imp::get();
        imp::set(imp::DEFAULT);
        DefaultEnv { saved }
    }
}

impl Drop for DefaultEnv {
    fn drop(&mut self) {
        imp::set(self.saved);
    }
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "MXCSR is reached by instructions only")]
mod imp {
    use std::arch::asm;

    /// All exceptions masked, round to nearest, no FTZ, no DAZ.
    pub(super) const DEFAULT: u64 = 0x1f80;

    pub(super) fn get() -> u64 {
        let mut csr = 0u32;
        // SAFETY: stmxcsr stores four bytes at the address of a live u32.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut csr, options(nostack, preserves_flags)) };
        u64::from(csr)
    }

    pub(super) fn set(value: u64) {
        let csr = value as u32;
        // SAFETY: ldmxcsr reads four bytes of a live u32; the value is a saved or the default MXCSR,
        // so no reserved bit is set.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const csr, options(nostack, preserves_flags)) };
    }
}

#[cfg(target_arch = "aarch64")]
#[expect(unsafe_code, reason = "FPCR is reached by instructions only")]
mod imp {
    use std::arch::asm;

    /// Round to nearest, no FZ, no FZ16.
    pub(super) const DEFAULT: u64 = 0;

    pub(super) fn get() -> u64 {
        let value: u64;
        // SAFETY: reads the floating-point control register.
        unsafe { asm!("mrs {}, fpcr", out(reg) value, options(nostack, nomem)) };
        value
    }

    pub(super) fn set(value: u64) {
        // SAFETY: writes a saved or the default value to the floating-point control register.
        unsafe { asm!("msr fpcr, {}", in(reg) value, options(nostack)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod imp {
    pub(super) const DEFAULT: u64 = 0;

    pub(super) fn get() -> u64 {
        0
    }

    pub(super) fn set(_: u64) {}
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use super::*;

    /// FTZ and DAZ of MXCSR, FZ of FPCR, beside the default.
    const FLUSHING: u64 = if cfg!(target_arch = "x86_64") { 0x9fc0 } else { 1 << 24 };

    #[test]
    fn subnormals_survive_a_flushing_host() {
        let tiny = std::hint::black_box(1e-40f32);
        imp::set(FLUSHING);
        let one = std::hint::black_box(1.0f32);
        let flushed = std::hint::black_box(tiny * one);
        let kept = {
            let _env = DefaultEnv::enter();
            std::hint::black_box(std::hint::black_box(tiny) * std::hint::black_box(1.0f32))
        };
        let restored = imp::get();
        imp::set(imp::DEFAULT);
        assert_eq!(flushed.to_bits(), 0);
        assert_eq!(kept, 1e-40f32);
        assert_eq!(restored & FLUSHING, FLUSHING);
    }
}
