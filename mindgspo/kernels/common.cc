// Errors, conversions, rows and threads. See common.h.
#include "common.h"

#include <omp.h>

namespace mindgspo {

static thread_local std::string last_error;

int guarded_call(void (*body)(void*), void* context) {
  try {
    body(context);
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
    return 1;
  }
}

std::string text_of_shape(const Tensor& tensor) {
  std::string text = "[";
  for (int axis = 0; axis < tensor.rank; ++axis) text += (axis ? ", " : "") + std::to_string(tensor.shape[axis]);
  return text + "]";
}

static void check(const std::string& name, const Tensor* tensor, int rank) {
  require(tensor != nullptr, name + " is required");
  require(tensor->rank >= 0 && tensor->rank <= kMaxRank, name + " has " + std::to_string(tensor->rank) + " axes");
  require(rank < 0 || tensor->rank == rank,
          name + " must have " + std::to_string(rank) + " axes, not " + text_of_shape(*tensor));
  int64_t size = 1;
  for (int axis = 0; axis < tensor->rank; ++axis) {
    require(tensor->shape[axis] >= 0, name + " has a negative axis: " + text_of_shape(*tensor));
    size *= tensor->shape[axis];
  }
  require(size == 0 || tensor->data != nullptr, name + " has no memory");
}

const Tensor& floats(const char* name, const Tensor* tensor, int rank) {
  check(name, tensor, rank);
  require(tensor->dtype == kFloat32 || tensor->dtype == kFloat16 || tensor->dtype == kBFloat16,
          std::string(name) + " must be float32, float16 or bfloat16, not dtype " + std::to_string(tensor->dtype));
  return *tensor;
}

const Tensor& integers(const char* name, const Tensor* tensor, int rank) {
  check(name, tensor, rank);
  require(tensor->dtype == kInt32 || tensor->dtype == kInt64 || tensor->dtype == kUint8 || tensor->dtype == kBool,
          std::string(name) + " must be int32, int64, uint8 or bool, not dtype " + std::to_string(tensor->dtype));
  return *tensor;
}

int64_t integer_at(const Tensor& tensor, int64_t offset) {
  const void* place = element(tensor, offset);
  switch (tensor.dtype) {
    case kInt32:
      return *static_cast<const int32_t*>(place);
    case kInt64:
      return *static_cast<const int64_t*>(place);
  }
  return *static_cast<const uint8_t*>(place);
}

void require_shape(const char* name, const Tensor& tensor, const std::vector<int64_t>& shape) {
  if (tensor.rank == int(shape.size()) && std::equal(shape.begin(), shape.end(), tensor.shape)) return;
  Tensor wanted{};
  wanted.rank = int32_t(shape.size());
  std::copy(shape.begin(), shape.end(), wanted.shape);
  require(false, std::string(name) + " must have the shape " + text_of_shape(wanted) + ", not " + text_of_shape(tensor));
}

int normalized_axis(int64_t axis, const Tensor& tensor) {
  require(axis >= -tensor.rank && axis < tensor.rank,
          "axis " + std::to_string(axis) + " is not one of " + text_of_shape(tensor));
  return axis < 0 ? axis + tensor.rank : axis;
}

void load(const void* data, int32_t dtype, int64_t stride, int64_t n, float* out) {
  with_dtype(dtype, [&](auto dtype) {
    const auto* bits = static_cast<const typename decltype(dtype)::Bits*>(data);
    if (stride == 1)
      for (int64_t i = 0; i < n; ++i) out[i] = dtype.read(bits[i]);
    else
      for (int64_t i = 0; i < n; ++i) out[i] = dtype.read(bits[i * stride]);
  });
}

void store(void* data, int32_t dtype, int64_t stride, int64_t n, const float* values) {
  with_dtype(dtype, [&](auto dtype) {
    auto* bits = static_cast<typename decltype(dtype)::Bits*>(data);
    if (stride == 1)
      for (int64_t i = 0; i < n; ++i) bits[i] = dtype.write(values[i]);
    else
      for (int64_t i = 0; i < n; ++i) bits[i * stride] = dtype.write(values[i]);
  });
}

float* scratch(Slot slot, int64_t floats) {
  struct Memory {
    float* data = nullptr;
    int64_t size = 0;
    ~Memory() { std::free(data); }
  };
  static thread_local Memory memory[kSlots];
  Memory& own = memory[slot];
  if (own.size < floats) {
    const int64_t size = (floats + 1023) / 1024 * 1024;
    std::free(own.data);
    own.size = 0;
    own.data = static_cast<float*>(std::aligned_alloc(64, size * sizeof(float)));
    if (own.data == nullptr) throw std::bad_alloc();
    own.size = size;
  }
  return own.data;
}

Rows::Rows(std::vector<const Tensor*> tensors, int axis, bool is_by_element) : tensors_(std::move(tensors)) {
  const Tensor& first = *tensors_[0];
  const int tensor_count = int(tensors_.size());
  strides_.resize(tensor_count);
  for (int at = 0; at < first.rank; ++at) {
    for (const Tensor* tensor : tensors_) {
      require(tensor->rank == first.rank, text_of_shape(*tensor) + " must have as many axes as " + text_of_shape(first));
      require((at == axis && !is_by_element) || tensor->shape[at] == first.shape[at] || tensor->shape[at] == 1,
              text_of_shape(*tensor) + " cannot be spread to " + text_of_shape(first));
    }
    if ((at == axis && !is_by_element) || first.shape[at] == 1) continue;
    std::vector<int64_t> strides;
    for (const Tensor* tensor : tensors_) strides.push_back(tensor->shape[at] == 1 ? 0 : tensor->strides[at]);
    bool is_merged = !shape_.empty();  // one axis with the one before, if every tensor's memory goes on so
    for (int i = 0; i < tensor_count && is_merged; ++i)
      is_merged = strides_[i].back() == strides[i] * first.shape[at];
    for (int i = 0; i < tensor_count; ++i)
      if (is_merged)
        strides_[i].back() = strides[i];
      else
        strides_[i].push_back(strides[i]);
    if (is_merged)
      shape_.back() *= first.shape[at];
    else
      shape_.push_back(first.shape[at]);
  }
  if (!is_by_element) {
    for (const Tensor* tensor : tensors_) {
      lengths_.push_back(first.rank ? tensor->shape[axis] : 1);
      row_strides_.push_back(first.rank ? tensor->strides[axis] : 1);
    }
  } else {
    const bool is_scalar = shape_.empty();
    const int64_t length = is_scalar ? 1 : shape_.back();
    for (int i = 0; i < tensor_count; ++i) {
      lengths_.push_back(length);
      row_strides_.push_back(is_scalar ? 1 : strides_[i].back());
      if (!is_scalar) strides_[i].pop_back();
    }
    if (!is_scalar) shape_.pop_back();
    pieces_ = (length + kPiece - 1) / kPiece;
  }
  for (int64_t size : shape_) count_ *= size;
}

int64_t Rows::length(int which, int64_t row) const {
  if (pieces_ == 1) return lengths_[which];
  return std::min(kPiece, lengths_[which] - row % pieces_ * kPiece);
}

char* Rows::start(int which, int64_t row) const {
  const std::vector<int64_t>& strides = strides_[which];
  int64_t offset = row % pieces_ * kPiece * row_strides_[which], rest = row / pieces_;
  for (int axis = int(shape_.size()) - 1; axis > 0; --axis) {
    offset += rest % shape_[axis] * strides[axis];
    rest /= shape_[axis];
  }
  if (!shape_.empty()) offset += rest * strides[0];
  return element(*tensors_[which], offset);
}

const float* Rows::read(int which, int64_t row, Slot slot) const {
  const char* place = start(which, row);
  if (tensors_[which]->dtype == kFloat32 && row_strides_[which] == 1) return reinterpret_cast<const float*>(place);
  float* copy = scratch(slot, length(which, row));
  load(place, tensors_[which]->dtype, row_strides_[which], length(which, row), copy);
  return copy;
}

void Rows::write(int which, int64_t row, const float* values) const {
  store(start(which, row), tensors_[which]->dtype, row_strides_[which], length(which, row), values);
}

void parallel_call(int64_t tasks, int64_t threads, void (*body)(void*, int64_t), void* context) {
  threads = std::clamp<int64_t>(threads, 1, std::max<int64_t>(tasks, 1));
  if (threads <= 1) {
    for (int64_t task = 0; task < tasks; ++task) body(context, task);
    return;
  }
  std::exception_ptr failure;
#pragma omp parallel for schedule(dynamic) num_threads(int(threads))
  for (int64_t task = 0; task < tasks; ++task) {
    try {
      body(context, task);
    } catch (...) {
#pragma omp critical(mindgspo_failure)
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace mindgspo

extern "C" const char* mindgspo_error() { return mindgspo::last_error.c_str(); }
