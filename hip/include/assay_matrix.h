// Matrix instructions of 16 x 16 x 16, bf16 into f32, one thin wrapper for each family.
//
// A wave of 64 lanes computes D[m, n] = sum_k A[m, k] B[k, n] + C[m, n]; all of its lanes must
// take part. A lane holds four elements of each matrix. With t = lane % 16 and q = lane / 16:
//
//         A: m, k          B: k, n          C and D: m, n
//   MFMA  t, 4 q + i       4 q + i, t       4 q + r, t        gfx90a, gfx942
//   MMAC  t, 4 q + i       4 q + i, t       t, q + 4 r        gfx928, gfx936, gfx938
//
// Kernels ask the functions below for these places and never compute them, so that one source
// serves both. ASSAY_MATRIX is defined where there is such an instruction: by the device
// compiler's architecture, or, on the emulator, by ASSAY_EMU_MATRIX_MFMA or _MMAC. Host code
// sees neither: a launch must be the same with and without.
//
// Sources: "AMD Instinct MI200 Instruction Set Architecture" and
// https://github.com/ROCm/amd_matrix_instruction_calculator (MFMA); the vendor's public code for
// MMAC, whose numerics are published nowhere. Only the compiler of Hygon's DTK has its builtins.
#pragma once

#include "assay_bf16.h"

#if defined(ASSAY_EMU_MATRIX_MFMA) || defined(__gfx90a__) || defined(__gfx942__)
#define ASSAY_MATRIX_MFMA 1
#elif defined(ASSAY_EMU_MATRIX_MMAC) || defined(__gfx928__) || defined(__gfx936__) || \
    defined(__gfx938__)
#define ASSAY_MATRIX_MMAC 1
#endif

#if defined(ASSAY_MATRIX_MFMA) || defined(ASSAY_MATRIX_MMAC)
#define ASSAY_MATRIX 1

// The emulator's findings name the line of a call.
#ifdef __ASSAY_EMU__
#define ASSAY_MATRIX_LINE , int line = __builtin_LINE()
#define ASSAY_MATRIX_AT_LINE , line
#else
#define ASSAY_MATRIX_LINE
#define ASSAY_MATRIX_AT_LINE
#endif

typedef short matrix_bf16x4 __attribute__((vector_size(8)));
typedef float matrix_f32x4 __attribute__((vector_size(16)));

constexpr int kMatrixSize = 16; // rows, columns and k of one instruction
constexpr int kMatrixWave = 64; // lanes of it

// The row of A, and the column of B, that a lane holds.
__device__ __forceinline__ int matrix_a_row(int lane) { return lane % 16; }
__device__ __forceinline__ int matrix_b_column(int lane) { return lane % 16; }
// The k of a lane's element i of A and of B.
__device__ __forceinline__ int matrix_a_k(int lane, int i) { return lane / 16 * 4 + i; }
__device__ __forceinline__ int matrix_b_k(int lane, int i) { return lane / 16 * 4 + i; }

#ifdef ASSAY_MATRIX_MFMA

// The row and column of a lane's element r of C and D.
__device__ __forceinline__ int matrix_d_row(int lane, int r) { return lane / 16 * 4 + r; }
__device__ __forceinline__ int matrix_d_column(int lane, int) { return lane % 16; }

__device__ __forceinline__ matrix_f32x4 matrix_multiply_add(matrix_bf16x4 a, matrix_bf16x4 b,
                                                            matrix_f32x4 c ASSAY_MATRIX_LINE) {
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0 ASSAY_MATRIX_AT_LINE);
}

#else

__device__ __forceinline__ int matrix_d_row(int lane, int) { return lane % 16; }
__device__ __forceinline__ int matrix_d_column(int lane, int r) { return lane / 16 + 4 * r; }

// Older releases of the DTK have the second spelling.
#ifdef __ASSAY_EMU__
#define ASSAY_MMAC __builtin_hcu_mmac_f32_16x16x16_bf16
#elif __has_builtin(__builtin_hcu_mmac_f32_16x16x16_bf16)
#define ASSAY_MMAC __builtin_hcu_mmac_f32_16x16x16_bf16
#else
#define ASSAY_MMAC __builtin_amdgcn_mmac_f32_16x16x16bf16
#endif

__device__ __forceinline__ matrix_f32x4 matrix_multiply_add(matrix_bf16x4 a, matrix_bf16x4 b,
                                                            matrix_f32x4 c ASSAY_MATRIX_LINE) {
    return ASSAY_MMAC(a, b, c ASSAY_MATRIX_AT_LINE);
}

#endif

#endif
