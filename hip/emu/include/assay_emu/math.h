// The transcendental functions of the emulator.
//
// Host libraries disagree in the last bits and so do devices. Here every result
// is computed in double with +, - and * only, in a fixed order, and rounded once
// to float: the bits are the same on every IEEE host. The launch can then move
// each inexact result by a few ulps to show that a verdict does not hang on them.
#pragma once

#include <cmath>
#include <cstring>

namespace assay_emu {

template <class To, class From>
inline To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast needs equal sizes");
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}

// Moves `y` by config.ulps representable steps, up or down as a hash of the
// argument says. Zero, infinity, NaN and results that would cross them stay.
inline float perturb(float y, float argument) {
    const MathConfig& config = *table->math();
    if (config.ulps == 0) return y;
    const uint32_t bits = bit_cast<uint32_t>(y);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude <= config.ulps || magnitude + config.ulps >= 0x7f800000u) return y;
    uint64_t h = (config.seed ^ bit_cast<uint32_t>(argument)) * 0x9e3779b97f4a7c15ull;
    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9ull;
    return bit_cast<float>((h >> 63) != 0 ? bits + config.ulps : bits - config.ulps);
}

// exp(r) * 2^k for |r| <= ln(2) / 2: Taylor to r^13, error below 1e-17.
inline double exp_reduced(double r, int k) {
    constexpr double coefficients[] = {
        1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0,
        1.0 / 362880.0,     1.0 / 40320.0,     1.0 / 5040.0,     1.0 / 720.0,
        1.0 / 120.0,        1.0 / 24.0,        1.0 / 6.0,        0.5,
        1.0,                1.0};
    double p = 0.0;
    for (double c : coefficients) p = p * r + c;
    return p * bit_cast<double>(static_cast<uint64_t>(k + 1023) << 52);
}

// Whether `x` is outside the range in which exp2 of it is a non-zero finite
// float; `limit` is then the float result.
inline bool exp2_saturates(double x, float& limit) {
    if (x != x) {
        limit = static_cast<float>(x);
    } else if (x > 129.0) {
        limit = __builtin_inff();
    } else if (x < -151.0) {
        limit = 0.0f;
    } else {
        return false;
    }
    return true;
}

inline int nearest_int(double x) { return static_cast<int>(x < 0.0 ? x - 0.5 : x + 0.5); }

inline float pinned_expf(float argument) {
    const double x = argument;
    const double scaled = x * 1.44269504088896340736; // log2(e)
    float limit;
    if (exp2_saturates(scaled, limit)) return limit;
    if (argument == 0.0f) return 1.0f; // exact everywhere, never perturbed
    const int k = nearest_int(scaled);
    // ln(2) in two parts; the product of k and the first is exact.
    const double r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10;
    return perturb(static_cast<float>(exp_reduced(r, k)), argument);
}

inline float pinned_exp2f(float argument) {
    const double x = argument;
    float limit;
    if (exp2_saturates(x, limit)) return limit;
    const int k = nearest_int(x);
    const double r = (x - k) * 0.693147180559945309417;
    const float y = static_cast<float>(exp_reduced(r, k));
    return r == 0.0 ? y : perturb(y, argument);
}

inline float pinned_rsqrtf(float x) {
    const double wide = x;
    const float y = static_cast<float>(1.0 / __builtin_sqrt(wide));
    // An inexact y is off by up to 2^-25 of itself, which double shows.
    const bool exact = static_cast<double>(y) * y * wide == 1.0;
    return exact ? y : perturb(y, x);
}

inline float pinned_reciprocal(float x) {
    const float y = 1.0f / x;
    const bool exact = static_cast<double>(y) * x == 1.0;
    return exact ? y : perturb(y, x);
}

} // namespace assay_emu

#define expf(x) ::assay_emu::pinned_expf(x)
#define __expf(x) ::assay_emu::pinned_expf(x)
#define exp2f(x) ::assay_emu::pinned_exp2f(x)
#define rsqrtf(x) ::assay_emu::pinned_rsqrtf(x)
#define __frsqrt_rn(x) ::assay_emu::pinned_rsqrtf(x)
#define __frcp_rn(x) ::assay_emu::pinned_reciprocal(x)
#define __fdividef(a, b) ((a) * ::assay_emu::pinned_reciprocal(b))
#define sqrtf(x) __builtin_sqrtf(x)
#define fmaf(a, b, c) __builtin_fmaf(a, b, c)

// Not pinned: the host's would give host-dependent bits, so they don't compile.
#define sinf(x) assay_emu_has_no_pinned_sinf(x)
#define cosf(x) assay_emu_has_no_pinned_cosf(x)
#define tanhf(x) assay_emu_has_no_pinned_tanhf(x)
#define logf(x) assay_emu_has_no_pinned_logf(x)
#define powf(x, y) assay_emu_has_no_pinned_powf(x, y)
#define erff(x) assay_emu_has_no_pinned_erff(x)
