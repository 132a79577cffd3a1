#include "preload/mode.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include <sys/stat.h>

#include "config/parser.h"
#include "preload/bootstrap.h"
#include "runtime/environment.h"
#include "runtime/log.h"
#include "runtime/process.h"

namespace nofrag::preload {
namespace {

enum class Known : unsigned char { kNot, kNo, kYes };

std::atomic<Known> was_preloaded{Known::kNot};
std::atomic<Known> decision{Known::kNot};
std::atomic<bool> gave_up;
// Filled before `decision` is; leaked, because exit handlers may still ask.
std::atomic<const Options*> environment_options;
thread_local int depth = 0;

// The path of this file as the loader has it.
const char* own_path() {
  Dl_info info{};
  return dladdr(reinterpret_cast<const void*>(&preloaded), &info) != 0 && info.dli_fname != nullptr
             ? info.dli_fname
             : "";
}

std::string_view base_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

bool same_file(const std::string& a, const char* b) {
  struct stat first {};
  struct stat second {};
  return ::stat(a.c_str(), &first) == 0 && ::stat(b, &second) == 0 &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

// Does one of the words (separated as LD_PRELOAD has them) mean the file at `own`?
bool list_names(std::string_view list, const char* own) {
  while (!list.empty()) {
    const std::size_t end = list.find_first_of(" :\n\t");
    const std::string_view word = list.substr(0, end);
    list.remove_prefix(end == std::string_view::npos ? list.size() : end + 1);
    if (word.empty() || base_name(word) != base_name(own)) {
      continue;
    }
    // A bare name was searched for, and $ORIGIN, $LIB, $PLATFORM were filled in, by the loader.
    const bool searched =
        word.find('/') == std::string_view::npos || word.find('$') != std::string_view::npos;
    if (searched || word == own || same_file(std::string(word), own)) {
      return true;
    }
  }
  return false;
}

bool look_whether_preloaded() {
  const char* const own = own_path();
  if (list_names(environment("LD_PRELOAD"), own)) {
    return true;
  }
  bool named = false;
  if (std::FILE* const file = std::fopen("/etc/ld.so.preload", "re"); file != nullptr) {
    char text[4096];
    named = list_names({text, std::fread(text, 1, sizeof text, file)}, own);
    std::fclose(file);
  }
  return named;
}

// Whoever traces this process: "cuda-gdb", or empty.
std::string tracer() {
  std::FILE* const status = std::fopen("/proc/self/status", "re");
  if (status == nullptr) {
    return {};
  }
  char line[256];
  constexpr std::string_view kKey = "TracerPid:";
  long pid = 0;
  while (std::fgets(line, sizeof line, status) != nullptr) {
    if (std::string_view(line).starts_with(kKey)) {
      pid = std::strtol(line + kKey.size(), nullptr, 10);
      break;
    }
  }
  std::fclose(status);
  char name[64] = {};
  if (pid > 0) {
    const std::string path = "/proc/" + std::to_string(pid) + "/comm";
    if (std::FILE* const comm = std::fopen(path.c_str(), "re"); comm != nullptr) {
      if (std::fgets(name, sizeof name, comm) != nullptr) {
        // NOLINTNEXTLINE(clang-analyzer-security.ArrayBound): at most where its end already is
        name[std::strcspn(name, "\n")] = '\0';
      }
      std::fclose(comm);
    }
  }
  return name;
}

// What watches each allocation, and would see ours merged into few large ones: its sign, or empty.
std::string memory_tool() {
  for (const char* variable : {"CUDA_INJECTION64_PATH", "NV_SANITIZER_INJECTION_PORT_BASE"}) {
    if (*environment(variable) != '\0') {
      return std::string(variable) + " is set";
    }
  }
  const std::string_view preloads = environment("LD_PRELOAD");
  for (const char* part :
       {"TreeLauncherTargetInjection", "InterceptorInjectionTarget", "sanitizer-collection"}) {
    if (preloads.find(part) != std::string_view::npos) {
      return "LD_PRELOAD names " + std::string(part);
    }
  }
  const std::string name = tracer();
  return name.find("cuda-gdb") != std::string::npos ? name + " debugs this process" : std::string();
}

bool decide(const Options& given) {
  if (given.preload == PreloadMode::kOff) {
    return false;
  }
  if (given.driver != "cuda") {
    say("driver:%s is not the real one, which programs under the preload need; the preload does "
        "nothing",
        given.driver.c_str());
    return false;
  }
  if (const std::string tool = memory_tool(); !tool.empty() && !given.preload_with_tools) {
    say("%s, so the preload stands aside: the driver serves alone, that the tool may see each "
        "allocation "
        "(preload_with_tools:true overrules)",
        tool.c_str());
    return false;
  }
  return true;
}

// Python: what makes PyTorch, if it is imported, take nofrag for its allocator altogether. The folder lies
// beside lib/ where nofrag was installed or built.
void prepare_python() {
  if (std::string_view(program_invocation_short_name).substr(0, 6) != "python") {
    return;
  }
  std::string library = own_path();
  if (char* const resolved = ::realpath(library.c_str(), nullptr); resolved != nullptr) {
    library = resolved;
    std::free(resolved);
  }
  const std::string folder =
      library.substr(0, library.size() - base_name(library).size()) + "../share/nofrag/python";
  struct stat info {};
  if (::stat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return;
  }
  const std::string before = environment("PYTHONPATH");
  if (before.find("share/nofrag/python") == std::string::npos) {
    const std::string path = before.empty() ? folder : folder + ":" + before;
    ::setenv("PYTHONPATH", path.c_str(), 1);
  }
  ::setenv("NOFRAG_TORCH", "1", 0);
  ::setenv("NOFRAG_LIBRARY", library.c_str(), 0);
}

// Runs in every process that is preloaded: bash, gcc, git. Environment only.
[[gnu::constructor]] void look_at_environment() {
  const bool off = std::strstr(environment("NOFRAG_CONF"), "preload:off") != nullptr;
  if (*environment("LD_PRELOAD") != '\0' && preloaded() && !off) {
    prepare_python();
    Process::before_start([] { decide_to_act(); });
  }
}

}  // namespace

bool preloaded() {
  Known known = was_preloaded.load(std::memory_order_acquire);
  if (known == Known::kNot) {
    known = look_whether_preloaded() ? Known::kYes : Known::kNo;
    was_preloaded.store(known, std::memory_order_release);
  }
  return known == Known::kYes;
}

bool decide_to_act() {
  Known known = decision.load(std::memory_order_acquire);
  if (known != Known::kNot) {
    return known == Known::kYes;
  }
  if (!preloaded()) {
    decision.store(Known::kNo, std::memory_order_release);
    return false;
  }
  // Problems in it are reported when nofrag starts.
  auto* const given = new Options;
  std::vector<std::string> problems;
  OptionSet set;
  parse_options(environment("NOFRAG_CONF"), given, &problems, &set);
  set_log_level(given->log);
  const Options* none = nullptr;
  if (!environment_options.compare_exchange_strong(none, given)) {
    delete given;
  }
  const Known decided = decide(options()) ? Known::kYes : Known::kNo;
  if (decided == Known::kYes) {
    Process::StartChanges changes;
    changes.lookup = &real_dlsym;
    changes.shareable =
        options().preload == PreloadMode::kAuto || options().preload == PreloadMode::kVmm;
    Process::instance().change_start(changes);
  }
  decision.store(decided, std::memory_order_release);
  return decided == Known::kYes;
}

bool has_acted() {
  return decision.load(std::memory_order_acquire) == Known::kYes && !Process::instance().forked();
}

bool acting() {
  return has_acted() && !gave_up.load(std::memory_order_relaxed);
}

void give_up(const char* what, const char* why) {
  if (!gave_up.exchange(true)) {
    say("%s failed (%s); from here on the driver serves alone", what, why);
  }
}

const Options& options() {
  return *environment_options.load(std::memory_order_acquire);
}

void say(const char* format, ...) {
  if (!log_enabled(LogLevel::kWarning)) {
    return;
  }
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  log_line(LogLevel::kWarning, "preload: %s", text);
}

InsideNofrag::InsideNofrag() {
  ++depth;
}

InsideNofrag::~InsideNofrag() {
  --depth;
}

bool InsideNofrag::here() {
  return depth > 0;
}

}  // namespace nofrag::preload
