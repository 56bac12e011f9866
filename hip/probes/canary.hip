// probe_canary: blocks of up to 1024 threads, in which every thread writes its own index.
//
//   a, b, c unused; out [n]; op: threads a block; n a multiple of it
//
// `__launch_bounds__(1024)` is what makes such a launch defined: without it AMD's compiler plans for
// 256 threads (HIP C++ language extensions, `__launch_bounds__`).
#include <hip/hip_runtime.h>

namespace {

__global__ __launch_bounds__(1024) void canary_kernel(unsigned* out, int threads) {
    __shared__ unsigned lds[1024];
    // Through LDS and a barrier, from the thread opposite: every wave must have run.
    lds[threadIdx.x] = threadIdx.x;
    __syncthreads();
    const unsigned opposite = lds[threads - 1 - threadIdx.x];
    out[blockIdx.x * threads + threadIdx.x] = blockIdx.x * threads + (threads - 1 - opposite);
}

} // namespace

extern "C" int probe_canary(const unsigned*, const unsigned*, const unsigned*, unsigned* out,
                            int op, int n, hipStream_t stream) {
    if (op < 1 || op > 1024 || n < op || n % op != 0) return hipErrorInvalidValue;
    hipLaunchKernelGGL(canary_kernel, dim3(n / op), dim3(op), 0, stream, out, op);
    return hipGetLastError();
}
