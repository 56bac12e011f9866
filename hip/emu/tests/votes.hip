// Votes of a full wave, of the odd lanes only, and of a wave of 32 threads.
#include <hip/hip_runtime.h>
__global__ void kernel(int* out) {
    const int lane = threadIdx.x;
    const unsigned long long small = __ballot(lane % 64 < 10);
    out[lane] = __popcll(small);
    unsigned long long odd = 0;
    if (lane % 2 == 1) odd = __ballot(1);
    out[96 + lane] = static_cast<int>(odd >> 32);
    out[192 + lane] = __any(lane == 70) * 2 + __all(lane >= 64);
}
extern "C" int launch(const int*, int* out, int, hipStream_t stream) {
    hipLaunchKernelGGL(kernel, dim3(1), dim3(96), 0, stream, out);
    return hipGetLastError();
}
