// Messages between the processes of one machine: files in a folder of shared memory ($ASCEND_EMULATOR_FOLDER).
#pragma once
#include <functional>
#include <string>

namespace emulator {

// What comes before the bytes of a message. type: HcclDataType; -1 where it says nothing.
struct Head {
  char kind[48];
  int64_t type;
  uint64_t count;
};

// How long a wait may last, by which variable, and how HCCL begins to tell that it was too long. seconds: 0 without one.
struct Limit {
  const char* variable;
  long seconds;
  const char* says;
};
// Of ranks that meet for the first time, in a group or as a pair: $HCCL_CONNECT_TIMEOUT, by default 120 s as on a card.
const Limit& connect_limit();
// Of those that have met: $HCCL_EXEC_TIMEOUT. HCCL's default is half an hour; here there is none, since only the
// launcher knows whether the other rank is dead or slow.
const Limit& execute_limit();

// A mapped message of another process; its file may be unlinked.
class Received {
 public:
  Received() = default;
  Received(const Received&) = delete;
  ~Received();
  const Head& head() const { return *static_cast<const Head*>(mapped_); }
  const char* data() const { return static_cast<const char*>(mapped_) + sizeof(Head); }
  size_t bytes() const { return size_ - sizeof(Head); }

 private:
  friend bool await_message(const std::string&, Received*, const Limit&, const std::function<std::string()>&);
  void* mapped_ = nullptr;
  size_t size_ = 0;
};

// The path of a message of this name.
std::string message_path(const std::string& name);
bool write_message(const std::string& path, const Head& head, const void* data, size_t bytes);
// Waits up to the limit; the error is then set. wait: what is told of it.
bool await_message(const std::string& path, Received* received, const Limit& limit, const std::function<std::string()>& wait);

}  // namespace emulator
