// Calls functions of a library of aarch64 for another process: `aarch64_calls library memory address bytes socket...`.
//
// Both map the file `memory`, this one at `address`. Per socket a thread: a byte asks for the call that stands in its share of the
// memory, a byte says that it has been made. By the convention of aarch64 (AAPCS64), integers and pointers, also those
// to structures of more than 16 bytes, fill x0 to x7 and then the stack in order, doubles d0 to d7: one type of
// function stands for all.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

struct Request {
  char name[64];
  int64_t integers[24];
  double doubles[8];
  int64_t is_text, result;
  char text[1024];  // what the result points to, where it is text
};

using I = int64_t;
using D = double;
using Function = I (*)(I, I, I, I, I, I, I, I, D, D, D, D, D, D, D, D, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I);

static void serve(void* library, Request* request, int socket) {
  for (char sign; read(socket, &sign, 1) == 1;) {
    const auto function = reinterpret_cast<Function>(dlsym(library, request->name));
    if (function == nullptr) std::fprintf(stderr, "no %s\n", request->name), std::exit(1);
    const I* i = request->integers;
    const D* d = request->doubles;
    request->result = function(i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7], d[0], d[1], d[2], d[3], d[4], d[5], d[6],
                               d[7], i[8], i[9], i[10], i[11], i[12], i[13], i[14], i[15], i[16], i[17], i[18], i[19],
                               i[20], i[21], i[22], i[23]);
    if (request->is_text)
      std::snprintf(request->text, sizeof request->text, "%s", reinterpret_cast<const char*>(request->result));
    if (write(socket, &sign, 1) != 1) return;
  }
}

int main(int count, char** arguments) {
  void* library = dlopen(arguments[1], RTLD_NOW);
  if (library == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  const int64_t bytes = std::atoll(arguments[4]), sockets = count - 5;
  void* wanted = reinterpret_cast<void*>(std::atoll(arguments[3]));
  void* memory = mmap(wanted, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, std::atoi(arguments[2]), 0);
  if (memory != wanted) return std::perror("mmap"), 1;
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < sockets; ++i)
    threads.emplace_back(serve, library, reinterpret_cast<Request*>(static_cast<char*>(memory) + i * (bytes / sockets)),
                         std::atoi(arguments[5 + i]));
  for (auto& thread : threads) thread.join();
}
