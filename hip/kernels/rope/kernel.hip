// rope: rotary position embedding of query or key heads in Qwen's half-split pairing.
//
//   X and Y [T, H, D] bf16, positions [T] i32, inv_freq [D/2] f32; D even, at most 512.
//
// With angle a = positions[t] * inv_freq[i] for i < D/2,
//   y[i]       = x[i] cos a - x[i + D/2] sin a
//   y[i + D/2] = x[i + D/2] cos a + x[i] sin a.
// One block of 256 threads takes one token: a thread computes cos and sin of one pair, which
// go through LDS to all heads. inv_freq is theta^(-2i/D) in f32, from the host, and the angle
// is its product with the position in f32, as transformers forms it; cos and sin stay in f32.
// Each result is one product and one fused multiply-add in f32, rounded to bf16 once. If D is
// a multiple of 16 a thread moves eight pairs at a time, otherwise one, with the same bits. A
// NaN or an infinity reaches its own pair only.
#include "assay_bf16.h"

namespace {

constexpr int kThreads = 256;
constexpr int kMaxPairs = kThreads; // of a head: one to a thread
constexpr int kVector = 8;          // elements of a 16-byte load

// kWidth elements, 1 or 8, from or to an address that is aligned to all of them.
template <int kWidth>
__device__ __forceinline__ void load(const bf16_bits* __restrict__ source, float (&value)[kWidth]) {
    if constexpr (kWidth == 1) {
        value[0] = bf16_to_float(*source);
    } else {
        const uint4 four = *reinterpret_cast<const uint4*>(source);
        const unsigned words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            value[2 * i] = bf16_to_float(static_cast<bf16_bits>(words[i]));
            value[2 * i + 1] = bf16_to_float(static_cast<bf16_bits>(words[i] >> 16));
        }
    }
}

template <int kWidth>
__device__ __forceinline__ void store(bf16_bits* __restrict__ target,
                                      const float (&value)[kWidth]) {
    if constexpr (kWidth == 1) {
        *target = float_to_bf16(value[0]);
    } else {
        unsigned words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const unsigned high = float_to_bf16(value[2 * i + 1]);
            words[i] = float_to_bf16(value[2 * i]) | high << 16;
        }
        *reinterpret_cast<uint4*>(target) = uint4{words[0], words[1], words[2], words[3]};
    }
}

// Cosine and sine of an angle. Multiples of pi/2 are taken off in f64, which leaves an error
// below 1e-9 for angles up to 2^24; the rest, at most pi/4, goes through polynomials in f32
// (Cephes). Both results are within 1.6 * 2^-24.
__device__ __forceinline__ void cos_sin(float angle, float& cosine, float& sine) {
    const double wide = angle;
    const double turns = rint(wide * 0.63661977236758134308);
    const float r = static_cast<float>(fma(-turns, 1.57079632679489661923, wide));
    const float z = r * r;
    const float s3 = fmaf(fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f);
    const float s = fmaf(s3 * z, r, r);
    const float c4 = fmaf(fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f), z,
                          4.166664568298827e-2f);
    const float c = fmaf(z * z, c4, fmaf(-0.5f, z, 1.0f));
    const int quadrant = static_cast<int>(turns) & 3;
    const float cos_part = quadrant % 2 == 0 ? c : s;
    const float sin_part = quadrant % 2 == 0 ? s : c;
    cosine = quadrant == 1 || quadrant == 2 ? -cos_part : cos_part;
    sine = quadrant >= 2 ? -sin_part : sin_part;
}

template <int kWidth>
__global__ __launch_bounds__(kThreads) void rope_kernel(const bf16_bits* __restrict__ x,
                                                        const int32_t* __restrict__ positions,
                                                        const float* __restrict__ inv_freq,
                                                        bf16_bits* __restrict__ y, int heads,
                                                        int pairs) {
    __shared__ float cos_table[kMaxPairs];
    __shared__ float sin_table[kMaxPairs];

    const int token = blockIdx.x;
    const int own = threadIdx.x;
    if (own < pairs) {
        const float position = static_cast<float>(positions[token]);
        const float frequency = inv_freq[own];
        float cosine, sine;
        cos_sin(position * frequency, cosine, sine);
        cos_table[own] = cosine;
        sin_table[own] = sine;
    }
    __syncthreads(); // the tables are complete

    const size_t first = static_cast<size_t>(token) * heads * 2 * pairs;
    const int packs = pairs / kWidth; // of a head
    for (int item = threadIdx.x; item < heads * packs; item += kThreads) {
        const int head = item / packs;
        const int pair = item % packs * kWidth;
        const size_t low = first + static_cast<size_t>(head) * 2 * pairs + pair;
        const size_t high = low + pairs;
        float a[kWidth], b[kWidth];
        load<kWidth>(x + low, a);
        load<kWidth>(x + high, b);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
            const float c = cos_table[pair + j];
            const float s = sin_table[pair + j];
            const float turned = fmaf(a[j], c, -(b[j] * s));
            b[j] = fmaf(b[j], c, a[j] * s);
            a[j] = turned;
        }
        store<kWidth>(y + low, a);
        store<kWidth>(y + high, b);
    }
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

} // namespace

// hipErrorInvalidValue unless t and heads are at least 1, head_dim is even and in 2..512, and
// heads * head_dim is below 2^31. Positions lie in 0..2^24.
extern "C" int rope_bf16(const uint16_t* x, const int32_t* positions, const float* inv_freq,
                         uint16_t* y, int t, int heads, int head_dim, hipStream_t stream) {
    if (t < 1 || heads < 1 || head_dim < 2 || head_dim % 2 != 0 || head_dim > 2 * kMaxPairs ||
        heads > INT32_MAX / head_dim)
        return hipErrorInvalidValue;
    const int pairs = head_dim / 2;
    if (pairs % kVector == 0 && aligned(x) && aligned(y)) {
        hipLaunchKernelGGL(rope_kernel<kVector>, dim3(t), dim3(kThreads), 0, stream, x, positions,
                           inv_freq, y, heads, pairs);
    } else {
        hipLaunchKernelGGL(rope_kernel<1>, dim3(t), dim3(kThreads), 0, stream, x, positions,
                           inv_freq, y, heads, pairs);
    }
    return hipGetLastError();
}
