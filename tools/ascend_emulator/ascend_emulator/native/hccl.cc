// HCCL between processes of one machine, through messages in shared memory.
//
// Every call of a communicator has a number; each rank writes its bytes under that number and reads those of the others.
// A rank's message of the call before goes away when all have come to the next one. Reductions go in the order of ranks
// and round after each step, so all ranks get the same bits.
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "common.h"
#include "messages.h"

using namespace emulator;

namespace {

enum DataType { kInt8, kInt16, kInt32, kFp16, kFp32, kInt64, kUint64, kUint8, kUint16, kUint32, kFp64, kBfp16 };
const char* const kTypeNames[] = {"int8", "int16", "int32", "float16", "float32", "int64", "uint64", "uint8", "uint16", "uint32", "float64", "bfloat16"};
enum ReduceOp { kSum, kProd, kMax, kMin };
constexpr int kHcclParameter = 1;  // HCCL_E_PARA
constexpr int kHcclInternal = 4;   // HCCL_E_INTERNAL
constexpr int kHcclTimeout = 9;    // HCCL_E_TIMEOUT
constexpr int kNoType = -1;

struct Communicator {
  std::string name;
  uint32_t rank, size;
  std::vector<uint32_t> members;  // their numbers in the world
  uint64_t calls = 0;  // that of number 0 makes the group, in that of number 1 the ranks connect
  std::map<uint32_t, uint64_t> sent, received;
  std::string before;  // this rank's message of the call before
  std::mutex mutex;
};

struct RootInfo { char name[4108]; };  // as large as HCCL's

// Calls and bytes by kind and size of group, "AllReduce/4". Bytes are what a rank sends if data goes around in a ring.
std::map<std::string, std::pair<uint64_t, uint64_t>> tallies;
std::mutex tallies_mutex;

void tally(const char* kind, const Communicator& comm, size_t bytes) {
  std::lock_guard<std::mutex> lock(tallies_mutex);
  auto& [calls, total] = tallies[std::string(kind) + "/" + std::to_string(comm.size)];
  ++calls;
  total += bytes;
}

size_t width(int type) {
  switch (type) {
    case kInt8: case kUint8: return 1;
    case kInt16: case kFp16: case kUint16: case kBfp16: return 2;
    case kInt32: case kFp32: case kUint32: return 4;
    case kInt64: case kUint64: case kFp64: return 8;
    default: return 0;
  }
}

int fail(const std::string& text) {
  set_error("HCCL: " + text);
  return kHcclInternal;
}

// For messages to the user, with numbers of ranks in the world.
std::string told(const Communicator& comm, const std::string& what) {
  std::string text = "rank " + std::to_string(comm.members[comm.rank]) + " in " + what + " (group of ranks";
  for (const uint32_t member : comm.members) text += " " + std::to_string(member);
  return text + ")";
}

Head head_of(const std::string& kind, int type, uint64_t count) {
  Head head{{}, type, count};
  snprintf(head.kind, sizeof head.kind, "%s", kind.c_str());
  return head;
}

// On a card a mismatch hangs or corrupts, here it is said on both sides. what: that this rank calls.
int compare(const Communicator& comm, const std::string& what, const Head& own, const Head& other, uint32_t peer) {
  if (own.type == other.type && own.count == other.count && !strcmp(own.kind, other.kind)) return kOk;
  auto given = [](const Head& head) {
    const bool is_known = head.type >= kInt8 && head.type <= kBfp16;
    return std::to_string(head.count) + " " + (is_known ? kTypeNames[head.type] : "elements");
  };
  const std::string others = *other.kind ? std::string(" in ") + other.kind : "";
  return fail(told(comm, what) + " has " + given(own) + ", rank " + std::to_string(comm.members[peer]) + others + " " + given(other));
}

// Everybody's bytes to everybody, in a collective of this head; the ranks may give different numbers of bytes.
int exchange(Communicator* comm, const Head& head, const void* data, size_t bytes, std::vector<Received>* all) {
  std::lock_guard<std::mutex> lock(comm->mutex);
  const Limit& limit = comm->calls < 2 ? connect_limit() : execute_limit();
  const std::string call = comm->name + "." + std::to_string(comm->calls++) + ".";
  const std::string own = message_path(call + std::to_string(comm->rank));
  if (!write_message(own, head, data, bytes)) return fail("cannot write " + own);
  int status = kOk;
  for (uint32_t rank = 0; rank < comm->size; ++rank) {
    auto wait = [&] { return told(*comm, head.kind) + ": waits for rank " + std::to_string(comm->members[rank]); };
    const std::string path = message_path(call + std::to_string(rank));
    if (!await_message(path, &(*all)[rank], limit, wait)) return kHcclTimeout;
    if (status == kOk) status = compare(*comm, head.kind, head, (*all)[rank].head(), rank);
  }
  if (!comm->before.empty()) unlink(comm->before.c_str());
  comm->before = own;
  return status;
}

// A call of a collective: `bytes` of this rank, and what all have given. `num_sent`: see `tallies`.
struct Collective {
  Communicator* comm;
  std::vector<Received> all;
  int status;

  Collective(Communicator* comm, const char* kind, int type, uint64_t count, const void* data, size_t bytes, size_t num_sent)
      : comm(comm), all(comm->size) {
    tally(kind, *comm, num_sent);
    status = exchange(comm, head_of(kind, type, count), data, bytes, &all);
  }
};

float from_half(uint16_t bits) {
  _Float16 half;
  memcpy(&half, &bits, 2);
  return static_cast<float>(half);
}
uint16_t to_half(float value) {
  const _Float16 half = static_cast<_Float16>(value);
  uint16_t bits;
  memcpy(&bits, &half, 2);
  return bits;
}
float from_bfloat(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}
uint16_t to_bfloat(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <class Value>
Value fold(Value a, Value b, int op) {
  switch (op) {
    case kSum: return a + b;
    case kProd: return a * b;
    case kMax: return a > b ? a : b;
    default: return a < b ? a : b;
  }
}
template <class Value>
void fold_all(void* into, const void* from, size_t count, int op) {
  auto* a = static_cast<Value*>(into);
  auto* b = static_cast<const Value*>(from);
  for (size_t i = 0; i < count; ++i) a[i] = fold(a[i], b[i], op);
}
template <class Widen, class Narrow>
void fold_narrow(void* into, const void* from, size_t count, int op, Widen widen, Narrow narrow) {
  auto* a = static_cast<uint16_t*>(into);
  auto* b = static_cast<const uint16_t*>(from);
  for (size_t i = 0; i < count; ++i) a[i] = narrow(fold(widen(a[i]), widen(b[i]), op));
}

bool reduce_into(void* into, const void* from, size_t count, int type, int op) {
  if (op == kProd && (type == kInt16 || type == kBfp16)) return false;
  switch (type) {
    case kInt8: fold_all<int8_t>(into, from, count, op); return true;
    case kInt16: fold_all<int16_t>(into, from, count, op); return true;
    case kInt32: fold_all<int32_t>(into, from, count, op); return true;
    case kInt64: fold_all<int64_t>(into, from, count, op); return true;
    case kFp32: fold_all<float>(into, from, count, op); return true;
    case kFp16: fold_narrow(into, from, count, op, from_half, to_half); return true;
    case kBfp16: fold_narrow(into, from, count, op, from_bfloat, to_bfloat); return true;
    default: return false;  // HCCL reduces no others
  }
}

// The sum (or product, maximum, minimum) of the ranks' values from `start` bytes on.
int reduce(const std::vector<Received>& all, size_t start, void* into, uint64_t count, int type, int op) {
  memmove(into, all[0].data() + start, count * width(type));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (!reduce_into(into, all[rank].data() + start, count, type, op)) {
      set_error("HCCL: a reduction " + std::to_string(op) + " of HcclDataType " + std::to_string(type) + " is not supported");
      return kHcclParameter;
    }
  }
  return kOk;
}

int open_communicator(uint32_t size, const char* name, uint32_t rank, void** result) {
  static const uint32_t own = rank;  // the first group is the world
  auto* comm = new Communicator();
  comm->name = name;
  comm->rank = rank;
  comm->size = size;
  comm->members.assign(size, own);
  *result = comm;
  if (size == 1) return kOk;
  // Nobody returns before all have come: MindSpore deletes the root information as soon as one has.
  std::vector<Received> all(size);
  const int status = exchange(comm, head_of("the making of a group", kNoType, size), &own, sizeof own, &all);
  for (uint32_t other = 0; status == kOk && other < size; ++other) memcpy(&comm->members[other], all[other].data(), sizeof own);
  return status;
}

}  // namespace

// ---------------------------------------------------------------- communicators
API uint32_t HcclGetCommConfigCapability() { return 9; }
API const char* HcclGetErrorString(int) { return aclGetRecentErrMsg(); }
API int HcclSetConfig(int, int) { return kOk; }
API int HcclGetRootInfo(RootInfo* info) {
  static int made = 0;
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  memset(info, 0, sizeof *info);
  snprintf(info->name, sizeof info->name, "group_%d_%d_%ld", static_cast<int>(getpid()), made++, now.tv_nsec);
  return kOk;
}
API int HcclCommInitRootInfo(uint32_t size, const RootInfo* info, uint32_t rank, void** comm) {
  return open_communicator(size, info->name, rank, comm);
}
API int HcclCommInitRootInfoConfig(uint32_t size, const RootInfo* info, uint32_t rank, const void*, void** comm) {
  return open_communicator(size, info->name, rank, comm);
}
API int HcclCommInitClusterInfo(const char*, uint32_t rank, void** comm) {
  const char* size = getenv("RANK_SIZE");
  return open_communicator(size ? atoi(size) : 1, "table", rank, comm);
}
API int HcclCommInitClusterInfoConfig(const char* table, uint32_t rank, const void*, void** comm) {
  return HcclCommInitClusterInfo(table, rank, comm);
}
API int HcclCreateSubCommConfig(void**, uint32_t size, uint32_t*, uint64_t id, uint32_t rank, const void*, void** comm) {
  return open_communicator(size, ("sub_" + std::to_string(id)).c_str(), rank, comm);
}
API int HcclGetCommName(const Communicator* comm, char* name) {
  snprintf(name, 128, "%s", comm ? comm->name.c_str() : "");
  return kOk;
}
API int HcclGetRankId(const Communicator* comm, uint32_t* rank) { *rank = comm ? comm->rank : 0; return kOk; }
API int HcclGetRankSize(const Communicator* comm, uint32_t* size) { *size = comm ? comm->size : 1; return kOk; }
API int HcclGetCommAsyncError(const void*, int* error) { *error = kOk; return kOk; }
API int HcclCommDestroy(Communicator*) { return kOk; }  // other threads may still be in a call

// Lines of kind, calls and bytes, valid until this thread asks again.
API const char* emulator_collectives() {
  static thread_local std::string text;
  text.clear();
  std::lock_guard<std::mutex> lock(tallies_mutex);
  for (const auto& [kind, numbers] : tallies) text += kind + " " + std::to_string(numbers.first) + " " + std::to_string(numbers.second) + "\n";
  return text.c_str();
}

// ---------------------------------------------------------------- collectives
API int HcclAllReduce(void* send, void* receive, uint64_t count, int type, int op, Communicator* comm, void*) {
  const size_t bytes = count * width(type);
  Collective call(comm, "AllReduce", type, count, send, bytes, 2 * bytes * (comm->size - 1) / comm->size);
  return call.status == kOk ? reduce(call.all, 0, receive, count, type, op) : call.status;
}
API int HcclReduce(void* send, void* receive, uint64_t count, int type, int op, uint32_t root, Communicator* comm, void*) {
  const size_t bytes = count * width(type);
  Collective call(comm, "Reduce", type, count, send, bytes, bytes * (comm->size - 1) / comm->size);
  return call.status == kOk && comm->rank == root ? reduce(call.all, 0, receive, count, type, op) : call.status;
}
API int HcclReduceScatter(void* send, void* receive, uint64_t count, int type, int op, Communicator* comm, void*) {
  const size_t share = count * width(type);
  Collective call(comm, "ReduceScatter", type, count, send, share * comm->size, share * (comm->size - 1));
  return call.status == kOk ? reduce(call.all, share * comm->rank, receive, count, type, op) : call.status;
}
API int HcclAllGather(void* send, void* receive, uint64_t count, int type, Communicator* comm, void*) {
  const size_t share = count * width(type);
  Collective call(comm, "AllGather", type, count, send, share, share * (comm->size - 1));
  for (uint32_t rank = 0; call.status == kOk && rank < comm->size; ++rank) {
    memcpy(static_cast<char*>(receive) + rank * share, call.all[rank].data(), share);
  }
  return call.status;
}
API int HcclBroadcast(void* data, uint64_t count, int type, uint32_t root, Communicator* comm, void*) {
  if (root >= comm->size) return fail(told(*comm, "Broadcast") + " has no root " + std::to_string(root));
  const size_t bytes = count * width(type);
  Collective call(comm, "Broadcast", type, count, data, comm->rank == root ? bytes : 0, bytes * (comm->size - 1) / comm->size);
  if (call.status != kOk || comm->rank == root) return call.status;
  if (call.all[root].bytes() != bytes) return fail(told(*comm, "Broadcast") + ": not all ranks name the same root");
  memcpy(data, call.all[root].data(), bytes);
  return kOk;
}
API int HcclScatter(void* send, void* receive, uint64_t count, int type, uint32_t root, Communicator* comm, void*) {
  if (root >= comm->size) return fail(told(*comm, "Scatter") + " has no root " + std::to_string(root));
  const size_t share = count * width(type), whole = share * comm->size;
  Collective call(comm, "Scatter", type, count, send, comm->rank == root ? whole : 0, share * (comm->size - 1) / comm->size);
  if (call.status != kOk) return call.status;
  if (call.all[root].bytes() != whole) return fail(told(*comm, "Scatter") + ": not all ranks name the same root");
  memcpy(receive, call.all[root].data() + comm->rank * share, share);
  return kOk;
}
API int HcclBarrier(Communicator* comm, void*) {
  return Collective(comm, "Barrier", kNoType, 0, nullptr, 0, 0).status;
}
API int HcclAlltoAllV(const void* send, const uint64_t* send_counts, const uint64_t* send_starts, int send_type, void* receive,
                      const uint64_t* receive_counts, const uint64_t* receive_starts, int receive_type, Communicator* comm, void*) {
  // A header of one offset per rank (and the end), then the ranks' parts.
  const size_t size = width(send_type), header = 8 * (comm->size + 1);
  std::vector<uint64_t> starts(comm->size + 1, header);
  for (uint32_t rank = 0; rank < comm->size; ++rank) starts[rank + 1] = starts[rank] + send_counts[rank] * size;
  std::vector<char> packed(starts.back());
  memcpy(packed.data(), starts.data(), header);
  for (uint32_t rank = 0; rank < comm->size; ++rank) {
    memcpy(packed.data() + starts[rank], static_cast<const char*>(send) + send_starts[rank] * size, send_counts[rank] * size);
  }
  const size_t num_sent = packed.size() - header - send_counts[comm->rank] * size;
  Collective call(comm, "AlltoAllV", send_type, 0, packed.data(), packed.size(), num_sent);
  for (uint32_t rank = 0; call.status == kOk && rank < comm->size; ++rank) {
    const auto* from = reinterpret_cast<const uint64_t*>(call.all[rank].data());
    const size_t wanted = receive_counts[rank] * width(receive_type), given = from[comm->rank + 1] - from[comm->rank];
    if (given != wanted) {
      return fail(told(*comm, "AlltoAllV") + ": expects " + std::to_string(wanted) + " bytes of rank " +
                  std::to_string(comm->members[rank]) + ", which gives " + std::to_string(given));
    }
    memcpy(static_cast<char*>(receive) + receive_starts[rank] * width(receive_type), call.all[rank].data() + from[comm->rank], wanted);
  }
  return call.status;
}
API int HcclAlltoAll(const void* send, uint64_t count, int type, void* receive, uint64_t, int, Communicator* comm, void*) {
  const size_t share = count * width(type);
  Collective call(comm, "AlltoAll", type, count, send, share * comm->size, share * (comm->size - 1));
  for (uint32_t rank = 0; call.status == kOk && rank < comm->size; ++rank) {
    memcpy(static_cast<char*>(receive) + rank * share, call.all[rank].data() + comm->rank * share, share);
  }
  return call.status;
}

// ---------------------------------------------------------------- point to point
namespace {

// One side of a message, which waits for the other: a card's Send returns when its Receive has come.
class Transfer {
 public:
  Transfer(bool sends, void* data, uint64_t count, int type, uint32_t peer, Communicator* comm)
      : comm_(comm), sends_(sends), data_(data), bytes_(count * width(type)), peer_(peer), head_(head_of("", type, count)) {
    std::lock_guard<std::mutex> lock(comm->mutex);
    const std::string from = std::to_string(sends ? comm->rank : peer), to = std::to_string(sends ? peer : comm->rank);
    const uint64_t number = (sends ? comm->sent : comm->received)[peer]++;
    is_first_ = number == 0;
    path_ = message_path(comm->name + "." + from + "-" + to + "." + std::to_string(number));
    tally(sends ? "Send" : "Receive", *comm, sends ? bytes_ : 0);
  }
  bool begin() { return write_message(path_ + ends(sends_), head_, data_, sends_ ? bytes_ : 0); }
  int finish() {
    const std::string theirs = path_ + ends(!sends_), peer = std::to_string(comm_->members[peer_]);
    const std::string kind = sends_ ? "Send to rank " + peer : "Receive from rank " + peer;
    Received received;
    const Limit& limit = is_first_ ? connect_limit() : execute_limit();
    if (!await_message(theirs, &received, limit, [&] { return told(*comm_, kind); })) return kHcclTimeout;
    unlink(theirs.c_str());
    const int status = compare(*comm_, kind, head_, received.head(), peer_);
    if (status == kOk && !sends_) memcpy(data_, received.data(), bytes_);
    return status;
  }

 private:
  static const char* ends(bool sends) { return sends ? ".sent" : ".wanted"; }
  Communicator* comm_;
  bool sends_, is_first_;
  void* data_;
  size_t bytes_;
  uint32_t peer_;
  Head head_;
  std::string path_;
};

int transfer(bool sends, void* data, uint64_t count, int type, uint32_t peer, Communicator* comm) {
  Transfer one(sends, data, count, type, peer, comm);
  return one.begin() ? one.finish() : fail("cannot write to a shared folder");
}

}  // namespace

API int HcclSend(void* data, uint64_t count, int type, uint32_t to, Communicator* comm, void*) {
  return transfer(true, data, count, type, to, comm);
}
API int HcclRecv(void* data, uint64_t count, int type, uint32_t from, Communicator* comm, void*) {
  return transfer(false, data, count, type, from, comm);
}
struct SendRecvItem { int type; void* data; uint64_t count; int dtype; uint32_t peer; };  // type 0 sends
API int HcclBatchSendRecv(SendRecvItem* items, uint32_t count, Communicator* comm, void*) {
  std::vector<Transfer> transfers;  // all at once: their order says nothing
  for (uint32_t i = 0; i < count; ++i) transfers.emplace_back(items[i].type == 0, items[i].data, items[i].count, items[i].dtype, items[i].peer, comm);
  int status = kOk;
  for (auto& one : transfers) {
    if (!one.begin()) status = fail("cannot write to a shared folder");
  }
  for (auto& one : transfers) {
    if (status == kOk) status = one.finish();
  }
  return status;
}
