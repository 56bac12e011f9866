// The architecture of a device, by the runtime's own struct, whose layout differs between releases.
#include <cstddef>
#include <hip/hip_runtime.h>

extern "C" int assay_device_arch(int device, char *text, std::size_t bytes) {
    hipDeviceProp_t properties;
    const hipError_t error = hipGetDeviceProperties(&properties, device);
    if (error != hipSuccess) return error;
    std::size_t length = 0;
    while (length + 1 < bytes && length < sizeof properties.gcnArchName &&
           properties.gcnArchName[length] != 0) {
        text[length] = properties.gcnArchName[length];
        ++length;
    }
    text[length] = 0;
    return 0;
}
