// Messages between processes, and what a process waits for, told in a file for the launcher's report of a stall.
#include "messages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <mutex>
#include <optional>

#include "common.h"

namespace emulator {
namespace {

constexpr long kQuickTries = 200;
constexpr std::chrono::milliseconds kLong{500};

std::mutex waits_mutex;
std::list<std::string> waits;  // of this process's threads that wait for long
std::string waits_path;

// As long as it lives, the file says what is waited for.
class Told {
 public:
  explicit Told(const std::string& text) {
    std::lock_guard<std::mutex> lock(waits_mutex);
    own_ = waits.insert(waits.end(), text);
    write();
  }
  Told(const Told&) = delete;
  ~Told() {
    std::lock_guard<std::mutex> lock(waits_mutex);
    waits.erase(own_);
    write();
  }

 private:
  static void write() {
    FILE* file = waits_path.empty() ? nullptr : fopen(waits_path.c_str(), "w");
    if (!file) return;
    for (const auto& text : waits) fprintf(file, "%s\n", text.c_str());
    fclose(file);
  }
  std::list<std::string>::iterator own_;
};

std::string folder() {
  const char* given = getenv("ASCEND_EMULATOR_FOLDER");
  return given ? given : "/dev/shm/ascend-emulator-" + std::to_string(getppid());
}

Limit limit_of(const char* variable, long by_default, const char* says) {
  const char* given = getenv(variable);
  return {variable, given ? atol(given) : by_default, says};
}

bool write_all(int file, const void* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t step = write(file, static_cast<const char*>(data) + done, bytes - done);
    if (step <= 0) return false;
    done += step;
  }
  return true;
}

}  // namespace

Received::~Received() {
  if (mapped_) munmap(mapped_, size_);
}

std::string message_path(const std::string& name) {
  static const std::string made = [] {
    const std::string path = folder();
    mkdir(path.c_str(), 0700);
    return path;
  }();
  return made + "/" + name;
}

bool write_message(const std::string& path, const Head& head, const void* data, size_t bytes) {
  const std::string aside = path + ".part";
  const int file = open(aside.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  if (file < 0) return false;
  const bool is_whole = write_all(file, &head, sizeof head) && write_all(file, data, bytes);
  close(file);
  return is_whole && rename(aside.c_str(), path.c_str()) == 0;
}

const Limit& connect_limit() {
  static const Limit limit = limit_of("HCCL_CONNECT_TIMEOUT", 120, "EI0006: Getting socket times out. Reason: Remote Rank did not send the data in time");
  return limit;
}

const Limit& execute_limit() {
  static const Limit limit = limit_of("HCCL_EXEC_TIMEOUT", 0, "EI0002: The wait execution of the Notify register times out");
  return limit;
}

bool await_message(const std::string& path, Received* received, const Limit& limit, const std::function<std::string()>& wait) {
  int file;
  std::optional<Told> told;
  const auto started = std::chrono::steady_clock::now();
  for (long tries = 0; (file = open(path.c_str(), O_RDONLY)) < 0; ++tries) {
    usleep(tries < kQuickTries ? 20 : 500);
    const auto waited = std::chrono::steady_clock::now() - started;
    if (!told && waited > kLong) told.emplace(wait());
    if (limit.seconds && waited > std::chrono::seconds(limit.seconds)) {
      set_error(std::string(limit.says) + ": " + wait() + ": for " + std::to_string(limit.seconds) + " s, which is " + limit.variable);
      return false;
    }
  }
  struct stat status;
  fstat(file, &status);
  received->size_ = status.st_size;
  void* mapped = mmap(nullptr, received->size_, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (mapped == MAP_FAILED) {
    set_error("HCCL: cannot read " + path);
    return false;
  }
  received->mapped_ = mapped;
  return true;
}

}  // namespace emulator

// What `wait` gives is kept in this file from now on, a line for each of the process's threads that waits for long.
API void emulator_tell_waits(const char* path) {
  std::lock_guard<std::mutex> lock(emulator::waits_mutex);
  emulator::waits_path = path;
}
