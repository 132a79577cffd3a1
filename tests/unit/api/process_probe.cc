// Plays one scene of a process's life with nofrag and prints what happened; process_test.cc judges.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>
#include <vector>

#include <sys/wait.h>

#include <nofrag/frameworks.h>

namespace {

void say(const char* what, nofrag_status status) {
  const char* message = "";
  if (status != NOFRAG_OK) {
    nofrag_last_error(&message);
  }
  std::printf("%s: %s%s%s\n", what, nofrag_status_name(status), *message ? ": " : "", message);
  std::fflush(stdout);
}

void say_malloc(const char* what) {
  void* block = nofrag_malloc(1 << 20, 0, nullptr);
  say(what, block != nullptr ? NOFRAG_OK : nofrag_last_error(nullptr));
}

nofrag_status init(const char* conf) {
  nofrag_config config = NOFRAG_CONFIG_INIT;
  config.conf = conf;
  return nofrag_init(&config);
}

int run_init(const char* conf) {
  say("init", init(conf));
  say_malloc("malloc");
  char text[128];
  if (nofrag_driver_name(text, sizeof text, nullptr) == NOFRAG_OK) {
    std::printf("driver: %s\n", text);
  }
  nofrag_device_stats stats{};
  stats.struct_size = sizeof stats;
  if (nofrag_get_stats(0, &stats) == NOFRAG_OK) {
    std::printf("limit: %llu\n", static_cast<unsigned long long>(stats.limit_bytes));
  }
  return 0;
}

// The first init of two wins; so does the first use over an init.
int run_init_twice() {
  say("first", init("driver:sim:h100-80g"));
  say("second", init("driver:sim:h100-80g"));
  return 0;
}
int run_init_after_use() {
  say_malloc("malloc");
  say("init", init(nullptr));
  return 0;
}
// A failed init can be repeated with better options.
int run_init_again_after_failure() {
  say("first", init("driver:sim:no-such-device"));
  say("second", init("driver:sim:h100-80g"));
  return 0;
}

// Is memory made so that it can be exported?
void say_export() {
  void* block = nofrag_malloc(1 << 20, 0, nullptr);
  nofrag_part part{};
  std::size_t count = 1;
  nofrag_parts(block, &part, &count);
  int descriptor = -1;
  say("export", nofrag_export(block, part.allocation, &descriptor));
  close(descriptor);
}
int run_exportable() {
  say("prefer", nofrag_prefer_exportable());
  say_export();
  say("again", nofrag_prefer_exportable());
  return 0;
}
int run_exportable_late() {
  say_export();
  say("prefer", nofrag_prefer_exportable());
  return 0;
}

int run_child(void* block) {
  say_malloc("child malloc");
  say("child free", nofrag_free(block));
  say("child free again", nofrag_free(block));
  say("child trim", nofrag_trim(0, 0, nullptr));
  say("child init", nofrag_init(nullptr));
  std::exit(0);  // with exit handlers, on purpose
}

int run_fork(bool use_first) {
  void* block = use_first ? nofrag_malloc(4096, 0, nullptr) : nullptr;
  const pid_t child = ::fork();
  if (child == 0) {
    if (use_first) {
      run_child(block);
    }
    say_malloc("child malloc");
    std::exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  std::printf("child exit: %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  if (use_first) {
    say("parent free", nofrag_free(block));
  }
  return 0;
}

void* block_for_exit = nullptr;
void late_handler() {
  say("late free", nofrag_free(block_for_exit));
  say_malloc("late malloc");
}

int run_exit() {
  // Registered before nofrag starts, so it runs after nofrag's own handler.
  std::atexit(late_handler);
  block_for_exit = nofrag_malloc(1 << 20, 0, nullptr);
  return 0;
}

int run_race() {
  constexpr int kThreads = 16;
  std::atomic<int> ready{0};
  std::atomic<int> served{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      ++ready;
      while (ready < kThreads) {
      }
      served += nofrag_malloc(512, 0, nullptr) != nullptr ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  nofrag_device_stats stats{};
  stats.struct_size = sizeof stats;
  nofrag_get_stats(0, &stats);
  std::printf("served: %d, live: %llu\n",
              served.load(),
              static_cast<unsigned long long>(stats.live_blocks));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view scene = argc > 1 ? argv[1] : "";
  if (scene == "init") {
    return run_init(argc > 2 ? argv[2] : nullptr);
  }
  if (scene == "init-twice") {
    return run_init_twice();
  }
  if (scene == "init-after-use") {
    return run_init_after_use();
  }
  if (scene == "init-again") {
    return run_init_again_after_failure();
  }
  if (scene == "exportable") {
    return run_exportable();
  }
  if (scene == "exportable-late") {
    return run_exportable_late();
  }
  if (scene == "fork") {
    return run_fork(true);
  }
  if (scene == "fork-unused") {
    return run_fork(false);
  }
  if (scene == "exit") {
    return run_exit();
  }
  if (scene == "race") {
    return run_race();
  }
  std::fprintf(stderr, "process_probe: no scene \"%s\"\n", argc > 1 ? argv[1] : "");
  return 2;
}
