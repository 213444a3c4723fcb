// What the emulator's native files share: descriptors that tensors.py and launcher.py read, and the way to the operators.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace emulator {

constexpr int kMaxRank = 16;
// aclError values of acl/acl_base.h.
constexpr int kOk = 0;
constexpr int kParameterInvalid = 161002;  // ACLNN_ERR_PARAM_INVALID
constexpr int kInnerError = 561000;        // ACLNN_ERR_INNER
constexpr int kOutOfMemory = 207001;       // ACL_ERROR_RT_MEMORY_ALLOCATION
constexpr int kChannelTimeout = 207013;    // what an empty acltdt channel answers

// Read by DeviceTensor.at; the order of the first eight fields is part of that contract. Strides count elements.
struct Tensor {
  int64_t tag;
  void* data;
  int32_t dtype;
  int32_t rank;
  int64_t offset;
  int64_t shape[kMaxRank];
  int64_t strides[kMaxRank];
  int32_t format;
  const Tensor* origin;  // the caller's own object, by which aclSetTensorAddr names it
};

struct Scalar {
  int64_t tag;
  int32_t dtype;
  int32_t padding;
  unsigned char value[16];
};

// aclIntArray, aclFloatArray, aclBoolArray, aclTensorList, aclScalarList.
struct Array {
  int64_t tag;
  uint64_t size;
  void* data;
};

// One argument of an operator. kind is a letter of signatures.txt, or '|' between the inputs and the outputs of aclop
// and internal operators, whose last argument is a 'z' with their attributes as JSON.
struct Argument {
  int64_t kind;
  int64_t integer;
  double real;
  void* pointer;
};

// Phases of `Callback`.
enum Phase : int64_t { kCheck = 0, kLaunch = 1, kForget = 2 };
// key: number of the executor, by which a decoded argument list may be kept; version: changes with its addresses.
typedef int (*Callback)(const char* name, int64_t phase, int64_t key, int64_t version, Argument* arguments, int64_t count);

// Calls the operators' side (Python); refuses with kInnerError as long as nobody has registered it.
int call_operator(const char* name, Phase phase, int64_t key, int64_t version, Argument* arguments, int64_t count);
// The text that aclGetRecentErrMsg gives next in this thread.
void set_error(const std::string& text);
size_t dtype_size(int dtype);
// See waiting.cc; later calls do nothing.
void let_waiting_threads_sleep();

}  // namespace emulator

API const char* aclGetRecentErrMsg();
