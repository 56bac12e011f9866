//! The kernels, one folder each: the HIP source, its typed launcher and its source edits.

#[cfg(feature = "hip")]
use std::ffi::c_void;
use std::sync::LazyLock;

use assay_reference::Case;

use crate::backend::{Backend, Launched};
use crate::edits::{Edits, Mutant, SourceEdit};
use crate::error::Error;
use crate::matrix::Matrix;
use crate::options::LaunchOptions;

pub(crate) mod linear;

/// Runs a kernel on a case of its op.
pub type Run = fn(&Backend, &Case, &LaunchOptions) -> Result<Launched, Error>;

/// A registered kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its name, that of its folder.
    pub name: &'static str,
    /// The op that it implements, by the reference's name.
    pub op: &'static str,
    /// Its HIP source; compiles with hipcc and for the emulator.
    pub source: &'static str,
    /// Source edits that break it.
    pub mutants: Vec<Mutant>,
    /// Source edits that change it legitimately.
    pub controls: Vec<SourceEdit>,
    /// Its typed launcher behind the form that all kernels share: arguments by the op's
    /// names, params as the op's.
    pub run: Run,
}

impl Kernel {
    /// The builds that its source has: one for each kind of matrix instructions.
    #[must_use]
    pub fn builds(&self) -> &'static [Matrix] {
        Matrix::builds(self.source)
    }

    /// Whether a case is within the kernel's contract.
    ///
    /// # Errors
    /// [`Error::Argument`] with what the contract asks, or that the case is not the op's.
    pub fn accepts(&self, case: &Case) -> Result<(), Error> {
        match (self.run)(&Backend::Contract, case, &LaunchOptions::default()) {
            Ok(_) | Err(Error::NotLaunched) => Ok(()),
            Err(e) => Err(e),
        }
    }
}

macro_rules! kernels {
    ($($name:ident => [$($launcher:ident),+]),* $(,)?) => {
        $(pub mod $name;)*

        /// All kernels.
        #[must_use]
        pub fn kernels() -> &'static [Kernel] {
            static KERNELS: LazyLock<Vec<Kernel>> = LazyLock::new(|| vec![$(
                define(
                    stringify!($name),
                    $name::OP,
                    include_str!(concat!(stringify!($name), "/kernel.hip")),
                    include_str!(concat!(stringify!($name), "/mutants.toml")),
                    $name::run,
                )
            ),*]);
            &KERNELS
        }

        /// The address of a launcher that was compiled for the device.
        #[cfg(feature = "hip")]
        #[expect(unsafe_code, reason = "declares what build.rs compiles")]
        pub(crate) fn device_launcher(name: &'static str) -> Result<*const c_void, Error> {
            // Only the addresses are taken here; the kernel's module knows the types.
            unsafe extern "C" {
                $($(fn $launcher();)+)*
            }
            match name {
                $($(stringify!($launcher) => Ok($launcher as *const c_void),)+)*
                _ => Err(Error::NoLauncher { launcher: name.to_owned() }),
            }
        }

        /// The object file that hipcc made of a kernel.
        #[cfg(feature = "hip")]
        pub(crate) fn device_object(name: &str) -> Option<&'static [u8]> {
            match name {
                $(stringify!($name) => {
                    Some(include_bytes!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".o")))
                })*
                _ => None,
            }
        }
    };
}

// One line a kernel: its folder, and the launchers that its source defines.
kernels! {
    gemm_bf16 => [gemm_bf16],
    attention_prefill_d128 => [attention_prefill_d128],
    gptq_dequant => [gptq_dequant_bf16, gptq_dequant_f16],
    silu_mul => [silu_mul],
    kv_store_paged => [kv_store_paged_copy, kv_store_paged_fp8],
    argmax => [argmax_bf16, argmax_f16, argmax_f32],
    embedding => [embedding_i32, embedding_i64],
    softmax => [softmax_bf16, softmax_f32],
    rms_norm => [rms_norm_bf16],
    add_rms_norm => [add_rms_norm_bf16],
    qk_norm_rope => [qk_norm_rope_d128],
    rope => [rope_bf16],
    gemv_bf16 => [gemv_bf16],
    gptq_gemm => [gptq_gemm_bf16, gptq_gemm_f16],
    gemm_bf16_splitk => [gemm_bf16_splitk],
    attention_decode_paged_d128 => [attention_decode_paged_d128],
    awq_dequant => [awq_dequant_bf16, awq_dequant_f16],
}

fn define(
    name: &'static str,
    op: &'static str,
    source: &'static str,
    edits: &'static str,
    run: Run,
) -> Kernel {
    let Edits { mutants, controls } = toml::from_str(edits)
        .unwrap_or_else(|e| panic!("the embedded mutants.toml of {name} does not parse: {e}"));
    Kernel { name, op, source, mutants, controls, run }
}

/// The kernel of this name.
#[must_use]
pub fn kernel(name: &str) -> Option<&'static Kernel> {
    kernels().iter().find(|kernel| kernel.name == name)
}

/// A case's tensor by argument name.
pub(crate) fn tensor<'a>(
    kernel: &'static str,
    case: &'a Case,
    argument: &'static str,
) -> Result<&'a assay_reference::Tensor, Error> {
    case.tensors.get(argument).ok_or_else(|| Error::Argument {
        kernel,
        argument,
        expected: "a tensor".to_owned(),
        given: "none".to_owned(),
    })
}
