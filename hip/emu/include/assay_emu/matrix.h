// The matrix builtins of the hardware that the module is compiled for, ASSAY_EMU_MATRIX_MFMA
// or ASSAY_EMU_MATRIX_MMAC; without one of them there are none. All 64 lanes of the wave take
// part. The runtime has the layouts and the arithmetic.
#pragma once

namespace assay_emu {

typedef short bf16x4 __attribute__((vector_size(8)));
typedef float f32x4 __attribute__((vector_size(16)));

inline f32x4 matrix(WaveOp op, bf16x4 a, bf16x4 b, f32x4 c, uint32_t line) {
    MatrixRegisters registers;
    for (int i = 0; i < 4; ++i) {
        registers.a[i] = static_cast<uint16_t>(a[i]);
        registers.b[i] = static_cast<uint16_t>(b[i]);
        registers.c[i] = c[i];
    }
    const WaveCall call{op, line, reinterpret_cast<uint64_t>(&registers), 0, kWaveSize};
    // The other lanes' scheduler reads and writes the registers.
    asm volatile("" ::: "memory");
    table->wave(&call);
    asm volatile("" ::: "memory");
    return f32x4{registers.d[0], registers.d[1], registers.d[2], registers.d[3]};
}

} // namespace assay_emu

#ifdef ASSAY_EMU_MATRIX_MFMA
// cbsz, abid and blgp broadcast and permute on the hardware; here they must be 0, and anything
// else gives NaN.
inline assay_emu::f32x4 __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(
    assay_emu::bf16x4 a, assay_emu::bf16x4 b, assay_emu::f32x4 c, int cbsz, int abid, int blgp,
    int line = __builtin_LINE()) {
    if ((cbsz | abid | blgp) != 0) c += __builtin_nanf("");
    return assay_emu::matrix(assay_emu::WaveOp::Mfma, a, b, c, line);
}
#endif

#ifdef ASSAY_EMU_MATRIX_MMAC
inline assay_emu::f32x4 __builtin_hcu_mmac_f32_16x16x16_bf16(assay_emu::bf16x4 a,
                                                            assay_emu::bf16x4 b,
                                                            assay_emu::f32x4 c,
                                                            int line = __builtin_LINE()) {
    return assay_emu::matrix(assay_emu::WaveOp::Mmac, a, b, c, line);
}
#endif
