// Static initialisers of MindSpore's plugin insert into this map, so it has to be one: of the old ABI, as CANN is built.
#define _GLIBCXX_USE_CXX11_ABI 0
#include <map>
#include <string>

struct StatusFactory {
  std::map<unsigned, std::string> texts;
  char rest[4096];
};
extern "C" void* status_factory() __asm__("_ZN2ge13StatusFactory8InstanceEv");
void* status_factory() {
  static auto* only = new StatusFactory();
  return only;
}
