#include "base/thread_id.h"

#include <array>
#include <atomic>
#include <cstdio>

namespace nofrag {

std::uint64_t this_thread_id() {
  // Not state that anybody can read back or set: a source of fresh numbers.
  static std::atomic<std::uint64_t> last{0};
  thread_local const std::uint64_t id = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return id;
}

std::string kernel_thread_name(std::uint64_t kernel_id) {
  std::array<char, 64> name{};
  const std::string path = "/proc/self/task/" + std::to_string(kernel_id) + "/comm";
  if (std::FILE* file = std::fopen(path.c_str(), "re")) {
    const std::size_t size = std::fread(name.data(), 1, name.size(), file);
    std::fclose(file);
    return {name.data(), size > 0 && name[size - 1] == '\n' ? size - 1 : size};
  }
  return {};
}

}  // namespace nofrag
