// Matrix instructions: D = A B + C with 16 x 16 x 16 bf16 operands and f32 results, spread
// over the registers of a wave.
#pragma once

#include "assay_emu/abi.h"

namespace assay_emu {

// Writes `d` of all 64 lanes from their `a`, `b` and `c`. `ulps` is how far a device's
// arithmetic may be from the pinned one: 0 adds the products to C one by one in the order of
// k; 1 in the opposite order; 2 and more adds four chains of every fourth k, then C.
void multiply(WaveOp op, MatrixRegisters* const lanes[kWaveSize], uint32_t ulps);

} // namespace assay_emu
