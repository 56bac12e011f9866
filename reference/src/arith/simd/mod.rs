//! Registers: what the kernels need of an instruction set, for f32 and f64.
//!
//! A reduction has [`Float::LANES`] lanes, whatever the registers' size; `LANES / Register::WIDTH`
//! registers hold them, lane 0 in the first.

#![expect(unsafe_code, reason = "what registers ask of their callers stands at the traits")]

use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;

/// A number that reductions are carried out in.
pub(in crate::arith) trait Float: Copy + Default + Send + Sync + 'static {
    /// Lanes of a reduction.
    const LANES: usize;
    /// The register of AVX2.
    #[cfg(target_arch = "x86_64")]
    type Avx2: Register<Elem = Self>;
    /// The register of AVX-512.
    #[cfg(target_arch = "x86_64")]
    type Avx512: Register<Elem = Self>;
    /// The register of NEON.
    #[cfg(target_arch = "aarch64")]
    type Neon: Register<Elem = Self>;
    /// The definition: the sum of products; `first` is the index of element 0 on the reduced axis.
    fn dot(a: &[Self], b: &[Self], first: usize) -> Self;
    /// A stored value, rounded to nearest where it has more bits.
    fn of(x: f64) -> Self;
    /// The same number in f64.
    fn wide(self) -> f64;
    /// From its bytes in memory.
    fn from_bytes(raw: &[u8]) -> Self;
}

impl Float for f32 {
    const LANES: usize = super::dot::LANES_F32;
    #[cfg(target_arch = "x86_64")]
    type Avx2 = std::arch::x86_64::__m256;
    #[cfg(target_arch = "x86_64")]
    type Avx512 = std::arch::x86_64::__m512;
    #[cfg(target_arch = "aarch64")]
    type Neon = std::arch::aarch64::float32x4_t;

    fn dot(a: &[f32], b: &[f32], first: usize) -> f32 {
        super::dot::dot_f32(a, b, first)
    }
    fn of(x: f64) -> f32 {
        x as f32
    }
    fn wide(self) -> f64 {
        f64::from(self)
    }
    fn from_bytes(raw: &[u8]) -> f32 {
        f32::from_ne_bytes(raw.try_into().expect("four bytes"))
    }
}

impl Float for f64 {
    const LANES: usize = super::dot::LANES_F64;
    #[cfg(target_arch = "x86_64")]
    type Avx2 = std::arch::x86_64::__m256d;
    #[cfg(target_arch = "x86_64")]
    type Avx512 = std::arch::x86_64::__m512d;
    #[cfg(target_arch = "aarch64")]
    type Neon = std::arch::aarch64::float64x2_t;

    fn dot(a: &[f64], b: &[f64], first: usize) -> f64 {
        super::dot::dot_f64(a, b, first)
    }
    fn of(x: f64) -> f64 {
        x
    }
    fn wide(self) -> f64 {
        self
    }
    fn from_bytes(raw: &[u8]) -> f64 {
        f64::from_ne_bytes(raw.try_into().expect("eight bytes"))
    }
}

/// A vector register.
///
/// # Safety
/// Every method executes instructions of its set: call them only where the CPU has it, from code that is
/// compiled for it. Pointers need no alignment; as many elements as the register is wide must be there.
pub(super) trait Register: Copy {
    /// Its elements.
    type Elem: Float;
    /// How many.
    const WIDTH: usize;
    /// All +0.
    unsafe fn zero() -> Self;
    /// One number in every place.
    unsafe fn splat(x: Self::Elem) -> Self;
    /// Elements of its own type.
    unsafe fn load(p: *const Self::Elem) -> Self;
    /// The reverse.
    unsafe fn store(self, p: *mut Self::Elem);
    /// Widened bf16.
    unsafe fn load_bf16(p: *const u16) -> Self;
    /// Widened f16.
    unsafe fn load_f16(p: *const u16) -> Self;
    /// Of f32.
    unsafe fn load_f32(p: *const f32) -> Self;
    /// Lane by lane.
    unsafe fn add(self, other: Self) -> Self;
    /// self + a b, rounded once.
    unsafe fn fma(self, a: Self, b: Self) -> Self;
    /// Begins to read what lies there into the second-level cache, where the CPU can; any address will do.
    #[inline(always)]
    fn prefetch(_p: *const u8) {}
    /// Its lanes added in halves: WIDTH / 2 apart, ..., 1 apart.
    unsafe fn tree(self) -> Self::Elem;
    /// The same of four.
    #[inline(always)]
    unsafe fn trees(four: [Self; 4]) -> [Self::Elem; 4] {
        let [a, b, c, d] = four;
        // SAFETY: as the caller promises.
        unsafe { [a.tree(), b.tree(), c.tree(), d.tree()] }
    }
}

/// The lanes of a reduction in `P` registers, added in halves down to one register.
///
/// # Safety
/// As for [`Register`].
#[inline(always)]
pub(super) unsafe fn fold<V: Register, const P: usize>(mut parts: [V; P]) -> V {
    let mut half = P / 2;
    while half > 0 {
        for p in 0..half {
            // SAFETY: as the caller promises.
            parts[p] = unsafe { parts[p].add(parts[p + half]) };
        }
        half /= 2;
    }
    parts[0]
}

/// How weights lie in memory. The bytes of -0 pad them, so that a product with a padding +0 of the
/// activations, -0, leaves a lane as it is.
pub(super) trait Stored: Sync {
    /// Bytes of an element.
    const SIZE: usize;
    /// The bytes of -0, in the first `SIZE` places.
    const NEGATIVE_ZERO: [u8; 8];
    /// A register of widened elements.
    ///
    /// # Safety
    /// As for [`Register`].
    unsafe fn load<V: Register>(p: *const u8) -> V;
    /// One element of `SIZE` bytes.
    fn one<T: Float>(raw: &[u8]) -> T;
}

/// bfloat16.
pub(super) struct Bf16;
/// IEEE binary16.
pub(super) struct F16;
/// IEEE binary32.
pub(super) struct F32;
/// The number of the reduction itself.
pub(super) struct Own<T>(std::marker::PhantomData<T>);

macro_rules! stored {
    ($name:ident, $bits:expr, $load:ident, $one:expr) => {
        impl Stored for $name {
            const SIZE: usize = size_of_val(&$bits);
            const NEGATIVE_ZERO: [u8; 8] = padded($bits as u64);
            #[inline(always)]
            unsafe fn load<V: Register>(p: *const u8) -> V {
                // SAFETY: as the caller promises.
                unsafe { V::$load(p.cast()) }
            }
            fn one<T: Float>(raw: &[u8]) -> T {
                T::of($one(raw.try_into().expect("SIZE bytes")))
            }
        }
    };
}

/// Little-endian, so that a shorter number stands in the first places.
const fn padded(bits: u64) -> [u8; 8] {
    bits.to_le_bytes()
}

stored!(Bf16, 0x8000u16, load_bf16, |raw| bf16::from_le_bytes(raw).to_f64());
stored!(F16, 0x8000u16, load_f16, |raw| f16::from_le_bytes(raw).to_f64());
stored!(F32, 0x8000_0000u32, load_f32, |raw| f64::from(f32::from_le_bytes(raw)));

impl<T: Float> Stored for Own<T> {
    const SIZE: usize = size_of::<T>();
    const NEGATIVE_ZERO: [u8; 8] = padded(1 << (8 * size_of::<T>() - 1));
    #[inline(always)]
    unsafe fn load<V: Register>(p: *const u8) -> V {
        // SAFETY: as the caller promises; `V`'s element is T where the kernels use this.
        unsafe { V::load(p.cast()) }
    }
    fn one<N: Float>(raw: &[u8]) -> N {
        N::of(T::from_bytes(raw).wide())
    }
}
