#include "trace/symbols/call_sites.h"

#include <cxxabi.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "trace/record/recording.h"
#include "trace/symbols/elf_symbols.h"

namespace nofrag {
namespace {

constexpr std::size_t kLongestName = 160;
constexpr std::string_view kNotSampled = "(not sampled)";
constexpr std::string_view kUnknownSite = "(unknown call site)";

// Code between the user's and the allocator: a site is not named by it while there is other.
constexpr std::string_view kBetween[] = {"libnofrag",
                                         "libcuda",
                                         "libcudart",
                                         "libc10",
                                         "libtorch",
                                         "libc.so",
                                         "libm.so",
                                         "libstdc++",
                                         "libpthread",
                                         "ld-linux",
                                         "libffi",
                                         "_ctypes",
                                         "libcublas",
                                         "libcudnn",
                                         "libnccl"};

std::string_view base_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

// The program that runs Python, or the library.
bool is_interpreter(std::string_view module) {
  return module.starts_with("libpython") ||
         (module.starts_with("python") && module.find(".so") == std::string_view::npos);
}

bool is_between(std::string_view module) {
  for (const std::string_view start : kBetween) {
    if (module.starts_with(start)) {
      return true;
    }
  }
  return false;
}

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  std::string whole = status == 0 && text != nullptr ? std::string(text.get()) : name;
  if (whole.size() > kLongestName) {
    whole.resize(kLongestName - 3);
    whole += "...";
  }
  return whole;
}

std::string hexadecimal(std::uint64_t number) {
  std::string text;
  for (; number != 0 || text.empty(); number >>= 4) {
    text.insert(text.begin(), "0123456789abcdef"[number & 15]);
  }
  return "0x" + text;
}

// "engine/step.py:12 forward": the last two parts of the path of a Python frame are enough to find it.
std::string shortened(const std::string& frame) {
  const std::size_t file_end = frame.find(".py:");
  const std::size_t last = file_end == std::string::npos ? file_end : frame.rfind('/', file_end);
  if (last == std::string::npos || last == 0) {
    return frame;
  }
  const std::size_t start = frame.rfind('/', last - 1);
  return start == std::string::npos ? frame : frame.substr(start + 1);
}

using Place = std::pair<std::uint32_t, std::uint64_t>;

class Namer {
 public:
  explicit Namer(const Recording& recording) : recording_(recording) {}

  // All addresses first: a module's symbols are read once.
  void read_symbols() {
    std::map<std::uint32_t, std::set<std::uint64_t>> wanted;
    for (const auto& [site, stack] : recording_.stacks) {
      if (recording_.sites.contains(site)) {
        continue;  // has its names
      }
      for (const Recording::Stack::Native& frame : stack.native) {
        if (frame.module != 0) {
          wanted[frame.module].insert(frame.offset);
        }
      }
    }
    for (const auto& [number, offsets] : wanted) {
      const Recording::Module& module = recording_.modules.at(number);
      std::vector<NamedAddress> addresses;
      for (const std::uint64_t offset : offsets) {
        addresses.push_back({offset, {}});
      }
      name_addresses(module.path, module.build_id, &addresses);
      for (const NamedAddress& address : addresses) {
        names_[{number, address.address}] = native_name(module, address);
      }
    }
  }

  // Its frames; the index of the one that names it.
  std::vector<std::string> frames_of(std::uint32_t site, std::size_t* naming) const {
    *naming = 0;
    if (const auto texts = recording_.sites.find(site); texts != recording_.sites.end()) {
      *naming = naming_text(texts->second);
      return texts->second;
    }
    std::vector<std::string> frames;
    const auto at = recording_.stacks.find(site);
    if (at == recording_.stacks.end()) {
      return frames;
    }
    const Recording::Stack& stack = at->second;
    bool named = false;
    for (const Recording::Stack::Native& frame : stack.native) {
      const std::string_view module = module_of(frame);
      if (!stack.python.empty() && is_interpreter(module)) {
        break;
      }
      if (stack.python.empty() && !named && !is_between(module)) {
        *naming = frames.size();
        named = true;
      }
      frames.push_back(frame.module == 0 ? hexadecimal(frame.offset)
                                         : names_.at({frame.module, frame.offset}));
    }
    for (const Recording::Stack::Python& frame : stack.python) {
      const bool own = frame.file.find("/torch/") == std::string::npos;
      if (!named && (own || &frame == &stack.python.front())) {
        *naming = frames.size();
        named = own;
      }
      frames.push_back(frame.file + ":" + std::to_string(frame.line) + " " + frame.function);
    }
    return frames;
  }

 private:
  [[nodiscard]] std::string_view module_of(const Recording::Stack::Native& frame) const {
    return frame.module == 0 ? std::string_view()
                             : base_name(recording_.modules.at(frame.module).path);
  }

  static std::string native_name(const Recording::Module& module, const NamedAddress& address) {
    const std::string_view base = base_name(module.path);
    std::string name(base.empty() ? "?" : base);
    return address.function.empty() ? name + "+" + hexadecimal(address.address)
                                    : name + "!" + demangled(address.function);
  }

  // Of texts that a file brought with it, as it was done when they were made.
  static std::size_t naming_text(const std::vector<std::string>& frames) {
    std::size_t python = frames.size();
    std::size_t native = frames.size();
    for (std::size_t i = 0; i < frames.size(); ++i) {
      const std::string_view frame = frames[i];
      if (frame.find(".py:") != std::string_view::npos) {
        if (frame.find("/torch/") == std::string_view::npos) {
          return i;
        }
        python = std::min(python, i);
      } else if (native == frames.size() && !is_between(frame)) {
        native = i;
      }
    }
    return python < frames.size() ? python : native < frames.size() ? native : 0;
  }

  const Recording& recording_;
  std::map<Place, std::string> names_;
};

void name_sites_of(const Namer& namer, Trace* trace) {
  const Recording& recording = *trace->recording;
  std::map<std::uint32_t, std::uint32_t> numbers;
  for (const Recording::Block& block : recording.blocks) {
    const auto [at, is_new] =
        numbers.try_emplace(block.site, static_cast<std::uint32_t>(trace->site_names.size()));
    if (is_new) {
      std::size_t naming = 0;
      std::vector<std::string> frames = namer.frames_of(block.site, &naming);
      trace->site_names.push_back(!frames.empty()   ? shortened(frames[naming])
                                  : block.site == 0 ? std::string(kNotSampled)
                                                    : std::string(kUnknownSite));
      trace->site_frames.push_back(std::move(frames));
    }
    trace->sites.push_back(at->second);
  }
}

}  // namespace

void name_call_sites(std::vector<Trace>* traces) {
  const Recording* const recording = traces->empty() ? nullptr : traces->front().recording.get();
  if (recording == nullptr || (recording->stacks.empty() && recording->sites.empty())) {
    return;
  }
  Namer namer(*recording);  // all devices' traces have the same stacks and modules
  namer.read_symbols();
  for (Trace& trace : *traces) {
    name_sites_of(namer, &trace);
  }
}

}  // namespace nofrag
