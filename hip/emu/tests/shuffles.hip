// One output row of 64 for each shuffle, on the lane number as payload.
#include <hip/hip_runtime.h>
__global__ void kernel(int* out) {
    const int lane = threadIdx.x;
    int row = 0;
    out[64 * row++ + lane] = __shfl(lane, 5);
    out[64 * row++ + lane] = __shfl(lane, 37);
    out[64 * row++ + lane] = __shfl(lane, 37, 32);
    out[64 * row++ + lane] = __shfl_xor(lane, 32);
    out[64 * row++ + lane] = __shfl_xor(lane, 16, 32);
    out[64 * row++ + lane] = __shfl_xor(lane, 32, 32);
    out[64 * row++ + lane] = __shfl_down(lane, 16);
    out[64 * row++ + lane] = __shfl_down(lane, 16, 32);
    out[64 * row++ + lane] = __shfl_up(lane, 3);
    out[64 * row++ + lane] = __shfl_up(lane, 3, 8);
    out[64 * row++ + lane] = static_cast<int>(__shfl(static_cast<double>(lane) + 0.5, 63) * 2);
    out[64 * row++ + lane] = static_cast<int>(__lane_id());
}
extern "C" int launch(const int*, int* out, int, hipStream_t stream) {
    hipLaunchKernelGGL(kernel, dim3(1), dim3(64), 0, stream, out);
    return hipGetLastError();
}
