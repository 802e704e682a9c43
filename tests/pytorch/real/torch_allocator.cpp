// torch's own CUDA caching allocator on a simulated device, which has addresses and no memory.
// The executable defines the functions of CUDA and NVML that the allocator calls.
//
// Input: bytes of the device, then lines "key bytes"; a negative number frees the key.
// Output: peaks of allocated, reserved and inactive split bytes, retries, bytes that do not fit.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/PeerToPeerAccess.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>

static size_t capacity, used;
static uintptr_t next_address = uintptr_t(1) << 40;
static std::map<uintptr_t, size_t> segments;

static CUresult reserve(CUdeviceptr* at, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  *at = next_address;
  next_address += bytes;
  return CUDA_SUCCESS;
}
static CUresult create(CUmemGenericAllocationHandle* handle, size_t bytes,
                       const CUmemAllocationProp*, unsigned long long) {
  if (used + bytes > capacity) return CUDA_ERROR_OUT_OF_MEMORY;
  used += bytes;
  *handle = bytes;
  return CUDA_SUCCESS;
}
static CUresult release(CUmemGenericAllocationHandle bytes) { used -= bytes; return CUDA_SUCCESS; }
static CUresult attribute(int* value, int, int) { *value = 0; return CUDA_SUCCESS; }
static CUresult succeed(...) { return CUDA_SUCCESS; }

extern "C" {
cudaError_t cudaGetDeviceCount(int* count) { *count = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { *device = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { *version = 13000; return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* low, int* high) {
  *low = 0;
  *high = -1;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = capacity - used;
  *total = capacity;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  memset(properties, 0, sizeof *properties);
  properties->totalGlobalMem = capacity;
  properties->major = 8;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** at, size_t bytes) {
  if (used + bytes > capacity) return cudaErrorMemoryAllocation;
  *at = reinterpret_cast<void*>(next_address);
  segments[next_address] = bytes;
  used += bytes;
  next_address += bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void* at) {
  auto found = segments.find(reinterpret_cast<uintptr_t>(at));
  used -= found->second;
  segments.erase(found);
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = (void*)succeed;
  if (!strcmp(name, "cuMemAddressReserve")) *function = (void*)reserve;
  if (!strcmp(name, "cuMemCreate")) *function = (void*)create;
  if (!strcmp(name, "cuMemRelease")) *function = (void*)release;
  if (!strcmp(name, "cuDeviceGetAttribute")) *function = (void*)attribute;
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

// torch looks NVML up in a library of its own; it finds these functions instead.
void* dlopen(const char* name, int flags) {
  static auto real = (void* (*)(const char*, int))dlsym(RTLD_NEXT, "dlopen");
  return real(name && strstr(name, "nvidia-ml") ? nullptr : name, flags);
}
int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) { *device = nullptr; return 0; }
int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) { *count = 0; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, void*) {
  *count = 0;
  return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType() { return 1; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2() { return 1; }
int nvmlSystemGetCudaDriverVersion_v2() { return 1; }
}

int main() {
  if (scanf("%zu", &capacity) != 1) return 2;
  c10::cuda::CUDACachingAllocator::init(1);
  c10::cuda::detail::init_p2p_access_cache(1);
  auto* allocator = c10::cuda::CUDACachingAllocator::get();
  std::map<long long, void*> live;
  long long key, bytes, failed = 0;
  while (scanf("%lld %lld", &key, &bytes) == 2) {
    if (bytes < 0) {
      allocator->raw_delete(live[key]);
      continue;
    }
    try {
      live[key] = allocator->raw_alloc(bytes);
    } catch (const c10::OutOfMemoryError&) {
      failed = bytes;
      break;
    }
  }
  auto stats = allocator->getDeviceStats(0);
  printf("%lld %lld %lld %lld %lld\n", (long long)stats.allocated_bytes[0].peak,
         (long long)stats.reserved_bytes[0].peak, (long long)stats.inactive_split_bytes[0].peak,
         (long long)stats.num_alloc_retries, failed);
  fflush(stdout);
  _exit(0);  // destructors would free memory of the simulated device
}
