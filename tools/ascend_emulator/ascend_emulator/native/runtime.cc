// The runtime of an emulated card: device memory is host memory, streams and events are done as soon as they are asked.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>

#include "common.h"

using namespace emulator;

namespace {

constexpr double kGibibyte = 1024.0 * 1024.0 * 1024.0;
constexpr size_t kPage = 4096;

// What tells cards apart.
struct Soc {
  std::string name;
  int64_t cube_cores = 0, vector_cores = 0, bytes = 0;
  explicit operator bool() const { return cube_cores > 0; }
};

// $ASCEND_EMULATOR_SOC, of CANN's platform_config two folders above this library (see cann_root.py); empty without it.
Soc read_soc() {
  const char* asked = getenv("ASCEND_EMULATOR_SOC");
  Soc soc{asked ? asked : "Ascend910B3"};
  Dl_info library;
  dladdr(reinterpret_cast<void*>(&read_soc), &library);
  const std::string folder = std::string(library.dli_fname, strrchr(library.dli_fname, '/') - library.dli_fname);
  std::ifstream file(folder + "/../x86_64-linux/data/platform_config/" + soc.name + ".ini");
  for (std::string line; std::getline(file, line);) {
    sscanf(line.c_str(), "cube_core_cnt=%ld", &soc.cube_cores);
    sscanf(line.c_str(), "vector_core_cnt=%ld", &soc.vector_cores);
    sscanf(line.c_str(), "memory_size=%ld", &soc.bytes);
  }
  return soc;
}

const Soc& soc() {
  static const Soc found = read_soc();
  return found;
}

// What an idle card's driver and system hold: npu-smi shows 3.3 to 3.4 GiB.
constexpr double kSystemGibibytes = 3.3;

size_t device_memory() {
  static const size_t bytes = [] {
    const char* gigabytes = getenv("ASCEND_EMULATOR_HBM_GB");
    return gigabytes ? static_cast<size_t>(atof(gigabytes) * kGibibyte) : static_cast<size_t>(soc().bytes);
  }();
  return bytes;
}

// What a process finds on an idle card.
size_t free_at_start() {
  const auto held = static_cast<size_t>(kSystemGibibytes * kGibibyte);
  return device_memory() - std::min(held, device_memory());
}

std::atomic<size_t> used{0}, peak{0};

std::string gibibytes(size_t bytes) {
  char text[32];
  snprintf(text, sizeof text, "%.2f GiB", bytes / kGibibyte);
  return text;
}

bool reserve(size_t bytes) {
  const size_t now = used += bytes;
  if (now > free_at_start()) {
    used -= bytes;
    set_error("EL0004: Failed to allocate memory: " + gibibytes(bytes) + " beside " + gibibytes(now - bytes) +
              " that are in use, of " + gibibytes(free_at_start()) + " that an idle " + soc().name + " with " +
              gibibytes(device_memory()) + " has free");
    return false;
  }
  for (size_t seen = peak; seen < now && !peak.compare_exchange_weak(seen, now);) {
  }
  return true;
}

// Memory that takes none of the host's until it is touched.
void* map(void* where, size_t bytes, int protection) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (where ? MAP_FIXED : 0);
  void* address = mmap(where, bytes, protection, flags, -1, 0);
  return address == MAP_FAILED ? nullptr : address;
}

struct Block {
  size_t mapped;
  size_t counted;  // against the card's memory; 0 for host memory
};
std::map<void*, Block> blocks;
std::mutex blocks_mutex;

int allocate(void** address, size_t bytes, bool is_device) {
  if (is_device && !reserve(bytes)) return kOutOfMemory;
  // A page more than asked for: kernels of a card may read a few bytes beyond.
  const size_t mapped = (bytes / kPage + 2) * kPage;
  *address = map(nullptr, mapped, PROT_READ | PROT_WRITE);
  if (!*address) return kOutOfMemory;
  std::lock_guard<std::mutex> lock(blocks_mutex);
  blocks[*address] = {mapped, is_device ? bytes : 0};
  return kOk;
}

int release(void* address) {
  std::lock_guard<std::mutex> lock(blocks_mutex);
  auto entry = blocks.find(address);
  if (entry == blocks.end()) return kParameterInvalid;
  munmap(address, entry->second.mapped);
  used -= entry->second.counted;
  blocks.erase(entry);
  return kOk;
}

double milliseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

int new_handle(void** handle) {
  *handle = calloc(1, 64);
  return kOk;
}

thread_local int current_device = -1;
char only_context[64];

}  // namespace

API size_t emulator_peak_bytes() { return peak; }
API int aclInit(const char*) { return kOk; }
API int aclFinalize() { return kOk; }
API int aclrtGetLastError(int) { return kOk; }
API int aclrtPeekAtLastError(int) { return kOk; }

// ---------------------------------------------------------------- device
API const char* aclrtGetSocName() { return soc().name.c_str(); }
// Asked by MindSpore's own kernels while they are loaded.
API int rtGetSocVersion(char* name, uint32_t room) {
  snprintf(name, room, "%s", soc().name.c_str());
  return kOk;
}
// Whether $ASCEND_EMULATOR_SOC is one of those.
API int emulator_has_soc() { return static_cast<bool>(soc()); }
// Handles of binaries, which are never launched: any will do, but none is an error.
API int rtDevBinaryRegister(const void*, void** handle) { *handle = only_context; return kOk; }
API int rtRegisterAllKernel(const void*, void** handle) { *handle = only_context; return kOk; }
API int aclrtSetDevice(int32_t device) {
  let_waiting_threads_sleep();
  current_device = device;
  return kOk;
}
API int aclrtGetDevice(int32_t* device) { *device = current_device < 0 ? 0 : current_device; return kOk; }
API int aclrtGetDeviceCount(uint32_t* count) { *count = 64; return kOk; }  // as many ranks as a host may start
API int aclrtResetDevice(int32_t) { return kOk; }
API int aclrtCreateContext(void** context, int32_t) { *context = only_context; return kOk; }
API int aclrtGetCurrentContext(void** context) { *context = only_context; return kOk; }
API int aclrtSetCurrentContext(void*) { return kOk; }
API int aclrtDestroyContext(void*) { return kOk; }
API int aclrtGetRunMode(int* mode) { *mode = 1; return kOk; }  // the host is another machine than the device
// Cores by aclrtDevResLimitType and by aclDeviceInfo: 0 asks for cube cores, 1 for vector cores; what else is asked is
// unknown.
static int cores(int kind, int64_t* value) {
  if (kind != 0 && kind != 1) return kParameterInvalid;
  *value = kind ? soc().vector_cores : soc().cube_cores;
  return kOk;
}
static int cores(int kind, uint32_t* value) {
  int64_t wide = 0;
  const int status = cores(kind, &wide);
  *value = static_cast<uint32_t>(wide);
  return status;
}
API int aclrtGetDeviceResLimit(int32_t, int kind, uint32_t* value) { return cores(kind, value); }
API int aclrtGetStreamResLimit(void*, int kind, uint32_t* value) { return cores(kind, value); }
API int aclrtGetResInCurrentThread(int kind, uint32_t* value) { return cores(kind, value); }
API int aclGetDeviceCapability(uint32_t, int kind, int64_t* value) { return cores(kind, value); }
API int aclrtGetDeviceInfo(uint32_t, int attribute, int64_t* value) {  // aclrtDevAttr
  switch (attribute) {
    case 101: case 102: return cores(0, value);  // AI cores, cube cores
    case 201: return cores(1, value);            // vector cores
    case 301: *value = static_cast<int64_t>(device_memory()); return kOk;
    default: return kParameterInvalid;
  }
}
API int aclrtDeviceCanAccessPeer(int32_t* can, int32_t, int32_t) { *can = 1; return kOk; }

// ---------------------------------------------------------------- memory
API int aclrtGetMemInfo(int, size_t* free, size_t* total) {
  *total = device_memory();
  *free = free_at_start() - std::min<size_t>(used, free_at_start());
  return kOk;
}
API int aclrtMalloc(void** address, size_t bytes, int) { return allocate(address, bytes, true); }
API int aclrtMallocAlign32(void** address, size_t bytes, int) { return allocate(address, bytes, true); }
API int aclrtMallocCached(void** address, size_t bytes, int) { return allocate(address, bytes, true); }
API int aclrtMallocHost(void** address, size_t bytes) { return allocate(address, bytes, false); }
API int aclrtFree(void* address) { return release(address); }
API int aclrtFreeHost(void* address) { return release(address); }
static int copy(void* target, size_t room, const void* source, size_t bytes) {
  if (bytes > room) return kParameterInvalid;
  memmove(target, source, bytes);
  return kOk;
}
API int aclrtMemcpy(void* target, size_t room, const void* source, size_t bytes, int) { return copy(target, room, source, bytes); }
API int aclrtMemcpyAsync(void* target, size_t room, const void* source, size_t bytes, int, void*) { return copy(target, room, source, bytes); }
API int aclrtMemset(void* target, size_t, int32_t value, size_t bytes) { memset(target, value, bytes); return kOk; }
API int aclrtMemsetAsync(void* target, size_t, int32_t value, size_t bytes, void*) { memset(target, value, bytes); return kOk; }
// Virtual memory: addresses are reserved first, physical blocks are counted and mapped into them later.
API int aclrtReserveMemAddress(void** address, size_t bytes, size_t, void*, uint64_t) {
  *address = map(nullptr, bytes, PROT_NONE);
  return *address ? kOk : kOutOfMemory;
}
API int aclrtReleaseMemAddress(void*) { return kOk; }
struct Physical { size_t bytes; };
API int aclrtMallocPhysical(void** handle, size_t bytes, const void*, uint64_t) {
  if (!reserve(bytes)) return kOutOfMemory;
  *handle = new Physical{bytes};
  return kOk;
}
API int aclrtFreePhysical(void* handle) {
  if (handle) used -= static_cast<Physical*>(handle)->bytes;
  delete static_cast<Physical*>(handle);
  return kOk;
}
API int aclrtMapMem(void* address, size_t bytes, size_t, void*, uint64_t) {
  return map(address, bytes, PROT_READ | PROT_WRITE) ? kOk : kOutOfMemory;
}
API int aclrtUnmapMem(void*) { return kOk; }

// ---------------------------------------------------------------- streams, events, callbacks
API int aclrtCreateStream(void** stream) { return new_handle(stream); }
API int aclrtCreateStreamWithConfig(void** stream, uint32_t, uint32_t) { return new_handle(stream); }
API int aclrtDestroyStream(void*) { return kOk; }
API int aclrtDestroyStreamForce(void*) { return kOk; }
API int aclrtSynchronizeStream(void*) { return kOk; }
API int aclrtSynchronizeStreamWithTimeout(void*, int32_t) { return kOk; }
API int aclrtSynchronizeDevice() { return kOk; }
API int aclrtSynchronizeDeviceWithTimeout(int32_t) { return kOk; }
API int aclrtStreamQuery(void*, int* status) { *status = 0; return kOk; }
API int aclrtStreamGetId(void* stream, int32_t* id) { *id = static_cast<int32_t>(reinterpret_cast<uintptr_t>(stream) >> 4); return kOk; }
API int aclrtStreamWaitEvent(void*, void*) { return kOk; }
API int aclrtSetStreamFailureMode(void*, uint64_t) { return kOk; }
API int aclrtDeviceGetStreamPriorityRange(int32_t* lowest, int32_t* highest) { *lowest = 7; *highest = 0; return kOk; }
API int aclrtCreateEvent(void** event) { return new_handle(event); }
API int aclrtCreateEventWithFlag(void** event, uint32_t) { return new_handle(event); }
API int aclrtCreateEventExWithFlag(void** event, uint32_t) { return new_handle(event); }
API int aclrtDestroyEvent(void* event) { free(event); return kOk; }
API int aclrtRecordEvent(void* event, void*) { *static_cast<double*>(event) = milliseconds(); return kOk; }
API int aclrtResetEvent(void*, void*) { return kOk; }
API int aclrtQueryEvent(void*, int* status) { *status = 0; return kOk; }
API int aclrtQueryEventStatus(void*, int* status) { *status = 1; return kOk; }  // ACL_EVENT_RECORDED_STATUS_COMPLETE
API int aclrtSynchronizeEvent(void*) { return kOk; }
API int aclrtEventElapsedTime(float* elapsed, void* first, void* second) {
  *elapsed = static_cast<float>(*static_cast<double*>(second) - *static_cast<double*>(first));
  return kOk;
}
API int aclrtEventGetTimestamp(void* event, uint64_t* microseconds) {
  *microseconds = static_cast<uint64_t>(*static_cast<double*>(event) * 1000);
  return kOk;
}
API int aclrtLaunchCallback(void (*function)(void*), void* data, int, void*) { function(data); return kOk; }
API int aclrtSubscribeReport(uint64_t, void*) { return kOk; }
API int aclrtProcessReport(int32_t) { usleep(100000); return kOk; }  // callbacks have run when they were launched
API void* aclrtAllocatorCreateDesc() { return calloc(1, 64); }

// ---------------------------------------------------------------- channels from the device: always empty
API void* acltdtCreateChannel(uint32_t, const char*) { return calloc(1, 64); }
API void* acltdtCreateChannelWithCapacity(uint32_t, const char*, size_t) { return calloc(1, 64); }
API void* acltdtCreateDataset() { return calloc(1, 64); }
API int acltdtReceiveTensor(const void*, void*, int32_t) { usleep(200000); return kChannelTimeout; }

// ---------------------------------------------------------------- libc_sec: bounded forms of libc's functions
constexpr int kRange = 34;  // ERANGE
API int memcpy_s(void* target, size_t room, const void* source, size_t bytes) {
  if (bytes > room) return kRange;
  memcpy(target, source, bytes);
  return 0;
}
API int memmove_s(void* target, size_t room, const void* source, size_t bytes) {
  if (bytes > room) return kRange;
  memmove(target, source, bytes);
  return 0;
}
API int memset_s(void* target, size_t room, int value, size_t bytes) {
  if (bytes > room) return kRange;
  memset(target, value, bytes);
  return 0;
}
API int strncpy_s(char* target, size_t room, const char* source, size_t most) {
  const size_t length = strnlen(source, most);
  if (length + 1 > room) return kRange;
  memcpy(target, source, length);
  target[length] = 0;
  return 0;
}
API int strcpy_s(char* target, size_t room, const char* source) { return strncpy_s(target, room, source, strlen(source)); }
API int strcat_s(char* target, size_t room, const char* source) {
  const size_t length = strnlen(target, room);
  return strcpy_s(target + length, room - length, source);
}
API int vsnprintf_s(char* target, size_t room, size_t most, const char* format, va_list values) {
  const int length = vsnprintf(target, std::min(room, most + 1), format, values);
  return length < 0 || static_cast<size_t>(length) >= std::min(room, most + 1) ? -1 : length;
}
API int vsprintf_s(char* target, size_t room, const char* format, va_list values) {
  return vsnprintf_s(target, room, room, format, values);
}
API int snprintf_s(char* target, size_t room, size_t most, const char* format, ...) {
  va_list values;
  va_start(values, format);
  const int length = vsnprintf_s(target, room, most, format, values);
  va_end(values);
  return length;
}
API int sprintf_s(char* target, size_t room, const char* format, ...) {
  va_list values;
  va_start(values, format);
  const int length = vsnprintf_s(target, room, room, format, values);
  va_end(values);
  return length;
}
API int snprintf_truncated_s(char* target, size_t room, const char* format, ...) {
  va_list values;
  va_start(values, format);
  const int length = vsnprintf(target, room, format, values);
  va_end(values);
  return length < 0 ? -1 : std::min(length, static_cast<int>(room) - 1);
}
API char* strtok_s(char* text, const char* separators, char** rest) { return strtok_r(text, separators, rest); }
