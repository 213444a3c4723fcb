// What the ranks of a CPU cluster share: slots of memory through which numbers go from one rank to others, and counters
// by which they wait for each other. `parallel/collectives/shared_memory.py` has the Python side, graph.cc the operators.
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <mutex>

#include "common.h"

namespace mindgspo {
namespace {

using Ranks = std::vector<int>;

// Raised by one rank, awaited by another one. They wrap around.
struct alignas(64) Counter {
  std::atomic<uint32_t> value, sleepers;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free, "processes share them");

// Of a message: what its sender takes it for, cut off where it is long, and the hash of all of it.
constexpr int kTextBytes = 112;
struct alignas(64) Header {
  uint64_t hash;
  int64_t used;
  char text[kTextBytes];
};

constexpr int64_t kPageBytes = 64 << 10;       // the largest of processors
constexpr int kYields = 20;                    // before a rank sleeps: the one it waits for may need its processor
constexpr int64_t kNoticeNs = 50'000'000;      // after which a rank that sleeps looks for signals
constexpr int64_t kWholeSumBytes = 256 << 10;  // read by a rank, up to which each adds up all: one barrier, not two

uint64_t hash_of(const std::string& text) {  // FNV-1a
  uint64_t hash = 0xCBF29CE484222325u;
  for (unsigned char one : text) hash = (hash ^ one) * 0x100000001B3u;
  return hash;
}

// 0-2, 5
std::string text_of(const Ranks& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += (i ? ", " : "") + std::to_string(ranks[i]) + (last > i ? "-" + std::to_string(ranks[last]) : "");
    i = last + 1;
  }
  return text;
}

const char* text_of_dtype(int32_t dtype) {
  switch (dtype) {
    case kFloat32: return "float32";
    case kFloat16: return "float16";
    case kBFloat16: return "bfloat16";
    case kInt16: return "int16";
    case kInt32: return "int32";
    case kInt64: return "int64";
    case kBool: return "bool";
  }
  return "uint8";
}

int64_t bytes_of(const Tensor& tensor) {
  int64_t elements = 1;
  for (int axis = 0; axis < tensor.rank; ++axis) elements *= tensor.shape[axis];
  return elements * size_of(tensor.dtype);
}

// ---- sums, in the order of the parts

template <class Number>
void add_up(const std::vector<const char*>& parts, int64_t offset, int64_t bytes, char* out) {
  constexpr int64_t kBlock = 2048;  // stays in the nearest cache
  const int64_t n = bytes / int64_t(sizeof(Number));
  const auto numbers = [&](size_t part) { return reinterpret_cast<const Number*>(parts[part] + offset); };
  auto* total = reinterpret_cast<Number*>(out);
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t end = std::min(n, first + kBlock);
    std::copy(numbers(0) + first, numbers(0) + end, total + first);
    for (size_t part = 1; part < parts.size(); ++part) {
      const Number* more = numbers(part);
      for (int64_t i = first; i < end; ++i) total[i] = Number(total[i] + more[i]);
    }
  }
}

template <class Dtype>
void add_up_wide(Dtype dtype, const std::vector<const char*>& parts, int64_t offset, int64_t bytes, char* out) {
  constexpr int64_t kBlock = 1024;
  float total[kBlock];
  const int64_t n = bytes / 2;
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t count = std::min(n - first, kBlock);
    for (size_t part = 0; part < parts.size(); ++part) {
      const auto* more = reinterpret_cast<const uint16_t*>(parts[part] + offset) + first;
      if (part == 0)
        for (int64_t i = 0; i < count; ++i) total[i] = dtype.read(more[i]);
      else
        for (int64_t i = 0; i < count; ++i) total[i] += dtype.read(more[i]);
    }
    auto* rounded = reinterpret_cast<uint16_t*>(out) + first;
    for (int64_t i = 0; i < count; ++i) rounded[i] = dtype.write(total[i]);
  }
}

void add_up(int32_t dtype, const std::vector<const char*>& parts, int64_t offset, int64_t bytes, char* out) {
  switch (dtype) {
    case kFloat32: return add_up<float>(parts, offset, bytes, out);
    case kFloat16: return add_up_wide(Float16(), parts, offset, bytes, out);
    case kBFloat16: return add_up_wide(BFloat16(), parts, offset, bytes, out);
    case kInt16: return add_up<int16_t>(parts, offset, bytes, out);
    case kInt32: return add_up<int32_t>(parts, offset, bytes, out);
    case kInt64: return add_up<int64_t>(parts, offset, bytes, out);
    case kUint8: return add_up<uint8_t>(parts, offset, bytes, out);
  }
  throw std::invalid_argument(std::string("no sums of ") + text_of_dtype(dtype));
}

// ---- memory that is not in one piece

// body(place, offset, bytes) for the places that hold bytes `first` to `first` + `bytes` of the tensors, one behind the
// other; offset: from `first`.
template <class Body>
void for_places(int64_t count, const Tensor* const* tensors, int64_t first, int64_t bytes, Body body) {
  int64_t begin = 0;  // of the tensor
  for (int64_t i = 0; i < count && begin < first + bytes; ++i) {
    const int64_t size = bytes_of(*tensors[i]);
    const int64_t from = std::max(first, begin), to = std::min(first + bytes, begin + size);
    if (from < to) body(static_cast<char*>(tensors[i]->data) + (from - begin), from - first, to - from);
    begin += size;
  }
}

// The same for block `index` of `blocks` equal ones of a tensor along an axis.
template <class Body>
void for_block(const Tensor& whole, int axis, int64_t index, int64_t blocks, int64_t first, int64_t bytes, Body body) {
  int64_t run = size_of(whole.dtype) * (whole.shape[axis] / blocks);  // bytes side by side
  for (int after = axis + 1; after < whole.rank; ++after) run *= whole.shape[after];
  for (int64_t done = 0; done < bytes;) {
    const int64_t row = (first + done) / run, within = (first + done) % run, n = std::min(bytes - done, run - within);
    body(static_cast<char*>(whole.data) + (row * blocks + index) * run + within, done, n);
    done += n;
  }
}

}  // namespace

// The shared file as one rank sees it. One collective at a time.
class SharedMemoryGroup {
 public:
  SharedMemoryGroup(int file, int64_t offset, int rank, int world_size, int64_t slot_bytes, int num_slots, char* const* waiting,
          int (*ended)())
      : rank_(rank), world_(world_size), slots_(num_slots), slot_bytes_(slot_bytes), waiting_(waiting), ended_(ended),
        sent_(world_), received_(world_), arrived_(world_), readers_(slots_) {
    const int64_t pairs = int64_t(world_) * world_;
    void* memory = mmap(nullptr, bytes(world_, slot_bytes_, slots_), PROT_READ | PROT_WRITE, MAP_SHARED, file, offset);
    REQUIRE(memory != MAP_FAILED, std::string("mmap: ") + std::strerror(errno));
    memory_ = static_cast<char*>(memory);
    headers_ = reinterpret_cast<Header*>(memory_ + world_ * slots_ * slot_bytes_);
    arrivals_ = reinterpret_cast<Counter*>(headers_ + world_ * slots_);
    puts_ = arrivals_ + pairs, takes_ = puts_ + pairs;
    places_ = reinterpret_cast<uint32_t*>(takes_ + pairs);
  }

  static int64_t bytes(int64_t world_size, int64_t slot_bytes, int64_t num_slots) {
    const int64_t pairs = world_size * world_size;
    const int64_t sum = world_size * num_slots * (slot_bytes + int64_t(sizeof(Header))) +
                        pairs * 3 * int64_t(sizeof(Counter)) + pairs * num_slots * int64_t(sizeof(uint32_t));
    return (sum + kPageBytes - 1) / kPageBytes * kPageBytes;
  }

  // One collective, the same `text` on all its ranks. is_host: called from Python, which wants to hear of signals.
  class Call {
   public:
    Call(SharedMemoryGroup& group_ptr, const std::string& text, bool is_host) : lock_(group_ptr.busy_) {
      group_ptr.text_ = text, group_ptr.hash_ = hash_of(text), group_ptr.is_host_ = is_host;
    }

   private:
    std::lock_guard<std::mutex> lock_;
  };

  int rank() const { return rank_; }
  int world_size() const { return world_; }

  void barrier(const Ranks& ranks) {
    for (int other : ranks)
      if (other != rank_) raise(arrivals_[rank_ * world_ + other], ++arrived_[other]);
    for (int other : ranks)
      if (other != rank_) wait(arrivals_[other * world_ + rank_], arrived_[other], other);
  }

  // Memory [slot_bytes] for the next message, once nobody reads the one that was there.
  char* claim() {
    for (const auto& [reader, number] : readers_[next_]) wait(takes_[reader * world_ + rank_], number, reader);
    readers_[next_].clear();
    return slot(rank_, next_);
  }

  // The claimed memory is a message to the others of `ranks`; it stays as it is until the next call of `claim`.
  void publish(const Ranks& ranks, int64_t used = 0) {
    Header& header = headers_[rank_ * slots_ + next_];
    header.hash = hash_, header.used = used;
    std::snprintf(header.text, kTextBytes, "%s", text_.c_str());
    for (int reader : ranks) {
      if (reader == rank_) continue;
      const uint32_t number = ++sent_[reader];
      places_[(rank_ * world_ + reader) * slots_ + number % slots_] = next_;
      raise(puts_[rank_ * world_ + reader], number);
      readers_[next_].emplace_back(reader, number);
    }
    next_ = (next_ + 1) % slots_;
  }

  // The sender's next message to this rank, to be given back by `release`.
  const char* take(int sender, int64_t* used = nullptr) {
    const uint32_t number = received_[sender] + 1;
    wait(puts_[sender * world_ + rank_], number, sender);
    const int place = places_[(sender * world_ + rank_) * slots_ + number % slots_];
    const Header& header = headers_[sender * slots_ + place];
    if (header.hash != hash_)
      throw std::runtime_error("rank " + std::to_string(rank_) + " is in " + text_ + ", but rank " +
                               std::to_string(sender) + " in " + header.text);
    if (used) *used = header.used;
    return slot(sender, place);
  }
  void release(int sender) { raise(takes_[rank_ * world_ + sender], ++received_[sender]); }

  void broadcast(char* data, int64_t bytes, int sender, const Ranks& ranks) {
    for (int64_t first = 0; first < bytes; first += slot_bytes_) {
      const int64_t n = std::min(slot_bytes_, bytes - first);
      if (rank_ == sender) {
        std::memcpy(claim(), data + first, n);
        publish(ranks);
      } else {
        std::memcpy(data + first, take(sender), n);
        release(sender);
      }
    }
  }

  void all_reduce(int64_t count, const Tensor* const* xs, const Tensor* const* outs, const Ranks& ranks) {
    const int32_t dtype = xs[0]->dtype;
    const int64_t item = size_of(dtype), size = ranks.size();
    int64_t total = 0;
    for (int64_t i = 0; i < count; ++i) total += bytes_of(*xs[i]);
    for (int64_t first = 0; first < total; first += slot_bytes_) {
      const int64_t n = std::min(slot_bytes_, total - first);
      char* mine = claim();
      for_places(count, xs, first, n, [&](char* x, int64_t at, int64_t bytes) { std::memcpy(mine + at, x, bytes); });
      publish(ranks);
      const auto parts = take_all(ranks, mine);
      if (size == 2 || n * size <= kWholeSumBytes) {
        for_places(count, outs, first, n,
                   [&](char* out, int64_t at, int64_t bytes) { add_up(dtype, parts, at, bytes, out); });
        release_all(ranks);
        continue;
      }
      // Each adds up a share of the numbers, and tells the others.
      const int64_t share = (n / item + size - 1) / size * item;
      const auto length = [&](int64_t i) { return std::clamp<int64_t>(n - i * share, 0, share); };
      const int64_t own = index_in(ranks);
      char* sum = claim();
      add_up(dtype, parts, own * share, length(own), sum);
      release_all(ranks);
      publish(ranks);
      for (int64_t i = 0; i < size; ++i) {
        const char* theirs = i == own ? sum : take(ranks[i]);
        for_places(count, outs, first + i * share, length(i),
                   [&](char* out, int64_t at, int64_t bytes) { std::memcpy(out, theirs + at, bytes); });
        if (i != own) release(ranks[i]);
      }
    }
  }

  // used: bytes of x that are in use.
  void all_gather(const Tensor& x, int64_t used, const Tensor& out, const Ranks& ranks) {
    const int64_t bytes = bytes_of(x);
    for (int64_t first = 0; first < bytes; first += slot_bytes_) {
      const int64_t n = std::min(slot_bytes_, bytes - first);
      const auto used_here = [&](int64_t of) { return std::clamp<int64_t>(of - first, 0, n); };
      char* mine = claim();
      std::memcpy(mine, static_cast<char*>(x.data) + first, used_here(used));
      publish(ranks, used);
      for (size_t i = 0; i < ranks.size(); ++i) {
        char* place = static_cast<char*>(out.data) + i * bytes + first;
        int64_t theirs = used;
        const char* part = ranks[i] == rank_ ? mine : take(ranks[i], &theirs);
        std::memcpy(place, part, used_here(theirs));
        std::memset(place + used_here(theirs), 0, n - used_here(theirs));
        if (ranks[i] != rank_) release(ranks[i]);
      }
    }
  }

  void reduce_scatter(const Tensor& x, const Tensor& out, const Ranks& ranks) {
    const int64_t bytes = bytes_of(out), own = index_in(ranks);
    for_shares(bytes, ranks, [&](int64_t first, int64_t n, int64_t room) {
      char* mine = claim();
      for (size_t i = 0; i < ranks.size(); ++i)
        std::memcpy(mine + i * room, static_cast<char*>(x.data) + i * bytes + first, n);
      publish(ranks);
      add_up(x.dtype, take_all(ranks, mine), own * room, n, static_cast<char*>(out.data) + first);
      release_all(ranks);
    });
  }

  void all_to_all(const Tensor& x, int split_axis, int concat_axis, const Tensor& out, const Ranks& ranks) {
    const int64_t size = ranks.size(), own = index_in(ranks);
    for_shares(bytes_of(x) / size, ranks, [&](int64_t first, int64_t n, int64_t room) {
      char* mine = claim();
      for (int64_t i = 0; i < size; ++i)
        for_block(x, split_axis, i, size, first, n,
                  [&](char* from, int64_t at, int64_t bytes) { std::memcpy(mine + i * room + at, from, bytes); });
      publish(ranks);
      for (int64_t i = 0; i < size; ++i) {
        const char* part = (i == own ? mine : take(ranks[i])) + own * room;
        for_block(out, concat_axis, i, size, first, n,
                  [&](char* to, int64_t at, int64_t bytes) { std::memcpy(to, part + at, bytes); });
        if (i != own) release(ranks[i]);
      }
    });
  }

 private:
  char* slot(int sender, int place) const { return memory_ + (int64_t(sender) * slots_ + place) * slot_bytes_; }

  int64_t index_in(const Ranks& ranks) const { return std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin(); }

  std::vector<const char*> take_all(const Ranks& ranks, const char* mine) {
    std::vector<const char*> parts;
    for (int rank : ranks) parts.push_back(rank == rank_ ? mine : take(rank));
    return parts;
  }
  void release_all(const Ranks& ranks) {
    for (int rank : ranks)
      if (rank != rank_) release(rank);
  }

  // body(first, n, room) for the bytes that each rank has for each other, `room` of a slot apart.
  template <class Body>
  void for_shares(int64_t bytes, const Ranks& ranks, Body body) {
    const int64_t room = slot_bytes_ / int64_t(ranks.size()) / 64 * 64;
    for (int64_t first = 0; first < bytes; first += room) body(first, std::min(room, bytes - first), room);
  }

  static int64_t futex(Counter& counter, int operation, uint32_t value, const timespec* limit) {
    return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&counter.value), operation, value, limit, nullptr, 0);
  }

  // What this rank has done before is seen by who has waited for the number. On aarch64, where stores may overtake one
  // another, two things ensure it, both by the default order of std::atomic, memory_order_seq_cst:
  // - The store of `value` is a release (stlr), its loads in `wait` acquire (ldar). Hence plain stores to a slot, its
  //   header and its place come before the number that tells of them, and reads of a slot before the number that frees it.
  // - The store of `value` and the load of `sleepers` keep their order, and so do the addition and the load in `wait`:
  //   one of the two sees the other, and no rank sleeps on. Release and acquire alone would allow both to miss.
  static void raise(Counter& counter, uint32_t number) {
    counter.value.store(number);
    if (counter.sleepers.load() > 0) futex(counter, FUTEX_WAKE, INT_MAX, nullptr);
  }

  void wait(Counter& counter, uint32_t number, int other) {
    const auto has_come = [&] { return int32_t(counter.value.load() - number) >= 0; };
    for (int turn = 0; turn < kYields; ++turn) {
      if (has_come()) return;
      sched_yield();
    }
    say(text_ + ", for rank " + std::to_string(other));
    counter.sleepers.fetch_add(1);
    bool is_ended = false;
    while (!is_ended) {
      const uint32_t seen = counter.value.load();
      if (int32_t(seen - number) >= 0) break;
      const timespec limit{0, kNoticeNs};
      const bool is_noticed = futex(counter, FUTEX_WAIT, seen, &limit) != 0 && (errno == ETIMEDOUT || errno == EINTR);
      is_ended = is_noticed && is_host_ && ended_ && ended_() != 0;
    }
    counter.sleepers.fetch_sub(1);
    say("");
    if (is_ended) throw std::runtime_error("interrupted in " + text_);
  }

  // To the heartbeat, which the launcher reads. Nothing orders these stores: it may read half of a text, and shows it.
  void say(const std::string& text) const {
    char* place = waiting_ ? *const_cast<char* const volatile*>(waiting_) : nullptr;
    if (place) std::snprintf(place, kTextBytes, "%s", text.c_str());
  }

  const int rank_, world_, slots_;
  const int64_t slot_bytes_;
  char* const* const waiting_;
  int (*const ended_)();
  std::vector<uint32_t> sent_, received_, arrived_;  // by the other rank: the last numbers
  std::vector<std::vector<std::pair<int, uint32_t>>> readers_;  // by slot: who gets its message, and its number there
  int next_ = 0;
  bool is_host_ = false;
  std::mutex busy_;
  std::string text_;
  uint64_t hash_ = 0;
  // In the file. Counters by writer, then reader.
  char* memory_;                       // [W, slots, slot_bytes], by sender
  Header* headers_;                    // [W, slots]
  Counter *arrivals_, *puts_, *takes_;    // [W, W]
  uint32_t* places_;                   // [W, W, slots]: in which slot of its sender a message is, by its number
};

namespace {

SharedMemoryGroup* of_graphs = nullptr;

// A group, or null: that of graphs.
SharedMemoryGroup& found(void* group_ptr) {
  SharedMemoryGroup* one = group_ptr ? static_cast<SharedMemoryGroup*>(group_ptr) : of_graphs;
  REQUIRE(one != nullptr, "the ranks have no memory in common");
  return *one;
}

std::string described(const char* operation, const Tensor& x) {
  return std::string(operation) + " of " + text_of_dtype(x.dtype) + " " + text_of_shape(x);
}

// body(group_ptr, ranks) as one collective.
template <class Body>
int collective(void* group_ptr, const std::string& what, const int64_t* ranks, int64_t count, int64_t number, Body body) {
  return guarded([&] {
    SharedMemoryGroup& one = found(group_ptr);
    const Ranks group(ranks, ranks + count);
    REQUIRE(std::find(group.begin(), group.end(), one.rank()) != group.end() && group.back() < one.world_size(),
            "rank " + std::to_string(one.rank()) + " of " + std::to_string(one.world_size()) + " meets " +
                text_of(group));
    const std::string numbered = number ? ", number " + std::to_string(number) : "";
    const SharedMemoryGroup::Call call(one, what + " over " + text_of(group) + numbered, group_ptr != nullptr);
    body(one, group);
  });
}

}  // namespace
}  // namespace mindgspo

using namespace mindgspo;

extern "C" {

int64_t mindgspo_group_bytes(int64_t world_size, int64_t slot_bytes, int64_t num_slots) {
  return SharedMemoryGroup::bytes(world_size, slot_bytes, num_slots);
}

int mindgspo_open_shared_memory(int64_t file, int64_t offset, int64_t rank, int64_t world_size, int64_t slot_bytes,
                          int64_t num_slots, char* const* waiting, int (*ended)(), void** group_ptr) {
  return guarded([&] {
    *group_ptr = new SharedMemoryGroup(int(file), offset, int(rank), int(world_size), slot_bytes, int(num_slots), waiting, ended);
  });
}

int mindgspo_use_in_graphs(void* group_ptr) {
  of_graphs = static_cast<SharedMemoryGroup*>(group_ptr);
  return 0;
}

int mindgspo_barrier(void* group_ptr, const int64_t* ranks, int64_t count) {
  return collective(group_ptr, "barrier", ranks, count, 0, [&](SharedMemoryGroup& one, const Ranks& group) { one.barrier(group); });
}

// The bytes of one message, whatever group its sender gives it to.
static std::string message(int64_t bytes, int64_t sender) {
  return "message of " + std::to_string(bytes) + " bytes from rank " + std::to_string(sender);
}

int mindgspo_begin_message(void* group_ptr, int64_t bytes, int64_t sender, void** place) {
  return guarded([&] {
    SharedMemoryGroup& one = found(group_ptr);
    const SharedMemoryGroup::Call call(one, message(bytes, sender), true);
    *place = one.rank() == sender ? one.claim() : const_cast<char*>(one.take(int(sender)));
  });
}

int mindgspo_end_message(void* group_ptr, const int64_t* ranks, int64_t count, int64_t bytes, int64_t sender) {
  return guarded([&] {
    SharedMemoryGroup& one = found(group_ptr);
    const SharedMemoryGroup::Call call(one, message(bytes, sender), true);
    if (one.rank() == sender)
      one.publish(Ranks(ranks, ranks + count));
    else
      one.release(int(sender));
  });
}

int mindgspo_broadcast(void* group_ptr, const int64_t* ranks, int64_t count, int64_t sender, const mindgspo_tensor* x) {
  const std::string what = described("broadcast", *x) + " from rank " + std::to_string(sender);
  return collective(group_ptr, what, ranks, count, 0, [&](SharedMemoryGroup& one, const Ranks& group) {
    one.broadcast(static_cast<char*>(x->data), bytes_of(*x), int(sender), group);
  });
}

int mindgspo_all_reduce(void* group_ptr, const int64_t* ranks, int64_t count, int64_t number, int64_t tensors,
                        const mindgspo_tensor* const* xs, const mindgspo_tensor* const* outs) {
  const std::string more = tensors > 1 ? " and " + std::to_string(tensors - 1) + " more" : "";
  return collective(group_ptr, described("all_reduce", *xs[0]) + more, ranks, count, number,
                    [&](SharedMemoryGroup& one, const Ranks& group) { one.all_reduce(tensors, xs, outs, group); });
}

int mindgspo_all_gather(void* group_ptr, const int64_t* ranks, int64_t count, int64_t number, const mindgspo_tensor* x,
                        int64_t used, const mindgspo_tensor* out) {
  return collective(group_ptr, described("all_gather", *x), ranks, count, number, [&](SharedMemoryGroup& one, const Ranks& group) {
    REQUIRE(x->rank >= 1 && used >= 0 && used <= x->shape[0],
            std::to_string(used) + " rows in use of " + text_of_shape(*x));
    one.all_gather(*x, x->shape[0] ? bytes_of(*x) / x->shape[0] * used : 0, *out, group);
  });
}

int mindgspo_reduce_scatter(void* group_ptr, const int64_t* ranks, int64_t count, int64_t number,
                            const mindgspo_tensor* x, const mindgspo_tensor* out) {
  return collective(group_ptr, described("reduce_scatter", *x), ranks, count, number,
                    [&](SharedMemoryGroup& one, const Ranks& group) {
                      REQUIRE(x->rank >= 1 && x->shape[0] % count == 0,
                              text_of_shape(*x) + " cannot be shared out over " + text_of(group));
                      one.reduce_scatter(*x, *out, group);
                    });
}

int mindgspo_all_to_all(void* group_ptr, const int64_t* ranks, int64_t count, int64_t number, const mindgspo_tensor* x,
                        int64_t split_axis, int64_t concat_axis, const mindgspo_tensor* out) {
  const std::string axes = ", axis " + std::to_string(split_axis) + " to " + std::to_string(concat_axis) + ",";
  return collective(group_ptr, described("all_to_all", *x) + axes, ranks, count, number,
                    [&](SharedMemoryGroup& one, const Ranks& group) {
                      const int split = normalized_axis(split_axis, *x), concat = normalized_axis(concat_axis, *x);
                      REQUIRE(x->shape[split] % count == 0,
                              text_of_shape(*x) + " cannot be split for " + text_of(group));
                      one.all_to_all(*x, split, concat, *out, group);
                    });
}

}  // extern "C"
