// Matrix instructions in pinned arithmetic, from the published lane layouts.
//
// MFMA: AMD's, v_mfma_f32_16x16x16_bf16_1k. "AMD Instinct MI200 Instruction Set Architecture",
// section on matrix arithmetic, and https://github.com/ROCm/amd_matrix_instruction_calculator.
// MMAC: Hygon's, from public sources that use it, such as
// https://github.com/tile-ai/tilelang and Hygon's forks of Triton and Composable Kernel.
//
// What a DCU's MMAC does with subnormals and in which order and width it adds is published
// nowhere. Assumed here: exact products, each added to an f32 accumulator with one rounding to
// nearest even, in the order of k; subnormals kept.
#include "matrix.h"

namespace assay_emu {

namespace {

constexpr unsigned kSize = 16;

// A register: which lane's, and its index there.
struct Register {
    unsigned lane, index;
};

// Where an element of the matrices lies. The kernels' headers state the opposite direction,
// from register to element, so that an error in either shows.
Register of_a(unsigned row, unsigned k) { return {16 * (k / 4) + row, k % 4}; }
Register of_b(unsigned k, unsigned column) { return {16 * (k / 4) + column, k % 4}; }
Register of_d(WaveOp op, unsigned row, unsigned column) {
    if (op == WaveOp::Mfma) return {16 * (row / 4) + column, row % 4};
    return {16 * (column % 4) + row, column / 4};
}

// Through f32, so that flushed subnormals are flushed here too.
double widen(uint16_t bf16) {
    return __builtin_bit_cast(float, static_cast<uint32_t>(bf16) << 16);
}

constexpr unsigned kBlock = 4; // columns at a time
constexpr unsigned kBlocks = kSize / kBlock;
typedef float Floats __attribute__((vector_size(kBlock * sizeof(float))));
typedef double Doubles __attribute__((vector_size(kBlock * sizeof(double))));

// sum + product, rounded once. The product of two bf16 has 16 bits and is exact in f64. So is
// its sum with an f32, or else one of the two is below 2^-29 of the other, and then the f64 sum
// is so close to an f32 that rounding twice gives what rounding once would.
void add(Floats& sum, const Doubles& product) {
    sum = __builtin_convertvector(__builtin_convertvector(sum, Doubles) + product, Floats);
}

typedef double Left[kSize][kSize];     // A by row and k
typedef Doubles Right[kSize][kBlocks]; // B by k and columns
typedef Floats Row[kBlocks];

// Every `step`-th k from `first`, ascending or descending, onto a row of the accumulator.
void chain(Row& sum, const double (&a)[kSize], const Right& b, unsigned first, unsigned step,
           bool descending) {
    for (unsigned n = first; n < kSize; n += step) {
        const unsigned k = descending ? kSize - 1 - n : n;
        for (unsigned block = 0; block < kBlocks; ++block) add(sum[block], a[k] * b[k][block]);
    }
}

void multiply_row(Row& sum, const double (&a)[kSize], const Right& b, uint32_t ulps) {
    if (ulps < 2) {
        chain(sum, a, b, 0, 1, ulps == 1);
        return;
    }
    Row part[4] = {};
    for (unsigned i = 0; i < 4; ++i) chain(part[i], a, b, i, 4, false);
    for (unsigned block = 0; block < kBlocks; ++block)
        sum[block] += (part[0][block] + part[1][block]) + (part[2][block] + part[3][block]);
}

} // namespace

void multiply(WaveOp op, MatrixRegisters* const lanes[kWaveSize], uint32_t ulps) {
    Left a;
    Right b;
    for (unsigned i = 0; i < kSize; ++i) {
        for (unsigned k = 0; k < kSize; ++k) {
            const Register of[2] = {of_a(i, k), of_b(k, i)};
            a[i][k] = widen(lanes[of[0].lane]->a[of[0].index]);
            b[k][i / kBlock][i % kBlock] = widen(lanes[of[1].lane]->b[of[1].index]);
        }
    }
    for (unsigned row = 0; row < kSize; ++row) {
        Row sum;
        for (unsigned column = 0; column < kSize; ++column) {
            const Register c = of_d(op, row, column);
            sum[column / kBlock][column % kBlock] = lanes[c.lane]->c[c.index];
        }
        multiply_row(sum, a[row], b, ulps);
        for (unsigned column = 0; column < kSize; ++column) {
            const Register d = of_d(op, row, column);
            lanes[d.lane]->d[d.index] = sum[column / kBlock][column % kBlock];
        }
    }
}

} // namespace assay_emu
