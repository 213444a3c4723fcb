// MindSpore's actor thread waits for the thread that launches kernels in a loop without a pause. On a server it has a
// core to itself. Emulated cards compute inside of launches and wait there for other cards: with more cards than cores,
// such loops take most of what the machine computes. Here that one loop sleeps between two looks.
//
// The loop, as GCC compiles `while (!done) {}` for x86-64 in MindSpore 2.10's libmindspore_ms_backend.so, is replaced in
// memory by a jump. Where these bytes are not found, exactly once, nothing is changed, and jobs of many cards are slow.
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "common.h"

namespace {

constexpr uint8_t kLoop[] = {
    0x0f, 0xb6, 0x44, 0x24, 0x07,  // again: movzbl 7(%rsp), %eax
    0x84, 0xc0,                    // test %al, %al
    0x74, 0xf7,                    // je again
    0x48, 0x89, 0xef, 0xe8,        // mov %rbp, %rdi; call: what the syscall changes is not read again
};
constexpr size_t kLoopSize = 9;

constexpr uint8_t kSleepingLoop[] = {
    0x0f, 0xb6, 0x44, 0x24, 0x07,              // again: movzbl 7(%rsp), %eax
    0x84, 0xc0,                                // test %al, %al
    0x75, 0x12,                                // jne done
    0xb8, 0x23, 0x00, 0x00, 0x00,              // mov $35 (nanosleep), %eax
    0x48, 0x8d, 0x3d, 0x0b, 0x00, 0x00, 0x00,  // lea pause(%rip), %rdi
    0x31, 0xf6,                                // xor %esi, %esi
    0x0f, 0x05,                                // syscall
    0xeb, 0xe5,                                // jmp again
    0xe9, 0x00, 0x00, 0x00, 0x00,              // done: jmp behind the loop
};
constexpr int64_t kPause[2] = {0, 100'000};  // seconds, nanoseconds

struct Code {
  uint8_t* start = nullptr;
  size_t size = 0;
};

int find_backend(dl_phdr_info* info, size_t, void* found) {
  if (!strstr(info->dlpi_name, "libmindspore_ms_backend.so")) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type == PT_LOAD && (segment.p_flags & PF_X)) {
      *static_cast<Code*>(found) = {reinterpret_cast<uint8_t*>(info->dlpi_addr + segment.p_vaddr), segment.p_memsz};
      return 1;
    }
  }
  return 0;
}

uint8_t* find_loop(const Code& code) {
  auto* first = static_cast<uint8_t*>(memmem(code.start, code.size, kLoop, sizeof(kLoop)));
  if (!first) return nullptr;
  const size_t rest = code.start + code.size - (first + 1);
  return memmem(first + 1, rest, kLoop, sizeof(kLoop)) ? nullptr : first;
}

// A page within reach of a jump from `code`; nullptr if none is free. Below the libraries malloc's arenas may lie close
// to one another, above them is room as a rule.
uint8_t* map_near(const Code& code, size_t page) {
  constexpr intptr_t kStep = 16 << 20;
  constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
  const auto start = reinterpret_cast<intptr_t>(code.start) / static_cast<intptr_t>(page) * static_cast<intptr_t>(page);
  for (intptr_t away = kStep; away < 100 * kStep; away += kStep) {
    for (const intptr_t address : {start + away, start - away}) {
      void* wanted = reinterpret_cast<void*>(address);
      void* made = mmap(wanted, page, PROT_READ | PROT_WRITE, flags, -1, 0);
      if (made == wanted) return static_cast<uint8_t*>(made);
      if (made != MAP_FAILED) munmap(made, page);
    }
  }
  return nullptr;
}

// A jump of 5 bytes from the instruction at `from`, if `to` is near enough.
bool write_jump(uint8_t* at, const uint8_t* from, const uint8_t* to) {
  const int64_t distance = to - (from + 5);
  if (distance != static_cast<int32_t>(distance)) return false;
  const auto near = static_cast<int32_t>(distance);
  at[0] = 0xe9;
  memcpy(at + 1, &near, sizeof(near));
  return true;
}

// Whether it does now.
bool let_loop_sleep() {
  Code code;
  if (!dl_iterate_phdr(find_backend, &code)) return false;
  uint8_t* loop = find_loop(code);
  if (!loop) return false;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  uint8_t* made = map_near(code, page);
  if (!made) return false;
  memcpy(made, kSleepingLoop, sizeof(kSleepingLoop));
  memcpy(made + sizeof(kSleepingLoop), kPause, sizeof(kPause));
  uint8_t* back = made + sizeof(kSleepingLoop) - 5;
  uint8_t jump[5];
  if (!write_jump(back, back, loop + kLoopSize) || !write_jump(jump, loop, made) ||
      mprotect(made, page, PROT_READ | PROT_EXEC)) {
    munmap(made, page);
    return false;
  }
  auto* start = reinterpret_cast<uint8_t*>(reinterpret_cast<uintptr_t>(loop) / page * page);
  const size_t size = loop + sizeof(jump) - start;
  if (mprotect(start, size, PROT_READ | PROT_WRITE | PROT_EXEC)) return false;
  memcpy(loop, jump, sizeof(jump));
  return mprotect(start, size, PROT_READ | PROT_EXEC) == 0;
}

std::atomic<bool> sleeps{false};

}  // namespace

namespace emulator {
void let_waiting_threads_sleep() {
  static std::once_flag once;
  std::call_once(once, [] { sleeps = let_loop_sleep(); });
}
}  // namespace emulator

API int emulator_sleeps_while_waiting() { return sleeps; }
