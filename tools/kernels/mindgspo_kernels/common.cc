// Errors, conversions, rows and threads. See common.h.
#include "common.h"

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

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

static void check(const char* name, const Tensor* tensor, int rank) {
  REQUIRE(tensor != nullptr, std::string(name) + " is required");
  REQUIRE(tensor->rank >= 0 && tensor->rank <= kMaxRank, std::string(name) + " has " + std::to_string(tensor->rank) + " axes");
  REQUIRE(rank < 0 || tensor->rank == rank,
          std::string(name) + " must have " + std::to_string(rank) + " axes, not " + text_of_shape(*tensor));
  int64_t size = 1;
  for (int axis = 0; axis < tensor->rank; ++axis) {
    REQUIRE(tensor->shape[axis] >= 0, std::string(name) + " has a negative axis: " + text_of_shape(*tensor));
    size *= tensor->shape[axis];
  }
  REQUIRE(size == 0 || tensor->data != nullptr, std::string(name) + " has no memory");
}

const Tensor& floats(const char* name, const Tensor* tensor, int rank) {
  check(name, tensor, rank);
  REQUIRE(tensor->dtype == kFloat32 || tensor->dtype == kFloat16 || tensor->dtype == kBFloat16,
          std::string(name) + " must be float32, float16 or bfloat16, not dtype " + std::to_string(tensor->dtype));
  return *tensor;
}

const Tensor& integers(const char* name, const Tensor* tensor, int rank) {
  check(name, tensor, rank);
  REQUIRE(tensor->dtype == kInt32 || tensor->dtype == kInt64 || tensor->dtype == kUint8 || tensor->dtype == kBool,
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
  REQUIRE(false, std::string(name) + " must have the shape " + text_of_shape(wanted) + ", not " + text_of_shape(tensor));
}

int normalized_axis(int64_t axis, const Tensor& tensor) {
  REQUIRE(axis >= -tensor.rank && axis < tensor.rank,
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
  if (data == values) return;
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
      if (tensor->rank != first.rank)
        REQUIRE(false, text_of_shape(*tensor) + " must have as many axes as " + text_of_shape(first));
      const bool fits = (at == axis && !is_by_element) || tensor->shape[at] == first.shape[at] || tensor->shape[at] == 1;
      if (!fits) REQUIRE(false, text_of_shape(*tensor) + " cannot be spread to " + text_of_shape(first));
    }
    if ((at == axis && !is_by_element) || first.shape[at] == 1) continue;
    const auto stride = [&](int i) { return tensors_[i]->shape[at] == 1 ? 0 : tensors_[i]->strides[at]; };
    bool is_merged = !shape_.empty();  // one axis with the one before, if every tensor's memory goes on so
    for (int i = 0; i < tensor_count && is_merged; ++i)
      is_merged = strides_[i].back() == stride(i) * first.shape[at];
    for (int i = 0; i < tensor_count; ++i)
      if (is_merged)
        strides_[i].back() = stride(i);
      else
        strides_[i].push_back(stride(i));
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
  return mindgspo::read(start(which, row), tensors_[which]->dtype, row_strides_[which], length(which, row), slot);
}

float* Rows::results(int which, int64_t row, Slot slot) const {
  return results_at(start(which, row), tensors_[which]->dtype, row_strides_[which], length(which, row), slot);
}

void Rows::write(int which, int64_t row, const float* values) const {
  store(start(which, row), tensors_[which]->dtype, row_strides_[which], length(which, row), values);
}

namespace {

// The processors of the thread that loads this library. MindSpore ties the threads that launch operators to one each,
// and threads that they start would stay there.
struct Processors {
  cpu_set_t set;
  Processors() {
    if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_ZERO(&set);
  }
};

const Processors& our_processors() {
  static const Processors ours;
  return ours;
}

// Threads that help whoever calls `run`, one caller at a time. All that they share is atomic, in the default order
// (seq_cst), or under a mutex: `next_` releases the fields of a call to who takes a task from it, `done_` a task's results
// to the caller, and a helper that goes to sleep sees `call_` or is seen in `asleep_`, also on aarch64.
class Pool {
 public:
  // Tasks from an atomic counter; returns when all are done. False if another caller is being helped.
  bool run(int64_t tasks, int64_t threads, void (*body)(void*, int64_t), void* context) {
    std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (!turn.owns_lock()) return false;
    while (int64_t(started_) < threads - 1) start();
    while (inside_.load() != 0) pause();  // late helpers of the last call, who find nothing to do
    body_ = body, context_ = context, tasks_ = tasks, failure_ = nullptr;
    done_ = 0, helpers_ = int(threads - 1);
    next_ = 0;  // last: a helper that is late may begin at once
    call_.fetch_add(1);
    if (asleep_.load() > 0) {
      std::lock_guard<std::mutex> lock(sleep_);
      wake_.notify_all();
    }
    work();
    for (int turn = 0; turn < kTurns && done_.load() < tasks; ++turn) pause();
    if (done_.load() < tasks) {  // a helper's processor has other work
      std::unique_lock<std::mutex> lock(sleep_);
      is_awaited_ = true;
      ended_.wait(lock, [&] { return done_.load() >= tasks; });
      is_awaited_ = false;
    }
    next_ = kNone;
    if (failure_) std::rethrow_exception(failure_);
    return true;
  }

 private:
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // `yield` does nothing on a processor without hyper-threads
#endif
  }

  void start() {
    std::thread([this, number = started_] {
      const cpu_set_t& ours = our_processors().set;
      if (CPU_COUNT(&ours) > 0) sched_setaffinity(0, sizeof ours, &ours);
      help(number);
    }).detach();
    ++started_;
  }

  void help(int number) {
    uint64_t seen = 0;
    while (true) {
      // Long enough to stay awake between the operators of a graph, far too short to be felt beside it.
      for (int turn = 0; turn < kTurns && call_.load() == seen; ++turn) pause();
      if (call_.load() == seen) {
        std::unique_lock<std::mutex> lock(sleep_);
        asleep_.fetch_add(1);
        wake_.wait(lock, [&] { return call_.load() != seen; });
        asleep_.fetch_sub(1);
      }
      inside_.fetch_add(1);
      seen = call_.load();
      if (number < helpers_.load()) work();
      inside_.fetch_sub(1);
    }
  }

  void work() {
    for (int64_t task = next_.fetch_add(1); task < tasks_.load(); task = next_.fetch_add(1)) {
      try {
        body_.load()(context_.load(), task);
      } catch (...) {
        std::lock_guard<std::mutex> lock(failing_);
        failure_ = std::current_exception();
      }
      if (done_.fetch_add(1) + 1 == tasks_.load() && is_awaited_.load()) {
        std::lock_guard<std::mutex> lock(sleep_);
        ended_.notify_one();
      }
    }
  }

  static constexpr int kTurns = 3000;
  static constexpr int64_t kNone = INT64_MAX / 2;  // for helpers that come late: behind every task
  std::mutex turn_, sleep_, failing_;
  std::condition_variable wake_, ended_;
  std::atomic<bool> is_awaited_{false};
  std::atomic<uint64_t> call_{0};
  std::atomic<int> asleep_{0}, inside_{0}, helpers_{0};
  std::atomic<int64_t> next_{kNone}, tasks_{0}, done_{0};
  std::atomic<void (*)(void*, int64_t)> body_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::exception_ptr failure_;
  int started_ = 0;
};

// Never destroyed: its threads wait in it until the process ends.
Pool& pool() {
  static Pool* const one = new Pool;
  return *one;
}

}  // namespace

int64_t default_threads() { return std::max(1, CPU_COUNT(&our_processors().set)); }

void parallel_call(int64_t tasks, int64_t threads, void (*body)(void*, int64_t), void* context) {
  threads = std::min(threads, tasks);
  if (threads > 1 && pool().run(tasks, threads, body, context)) return;
  for (int64_t task = 0; task < tasks; ++task) body(context, task);
}

}  // namespace mindgspo

extern "C" const char* mindgspo_error() { return mindgspo::last_error.c_str(); }
