// Operators of an emulated card: the objects that describe their arguments, the two phases of aclnn, aclop.
//
// aclnnXGetWorkspaceSize has a prototype per operator. An assembler stub of each saves the registers that can hold
// arguments and comes to emulator_capture, which decodes them by the operator's letters (signatures.txt), copies them,
// has them checked, and hands out an executor; aclnnX launches it. What computes is a callback into Python.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <unordered_map>

#include "common.h"

namespace emulator {
namespace {

Callback callback = nullptr;
thread_local std::string recent_error;

struct Executor {
  const char* name;
  int64_t key;
  int64_t version = 0;
  bool is_repeatable = false;
  std::vector<Argument> arguments;
  std::vector<Tensor*> tensors;

  ~Executor() {
    for (auto* tensor : tensors) delete tensor;
    for (auto& argument : arguments) {
      if (argument.kind == 's') {
        delete static_cast<Scalar*>(argument.pointer);
      } else if (argument.kind == 'z') {
        free(argument.pointer);
      } else if (strchr("IFBTS", static_cast<char>(argument.kind)) && argument.pointer) {
        auto* array = static_cast<Array*>(argument.pointer);
        free(array->data);
        delete array;
      }
    }
  }
};

std::atomic<int64_t> next_key{1};

const std::string* letters_of(const char* name) {
  static const auto* table = [] {
    auto* found = new std::unordered_map<std::string, std::string>();
    const char* path = getenv("ASCEND_EMULATOR_SIGNATURES");
    std::ifstream file(path ? path : "");
    for (std::string line; std::getline(file, line);) {
      if (line.empty() || line[0] == '#') continue;
      std::istringstream words(line);
      std::string operator_name, letters;
      words >> operator_name >> letters;
      (*found)[operator_name] = letters == "-" ? "" : letters;
    }
    return found;
  }();
  auto entry = table->find(name);
  return entry == table->end() ? nullptr : &entry->second;
}

Array* copy_array(int64_t tag, const void* values, uint64_t size, size_t width) {
  auto* array = new Array{tag, size, malloc(size * width + 1)};
  if (size) memcpy(array->data, values, size * width);
  return array;
}

size_t width_of(char kind) { return kind == 'F' ? 4 : kind == 'B' ? 1 : 8; }

Tensor* copy_tensor(Executor* executor, const Tensor* tensor) {
  if (!tensor) return nullptr;
  auto* copy = new Tensor(*tensor);
  copy->origin = tensor;
  executor->tensors.push_back(copy);
  return copy;
}

void* copy_pointer(Executor* executor, char kind, void* given) {
  if (!given) return nullptr;
  if (kind == 't') return copy_tensor(executor, static_cast<Tensor*>(given));
  if (kind == 's') return new Scalar(*static_cast<Scalar*>(given));
  if (kind == 'z') return strdup(static_cast<char*>(given));
  auto* array = static_cast<Array*>(given);
  auto* copy = copy_array(kind, array->data, array->size, width_of(kind));
  if (kind == 'T') {
    auto** members = static_cast<Tensor**>(copy->data);
    for (uint64_t i = 0; i < copy->size; ++i) members[i] = copy_tensor(executor, members[i]);
  }
  return copy;
}

int refuse(const char* name, const std::string& why) {
  set_error(std::string(name) + ": " + why);
  return kInnerError;
}

}  // namespace

int call_operator(const char* name, Phase phase, int64_t key, int64_t version, Argument* arguments, int64_t count) {
  if (!callback) return refuse(name, "the emulator's operators are not loaded in this process");
  return callback(name, phase, key, version, arguments, count);
}

void set_error(const std::string& text) { recent_error = text; }

size_t dtype_size(int dtype) {
  switch (dtype) {
    case 0: case 3: case 8: return 4;            // float32, int32, uint32
    case 1: case 6: case 7: case 27: return 2;   // float16, int16, uint16, bfloat16
    case 9: case 10: case 11: case 16: return 8; // int64, uint64, float64, complex64
    case 17: return 16;                          // complex128
    default: return 1;                           // int8, uint8, bool
  }
}

}  // namespace emulator

using namespace emulator;

API void emulator_set_callback(Callback function) { callback = function; }
API void emulator_set_error(const char* text) { set_error(text); }
API const char* aclGetRecentErrMsg() { return recent_error.c_str(); }

// ---------------------------------------------------------------- objects
API size_t aclDataTypeSize(int dtype) { return dtype_size(dtype); }
API void* aclCreateTensor(const int64_t* shape, uint64_t rank, int dtype, const int64_t* strides, int64_t offset,
                          int format, const int64_t*, uint64_t, void* data) {
  if (rank > kMaxRank) return nullptr;
  auto* tensor = new Tensor{'t', data, dtype, static_cast<int32_t>(rank), offset, {}, {}, format, nullptr};
  int64_t dense = 1;
  for (int i = static_cast<int>(rank) - 1; i >= 0; --i) {
    tensor->shape[i] = shape[i];
    tensor->strides[i] = strides ? strides[i] : dense;
    dense *= shape[i];
  }
  tensor->origin = tensor;
  return tensor;
}
API void* aclCreateScalar(void* value, int dtype) {
  auto* scalar = new Scalar{'s', dtype, 0, {}};
  memcpy(scalar->value, value, dtype_size(dtype));
  return scalar;
}
API void* aclCreateIntArray(const int64_t* values, uint64_t size) { return copy_array('I', values, size, 8); }
API void* aclCreateFloatArray(const float* values, uint64_t size) { return copy_array('F', values, size, 4); }
API void* aclCreateBoolArray(const bool* values, uint64_t size) { return copy_array('B', values, size, 1); }
API void* aclCreateTensorList(void* const* values, uint64_t size) { return copy_array('T', values, size, 8); }
API void* aclCreateScalarList(void* const* values, uint64_t size) { return copy_array('S', values, size, 8); }
API int aclDestroyTensor(Tensor* tensor) { delete tensor; return kOk; }
API int aclDestroyScalar(Scalar* scalar) { delete scalar; return kOk; }
static int destroy_array(Array* array) {
  if (array) free(array->data);
  delete array;
  return kOk;
}
API int aclDestroyIntArray(Array* array) { return destroy_array(array); }
API int aclDestroyFloatArray(Array* array) { return destroy_array(array); }
API int aclDestroyBoolArray(Array* array) { return destroy_array(array); }
API int aclDestroyScalarList(Array* array) { return destroy_array(array); }
API int aclDestroyTensorList(Array* array) {
  for (uint64_t i = 0; array && i < array->size; ++i) delete static_cast<Tensor**>(array->data)[i];
  return destroy_array(array);
}
API int aclGetViewShape(const Tensor* tensor, int64_t** shape, uint64_t* rank) {
  *rank = tensor->rank;
  *shape = new int64_t[kMaxRank];
  memcpy(*shape, tensor->shape, sizeof tensor->shape);
  return kOk;
}
API int aclnnInit(const char*) { return kOk; }
API int aclnnFinalize() { return kOk; }
API int InitHugeMemThreadLocal(void*, bool) { return kOk; }
API void UnInitHugeMemThreadLocal(void*, bool) {}
API void ReleaseHugeMem(void*, bool) {}

// ---------------------------------------------------------------- aclnn: capture and launch
// What the stub saved: 8 vector registers, then rdi, rsi, rdx, rcx, r8, r9.
struct Registers {
  double vector[8][2];
  int64_t general[6];
};

API int emulator_capture(const char* name, const Registers* registers, const int64_t* stack) {
  const std::string* letters = letters_of(name);
  if (!letters) return refuse(name, "no line in ASCEND_EMULATOR_SIGNATURES");
  auto* executor = new Executor();
  executor->name = name;
  executor->key = next_key++;
  int generals = 0, vectors = 0;
  auto word = [&]() -> int64_t { return generals < 6 ? registers->general[generals++] : *stack++; };
  auto real_bits = [&]() -> const void* { return vectors < 8 ? static_cast<const void*>(registers->vector[vectors++]) : stack++; };
  for (char kind : *letters) {
    Argument argument{kind, 0, 0.0, nullptr};
    switch (kind) {
      case 'd': memcpy(&argument.real, real_bits(), 8); break;
      case 'f': { float real; memcpy(&real, real_bits(), 4); argument.real = real; break; }
      case 'b': argument.integer = word() & 0xff; break;
      case 'c': argument.integer = static_cast<int8_t>(word()); break;
      case 'w': argument.integer = static_cast<int32_t>(word()); break;
      case 'l': case 'u': argument.integer = word(); break;
      case 'p': argument.integer = word(); break;
      default: argument.pointer = copy_pointer(executor, kind, reinterpret_cast<void*>(word())); break;
    }
    executor->arguments.push_back(argument);
  }
  auto* workspace_size = reinterpret_cast<uint64_t*>(word());
  auto** result = reinterpret_cast<Executor**>(word());
  const int status = call_operator(name, kCheck, executor->key, 0, executor->arguments.data(), executor->arguments.size());
  if (status != kOk) {
    delete executor;
    return status;
  }
  *workspace_size = 0;
  *result = executor;
  return kOk;
}

API int emulator_launch(const char* name, void*, uint64_t, Executor* executor, void*) {
  if (!executor) return refuse(name, "launched without an executor");
  const int status = call_operator(name, kLaunch, executor->is_repeatable ? executor->key : 0, executor->version,
                                   executor->arguments.data(), executor->arguments.size());
  if (!executor->is_repeatable) delete executor;
  return status;
}

API int aclSetAclOpExecutorRepeatable(Executor* executor) {
  if (executor) executor->is_repeatable = true;
  return kOk;
}
API int aclDestroyAclOpExecutor(Executor* executor) {
  if (!executor) return kOk;
  call_operator(executor->name, kForget, executor->key, 0, nullptr, 0);
  delete executor;
  return kOk;
}
API int aclSetTensorAddr(Executor* executor, size_t, const Tensor* tensor, void* address) {
  for (auto* copy : executor->tensors) {
    if (copy->origin == tensor && copy->data != address) {
      copy->data = address;
      ++executor->version;
    }
  }
  return kOk;
}
API int aclSetDynamicTensorAddr(Executor* executor, size_t, size_t member, Array* list, void* address) {
  if (!list || member >= list->size) return kParameterInvalid;
  return aclSetTensorAddr(executor, 0, static_cast<Tensor**>(list->data)[member], address);
}
API int aclSetInputTensorAddr(Executor* executor, size_t i, const Tensor* tensor, void* address) {
  return aclSetTensorAddr(executor, i, tensor, address);
}
API int aclSetOutputTensorAddr(Executor* executor, size_t i, const Tensor* tensor, void* address) {
  return aclSetTensorAddr(executor, i, tensor, address);
}

// ---------------------------------------------------------------- aclop: operators of the graph engine
struct Description {
  int32_t dtype;
  int32_t format;
  std::vector<int64_t> shape;
  const void* constant = nullptr;  // on the host
};
struct Buffer { void* data; size_t size; };
struct Attributes { std::map<std::string, std::string> json; };

API void* aclCreateTensorDesc(int dtype, int rank, const int64_t* shape, int format) {
  auto* description = new Description{dtype, format, {}};
  if (rank > 0) description->shape.assign(shape, shape + rank);
  return description;
}
API void aclDestroyTensorDesc(Description* description) { delete description; }
API int aclSetTensorFormat(Description*, int) { return kOk; }
API int aclSetTensorShape(Description*, int, const int64_t*) { return kOk; }
API int aclSetTensorPlaceMent(Description*, int) { return kOk; }
API int aclSetTensorConst(Description* description, void* data, size_t) { description->constant = data; return kOk; }
API void aclSetTensorDescName(Description*, const char*) {}
API size_t aclGetTensorDescNumDims(const Description* description) { return description->shape.size(); }
API int64_t aclGetTensorDescDim(const Description* description, size_t i) { return description->shape[i]; }
API int aclGetTensorDescDimV2(const Description* description, size_t i, int64_t* axis) { *axis = description->shape[i]; return kOk; }
API size_t aclGetTensorDescSize(const Description* description) {
  size_t size = dtype_size(description->dtype);
  for (int64_t axis : description->shape) size *= axis;
  return size;
}
API void* aclCreateDataBuffer(void* data, size_t size) { return new Buffer{data, size}; }
API int aclDestroyDataBuffer(Buffer* buffer) { delete buffer; return kOk; }
API void* aclGetDataBufferAddr(const Buffer* buffer) { return buffer->data; }
API int aclUpdateDataBuffer(Buffer* buffer, void* data, size_t size) { *buffer = {data, size}; return kOk; }

static std::string quoted(const char* text) {
  std::string json = "\"";
  for (const char* c = text; *c; ++c) {
    if (*c == '"' || *c == '\\') json += '\\';
    json += *c;
  }
  return json + "\"";
}
template <class Value>
static std::string listed(int count, const Value* values) {
  std::string json = "[";
  for (int i = 0; i < count; ++i) json += (i ? "," : "") + std::to_string(static_cast<int64_t>(values[i]));
  return json + "]";
}
static std::string real(float value) {
  char text[32];
  snprintf(text, sizeof text, "%.9g", value);
  return text;
}
static int put(Attributes* attributes, const char* name, std::string json) {
  attributes->json[name] = std::move(json);
  return kOk;
}
API void* aclopCreateAttr() { return new Attributes(); }
API void aclopDestroyAttr(Attributes* attributes) { delete attributes; }
API int aclopSetAttrBool(Attributes* a, const char* name, uint8_t value) { return put(a, name, value ? "true" : "false"); }
API int aclopSetAttrInt(Attributes* a, const char* name, int64_t value) { return put(a, name, std::to_string(value)); }
API int aclopSetAttrFloat(Attributes* a, const char* name, float value) { return put(a, name, real(value)); }
API int aclopSetAttrString(Attributes* a, const char* name, const char* value) { return put(a, name, quoted(value)); }
API int aclopSetAttrDataType(Attributes* a, const char* name, int value) { return put(a, name, std::to_string(value)); }
API int aclopSetAttrListInt(Attributes* a, const char* name, int n, const int64_t* v) { return put(a, name, listed(n, v)); }
API int aclopSetAttrListBool(Attributes* a, const char* name, int n, const uint8_t* v) { return put(a, name, listed(n, v)); }
API int aclopSetAttrListDataType(Attributes* a, const char* name, int n, const int* v) { return put(a, name, listed(n, v)); }
API int aclopSetAttrListFloat(Attributes* a, const char* name, int n, const float* v) {
  std::string json = "[";
  for (int i = 0; i < n; ++i) json += (i ? "," : "") + real(v[i]);
  return put(a, name, json + "]");
}
API int aclopSetAttrListString(Attributes* a, const char* name, int n, const char** v) {
  std::string json = "[";
  for (int i = 0; i < n; ++i) json += (i ? "," : "") + quoted(v[i]);
  return put(a, name, json + "]");
}
API int aclopSetAttrListListInt(Attributes* a, const char* name, int n, const int* sizes, const int64_t* const* v) {
  std::string json = "[";
  for (int i = 0; i < n; ++i) json += (i ? "," : "") + listed(sizes[i], v[i]);
  return put(a, name, json + "]");
}
API int aclopSetCompileFlag(int) { return kOk; }
API int aclSetCompileopt(int, const char*) { return kOk; }
API size_t aclGetCompileoptSize(int) { return 256; }
API int aclGetCompileopt(int, char* value, size_t) { *value = 0; return kOk; }

static int run_aclop(const char* type, int num_inputs, Description* const* input_descriptions, Buffer* const* inputs,
                     int num_outputs, Description* const* output_descriptions, Buffer* const* outputs,
                     const Attributes* attributes) {
  std::vector<Argument> arguments;
  std::vector<Tensor*> tensors;
  auto add = [&](const Description* description, const Buffer* buffer) {
    Tensor* tensor = nullptr;
    if (description && buffer && description->dtype >= 0) {
      void* data = description->constant ? const_cast<void*>(description->constant) : buffer->data;
      tensor = static_cast<Tensor*>(aclCreateTensor(description->shape.data(), description->shape.size(),
                                                    description->dtype, nullptr, 0, description->format, nullptr, 0, data));
      tensors.push_back(tensor);
    }
    arguments.push_back(Argument{'t', 0, 0.0, tensor});
  };
  for (int i = 0; i < num_inputs; ++i) add(input_descriptions[i], inputs[i]);
  arguments.push_back(Argument{'|', 0, 0.0, nullptr});
  for (int i = 0; i < num_outputs; ++i) add(output_descriptions[i], outputs[i]);
  std::string json = "{";
  if (attributes) {  // null where an operator has none
    for (const auto& [name, value] : attributes->json) json += (json.size() > 1 ? "," : "") + quoted(name.c_str()) + ":" + value;
  }
  json += "}";
  arguments.push_back(Argument{'z', 0, 0.0, json.data()});
  const std::string name = std::string("aclop:") + type;
  int status = call_operator(name.c_str(), kCheck, 0, 0, arguments.data(), arguments.size());
  if (status == kOk) status = call_operator(name.c_str(), kLaunch, 0, 0, arguments.data(), arguments.size());
  for (auto* tensor : tensors) delete tensor;
  return status;
}
API int aclopCompileAndExecute(const char* type, int n, Description* const* id, Buffer* const* i, int m,
                               Description* const* od, Buffer* const* o, const Attributes* a, int, int, const char*, void*) {
  return run_aclop(type, n, id, i, m, od, o, a);
}
API int aclopCompileAndExecuteV2(const char* type, int n, Description** id, Buffer** i, int m, Description** od, Buffer** o,
                                 Attributes* a, int, int, const char*, void*) {
  return run_aclop(type, n, id, i, m, od, o, a);
}

// ---------------------------------------------------------------- graph engine: operator objects with nothing in them
API bool emulator_exists_text(const char*) __asm__("_ZN2ge15OperatorFactory9IsExistOpEPKc");
bool emulator_exists_text(const char*) { return true; }
API bool emulator_exists_string(const void*) __asm__("_ZN2ge15OperatorFactory9IsExistOpERKSs");
bool emulator_exists_string(const void*) { return true; }
API void* emulator_create_text(void* result, const char*, const char*) __asm__("_ZN2ge15OperatorFactory14CreateOperatorEPKcS2_");
void* emulator_create_text(void* result, const char*, const char*) { return memset(result, 0, 24); }
API void* emulator_create_string(void* result, const void*, const void*) __asm__("_ZN2ge15OperatorFactory14CreateOperatorERKSsS2_");
void* emulator_create_string(void* result, const void*, const void*) { return memset(result, 0, 24); }

// For internal_kernels.cc, which has the old ABI.
API int emulator_call_operator(const char* name, Phase phase, Argument* arguments, int64_t count) {
  return call_operator(name, phase, 0, 0, arguments, count);
}
