// HCCL between processes of one machine, through files in a folder of shared memory ($MINDGSPO_EMULATOR_FOLDER).
//
// Every call of a communicator has a number; each rank writes its bytes under that number and reads those of the others.
// A rank's file of the call before goes away when all have come to the next one. Reductions go in the order of ranks and
// round after each step, so all ranks get the same bits.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "common.h"

using namespace emulator;

namespace {

enum DataType { kInt8, kInt16, kInt32, kFp16, kFp32, kInt64, kUint64, kUint8, kUint16, kUint32, kFp64, kBfp16 };
enum ReduceOp { kSum, kProd, kMax, kMin };
constexpr int kHcclParameter = 1;  // HCCL_E_PARA
constexpr int kHcclInternal = 4;   // HCCL_E_INTERNAL

struct Communicator {
  std::string name;
  uint32_t rank, size;
  uint64_t calls = 0;
  std::map<uint32_t, uint64_t> sent, received;
  std::string before;  // this rank's file of the call before
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

std::string folder() {
  const char* given = getenv("MINDGSPO_EMULATOR_FOLDER");
  return given ? given : "/dev/shm/mindgspo-" + std::to_string(getppid());
}

// A mapped file of another rank.
struct Received {
  void* data = nullptr;
  size_t bytes = 0;
  Received() = default;
  Received(const Received&) = delete;
  ~Received() {
    if (data) munmap(data, bytes);
  }
};

bool write_whole(const std::string& path, const void* data, size_t bytes) {
  const std::string aside = path + ".part";
  const int file = open(aside.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  if (file < 0) return false;
  size_t done = 0;
  while (done < bytes) {
    const ssize_t step = write(file, static_cast<const char*>(data) + done, bytes - done);
    if (step <= 0) break;
    done += step;
  }
  close(file);
  return done == bytes && rename(aside.c_str(), path.c_str()) == 0;
}

// Waits for a file: for as long as it takes, since only the launcher knows whether its writer is dead or slow.
bool await_file(const std::string& path, Received* received) {
  int file;
  for (long tries = 0; (file = open(path.c_str(), O_RDONLY)) < 0; ++tries) usleep(tries < 200 ? 20 : 500);
  struct stat status;
  fstat(file, &status);
  received->bytes = status.st_size;
  if (received->bytes) {
    received->data = mmap(nullptr, received->bytes, PROT_READ, MAP_SHARED, file, 0);
    if (received->data == MAP_FAILED) received->data = nullptr;
  }
  close(file);
  return received->data || !received->bytes;
}

int fail(const std::string& text) {
  set_error("HCCL: " + text);
  return kHcclInternal;
}

std::string call_file(const Communicator& comm, uint64_t call, uint32_t rank) {
  return folder() + "/" + comm.name + "." + std::to_string(call) + "." + std::to_string(rank);
}

// Everybody's bytes to everybody. The ranks may give different numbers of bytes.
int exchange(Communicator* comm, const void* data, size_t bytes, std::vector<Received>* all) {
  std::lock_guard<std::mutex> lock(comm->mutex);
  const uint64_t call = comm->calls++;
  const std::string own = call_file(*comm, call, comm->rank);
  if (!write_whole(own, data, bytes)) return fail("cannot write " + own);
  for (uint32_t rank = 0; rank < comm->size; ++rank) {
    if (!await_file(call_file(*comm, call, rank), &(*all)[rank])) return fail("cannot read what rank " + std::to_string(rank) + " sent");
  }
  if (!comm->before.empty()) unlink(comm->before.c_str());
  comm->before = own;
  return kOk;
}

// The ranks of a collective give equally many bytes; on a card a mismatch hangs or corrupts, here it is said.
int exchange_equal(Communicator* comm, const char* what, const void* data, size_t bytes, std::vector<Received>* all) {
  const int status = exchange(comm, data, bytes, all);
  if (status != kOk) return status;
  for (uint32_t rank = 0; rank < comm->size; ++rank) {
    if ((*all)[rank].bytes != bytes) {
      return fail(std::string(what) + " in " + comm->name + ": rank " + std::to_string(comm->rank) + " gives " + std::to_string(bytes) +
                  " bytes, rank " + std::to_string(rank) + " " + std::to_string((*all)[rank].bytes));
    }
  }
  return kOk;
}

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
  memmove(into, static_cast<const char*>(all[0].data) + start, count * width(type));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (!reduce_into(into, static_cast<const char*>(all[rank].data) + start, count, type, op)) {
      set_error("HCCL: a reduction of HcclDataType " + std::to_string(type) + " is not supported");
      return kHcclParameter;
    }
  }
  return kOk;
}

int open_communicator(uint32_t size, const char* name, uint32_t rank, void** result) {
  mkdir(folder().c_str(), 0700);
  auto* comm = new Communicator();
  comm->name = name;
  comm->rank = rank;
  comm->size = size;
  *result = comm;
  if (size == 1) return kOk;
  // Nobody returns before all have come: MindSpore deletes the root information as soon as one has.
  std::vector<Received> all(size);
  return exchange(comm, &rank, 1, &all);
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
  tally("AllReduce", *comm, 2 * count * width(type) * (comm->size - 1) / comm->size);
  std::vector<Received> all(comm->size);
  const int status = exchange_equal(comm, "AllReduce", send, count * width(type), &all);
  return status == kOk ? reduce(all, 0, receive, count, type, op) : status;
}
API int HcclReduce(void* send, void* receive, uint64_t count, int type, int op, uint32_t root, Communicator* comm, void*) {
  tally("Reduce", *comm, count * width(type) * (comm->size - 1) / comm->size);
  std::vector<Received> all(comm->size);
  const int status = exchange_equal(comm, "Reduce", send, count * width(type), &all);
  return status == kOk && comm->rank == root ? reduce(all, 0, receive, count, type, op) : status;
}
API int HcclReduceScatter(void* send, void* receive, uint64_t count, int type, int op, Communicator* comm, void*) {
  tally("ReduceScatter", *comm, count * width(type) * (comm->size - 1));
  std::vector<Received> all(comm->size);
  const size_t share = count * width(type);
  const int status = exchange_equal(comm, "ReduceScatter", send, share * comm->size, &all);
  return status == kOk ? reduce(all, share * comm->rank, receive, count, type, op) : status;
}
API int HcclAllGather(void* send, void* receive, uint64_t count, int type, Communicator* comm, void*) {
  tally("AllGather", *comm, count * width(type) * (comm->size - 1));
  std::vector<Received> all(comm->size);
  const size_t share = count * width(type);
  const int status = exchange_equal(comm, "AllGather", send, share, &all);
  for (uint32_t rank = 0; status == kOk && rank < comm->size; ++rank) {
    memcpy(static_cast<char*>(receive) + rank * share, all[rank].data, share);
  }
  return status;
}
API int HcclBroadcast(void* data, uint64_t count, int type, uint32_t root, Communicator* comm, void*) {
  tally("Broadcast", *comm, count * width(type) * (comm->size - 1) / comm->size);
  std::vector<Received> all(comm->size);
  const size_t bytes = count * width(type);
  const int status = exchange(comm, data, comm->rank == root ? bytes : 0, &all);
  if (status != kOk || comm->rank == root) return status;
  if (all[root].bytes != bytes) return fail("Broadcast in " + comm->name + ": the root gives " + std::to_string(all[root].bytes) + " bytes, rank " + std::to_string(comm->rank) + " takes " + std::to_string(bytes));
  memcpy(data, all[root].data, bytes);
  return kOk;
}
API int HcclScatter(void* send, void* receive, uint64_t count, int type, uint32_t root, Communicator* comm, void*) {
  tally("Scatter", *comm, count * width(type) * (comm->size - 1) / comm->size);
  std::vector<Received> all(comm->size);
  const size_t share = count * width(type);
  const int status = exchange(comm, send, comm->rank == root ? share * comm->size : 0, &all);
  if (status == kOk) memcpy(receive, static_cast<char*>(all[root].data) + comm->rank * share, share);
  return status;
}
API int HcclBarrier(Communicator* comm, void*) {
  tally("Barrier", *comm, 0);
  std::vector<Received> all(comm->size);
  return exchange(comm, &comm->rank, 1, &all);
}
API int HcclAlltoAllV(const void* send, const uint64_t* send_counts, const uint64_t* send_starts, int send_type, void* receive,
                      const uint64_t* receive_counts, const uint64_t* receive_starts, int receive_type, Communicator* comm, void*) {
  // A header of one offset per rank (and the end), then the ranks' parts.
  const size_t size = width(send_type), header = 8 * (comm->size + 1);
  std::vector<uint64_t> starts(comm->size + 1, header);
  for (uint32_t rank = 0; rank < comm->size; ++rank) starts[rank + 1] = starts[rank] + send_counts[rank] * size;
  tally("AlltoAllV", *comm, starts.back() - header - send_counts[comm->rank] * size);
  std::vector<char> packed(starts.back());
  memcpy(packed.data(), starts.data(), header);
  for (uint32_t rank = 0; rank < comm->size; ++rank) {
    memcpy(packed.data() + starts[rank], static_cast<const char*>(send) + send_starts[rank] * size, send_counts[rank] * size);
  }
  std::vector<Received> all(comm->size);
  const int status = exchange(comm, packed.data(), packed.size(), &all);
  for (uint32_t rank = 0; status == kOk && rank < comm->size; ++rank) {
    const auto* from = static_cast<const uint64_t*>(all[rank].data);
    const size_t wanted = receive_counts[rank] * width(receive_type);
    if (from[comm->rank + 1] - from[comm->rank] != wanted) return fail("AlltoAllV in " + comm->name + ": counts of ranks " + std::to_string(rank) + " and " + std::to_string(comm->rank) + " differ");
    memcpy(static_cast<char*>(receive) + receive_starts[rank] * width(receive_type), reinterpret_cast<const char*>(from) + from[comm->rank], wanted);
  }
  return status;
}
API int HcclAlltoAll(const void* send, uint64_t count, int type, void* receive, uint64_t, int, Communicator* comm, void*) {
  tally("AlltoAll", *comm, count * width(type) * (comm->size - 1));
  std::vector<Received> all(comm->size);
  const size_t share = count * width(type);
  const int status = exchange_equal(comm, "AlltoAll", send, share * comm->size, &all);
  for (uint32_t rank = 0; status == kOk && rank < comm->size; ++rank) {
    memcpy(static_cast<char*>(receive) + rank * share, static_cast<char*>(all[rank].data) + comm->rank * share, share);
  }
  return status;
}

// ---------------------------------------------------------------- point to point: a send does not wait
static std::string message_file(const Communicator& comm, uint32_t from, uint32_t to, uint64_t number) {
  return folder() + "/" + comm.name + "." + std::to_string(from) + "-" + std::to_string(to) + "." + std::to_string(number);
}
API int HcclSend(void* data, uint64_t count, int type, uint32_t to, Communicator* comm, void*) {
  tally("Send", *comm, count * width(type));
  std::unique_lock<std::mutex> lock(comm->mutex);
  const std::string path = message_file(*comm, comm->rank, to, comm->sent[to]++);
  lock.unlock();
  return write_whole(path, data, count * width(type)) ? kOk : fail("cannot write " + path);
}
API int HcclRecv(void* data, uint64_t count, int type, uint32_t from, Communicator* comm, void*) {
  tally("Receive", *comm, 0);
  std::unique_lock<std::mutex> lock(comm->mutex);
  const std::string path = message_file(*comm, from, comm->rank, comm->received[from]++);
  lock.unlock();
  Received received;
  if (!await_file(path, &received)) return fail("cannot read " + path);
  unlink(path.c_str());
  if (received.bytes != count * width(type)) return fail("Recv in " + comm->name + ": rank " + std::to_string(from) + " sent " + std::to_string(received.bytes) + " bytes, " + std::to_string(count * width(type)) + " are received");
  memcpy(data, received.data, received.bytes);
  return kOk;
}
struct SendRecvItem { int type; void* data; uint64_t count; int dtype; uint32_t peer; };
API int HcclBatchSendRecv(SendRecvItem* items, uint32_t count, Communicator* comm, void* stream) {
  int status = kOk;
  for (uint32_t i = 0; i < count && status == kOk; ++i) {
    if (items[i].type == 0) status = HcclSend(items[i].data, items[i].count, items[i].dtype, items[i].peer, comm, stream);
  }
  for (uint32_t i = 0; i < count && status == kOk; ++i) {
    if (items[i].type == 1) status = HcclRecv(items[i].data, items[i].count, items[i].dtype, items[i].peer, comm, stream);
  }
  return status;
}
