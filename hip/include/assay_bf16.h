// bf16 and f16 as 16-bit patterns.
//
// The HIP headers of older ROCm and DTK releases have no bf16 type, so kernels store it
// as unsigned short and widen it to float, which is exact. Narrowing rounds to nearest,
// ties to even; a NaN stays one.
#pragma once

#include <hip/hip_runtime.h>

typedef unsigned short bf16_bits;
typedef unsigned short f16_bits;

__device__ __forceinline__ float bf16_to_float(bf16_bits bits) {
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
}

__device__ __forceinline__ bf16_bits float_to_bf16(float value) {
    const unsigned bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) // NaN: the carry below could make it infinite
        return static_cast<bf16_bits>(bits >> 16 | 0x40u);
    return static_cast<bf16_bits>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

__device__ __forceinline__ float f16_to_float(f16_bits bits) {
    const unsigned sign = static_cast<unsigned>(bits & 0x8000u) << 16;
    const unsigned magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) // infinity or NaN
        return __uint_as_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude >= 0x400u) return __uint_as_float(sign | ((magnitude << 13) + 0x38000000u));
    // Zero or subnormal: an integer times 2^-24, exact in float and never subnormal there.
    const float value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
    return __uint_as_float(sign | __float_as_uint(value));
}

__device__ __forceinline__ f16_bits float_to_f16(float value) {
    const unsigned bits = __float_as_uint(value);
    const unsigned sign = bits >> 16 & 0x8000u;
    const unsigned magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) // NaN
        return static_cast<f16_bits>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) return static_cast<f16_bits>(sign | 0x7c00u); // to infinity
    if (magnitude >= 0x38800000u) {
        const unsigned rounded = magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u);
        return static_cast<f16_bits>(sign | rounded >> 13);
    }
    // Subnormal results: adding 0.5 aligns the unit in the last place to 2^-24.
    const unsigned aligned = __float_as_uint(__uint_as_float(magnitude) + 0.5f);
    return static_cast<f16_bits>(sign | (aligned - 0x3f000000u));
}
