// qk_norm_rope: the RMSNorm of query or key heads and their rotation, fused: how Qwen3's
// attention begins. head_dim is 128.
//
//   X and Y [T, H, 128] bf16, weight [128] bf16, positions [T] i32, inv_freq [64] f32.
//
// n = x / sqrt(mean(x^2) + eps) * weight over a head, then with a = positions[t] * inv_freq[i]
// for i < 64
//   y[i]      = n[i] cos a - n[i + 64] sin a
//   y[i + 64] = n[i + 64] cos a + n[i] sin a.
// One wave takes one head, four to a block, without LDS: lane i holds the pair (i, i + 64).
// The squares of a lane are added by fused multiply-add, the lanes as a tree. The normalised
// head stays in registers in f32; inv_freq is theta^(-2i/128) in f32, from the host, the angle
// its product with the position in f32, cos and sin in f32. Each result is one product and one
// fused multiply-add, rounded to bf16 once. A NaN makes its head NaN.
#include "assay_bf16.h"

namespace {

constexpr int kHeadDim = 128;
constexpr int kWave = 64;
constexpr int kPairs = kHeadDim / 2;
constexpr int kThreads = 256;
constexpr int kHeads = kThreads / kWave; // of a block

static_assert(kPairs == kWave, "a lane holds one pair");

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

__global__ __launch_bounds__(kThreads) void qk_norm_rope_kernel(
    const bf16_bits* __restrict__ x, const bf16_bits* __restrict__ weight,
    const int32_t* __restrict__ positions, const float* __restrict__ inv_freq,
    bf16_bits* __restrict__ y, int all_heads, int heads, float eps) {
    const int lane = threadIdx.x % kWave;
    const int head = blockIdx.x * kHeads + threadIdx.x / kWave; // of all tokens
    if (head >= all_heads) return;                              // the whole wave

    const size_t low = static_cast<size_t>(head) * kHeadDim + lane;
    const size_t high = low + kPairs;
    float a = bf16_to_float(x[low]);
    float b = bf16_to_float(x[high]);

    float sum = fmaf(b, b, a * a);
    for (int offset = kWave / 2; offset > 0; offset /= 2) sum += __shfl_down(sum, offset);
    sum = __shfl(sum, 0);
    const float mean = sum / static_cast<float>(kHeadDim);
    const float scale = rsqrtf(mean + eps);
    a = a * scale * bf16_to_float(weight[lane]);
    b = b * scale * bf16_to_float(weight[lane + kPairs]);

    const int token = head / heads;
    const float position = static_cast<float>(positions[token]);
    const float frequency = inv_freq[lane];
    float c, s;
    cos_sin(position * frequency, c, s);
    const float turned_low = fmaf(a, c, -(b * s));
    const float turned_high = fmaf(b, c, a * s);
    y[low] = float_to_bf16(turned_low);
    y[high] = float_to_bf16(turned_high);
}

} // namespace

// hipErrorInvalidValue unless t and heads are at least 1, t * heads is below 2^31 - 3 and eps
// is not negative. Positions lie in 0..2^24.
extern "C" int qk_norm_rope_d128(const uint16_t* x, const uint16_t* weight,
                                 const int32_t* positions, const float* inv_freq, uint16_t* y,
                                 int t, int heads, float eps, hipStream_t stream) {
    if (t < 1 || heads < 1 || t > (INT32_MAX - kHeads) / heads || !(eps >= 0.0f))
        return hipErrorInvalidValue;
    const int all_heads = t * heads;
    const dim3 grid((all_heads + kHeads - 1) / kHeads);
    hipLaunchKernelGGL(qk_norm_rope_kernel, grid, dim3(kThreads), 0, stream, x, weight, positions,
                       inv_freq, y, all_heads, heads, eps);
    return hipGetLastError();
}
