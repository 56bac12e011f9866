// f32 to the 8-bit floats of the OCP specification, in integer arithmetic.
//
// Rounds to nearest, ties to even; what is beyond the largest finite number becomes that number
// with its sign, infinities too; a NaN stays one.
//
// Source: OCP 8-bit Floating Point Specification (OFP8), and https://arxiv.org/abs/2209.05433
#pragma once

#include <hip/hip_runtime.h>

// Fraction bits, exponent bias, the largest finite code, and a NaN.
template <int kFraction, int kBias, unsigned kLargest, unsigned kNan>
__device__ __forceinline__ unsigned float_to_fp8(float value) {
    const unsigned bits = __float_as_uint(value);
    const unsigned sign = bits >> 24 & 0x80u;
    const unsigned magnitude = bits & 0x7fffffffu;
    constexpr unsigned kDropped = 23 - kFraction;
    constexpr unsigned kSmallestNormal = (127u - kBias + 1u) << 23;
    if (magnitude > 0x7f800000u) return sign | kNan;
    unsigned code;
    if (magnitude >= kSmallestNormal) {
        const unsigned tie = (1u << (kDropped - 1)) - 1u + (magnitude >> kDropped & 1u);
        code = (magnitude - ((127u - kBias) << 23) + tie) >> kDropped;
    } else {
        // Adding this number aligns the unit in the last place of f32 to the smallest subnormal's.
        constexpr unsigned kAlign = (127u - kBias + 1u + kDropped) << 23;
        code = __float_as_uint(__uint_as_float(magnitude) + __uint_as_float(kAlign)) - kAlign;
    }
    return sign | (code < kLargest ? code : kLargest);
}

__device__ __forceinline__ unsigned float_to_fp8_e4m3(float value) {
    return float_to_fp8<3, 7, 0x7eu, 0x7fu>(value);
}

__device__ __forceinline__ unsigned float_to_fp8_e5m2(float value) {
    return float_to_fp8<2, 15, 0x7bu, 0x7fu>(value);
}
