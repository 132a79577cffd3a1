// Random programs against the model. `model_test --seed=N --steps=M` replays one program;
// `model_test --total=N` runs as many random programs as make N steps.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <gtest/gtest.h>

#include "world.h"

namespace nofrag::model {
namespace {

constexpr std::uint64_t kStepsPerProgram = 2000;
constexpr std::size_t kTail = 60;

std::uint64_t total_steps = 200000;
std::uint64_t first_seed = 1;
std::uint64_t replay_steps = 0;  // 0 = many programs

// What is being run, for the message of a check that aborts.
std::uint64_t running_seed = 0;
const std::vector<Instruction>* running = nullptr;

void print_running(const char* why) {
  if (running == nullptr) {
    return;
  }
  std::fprintf(stderr,
               "%s\nseed %llu, configuration \"%s\"; replay: model_test --seed=%llu --steps=%zu\n",
               why,
               static_cast<unsigned long long>(running_seed),
               configs()[running_seed % configs().size()].name.c_str(),
               static_cast<unsigned long long>(running_seed),
               running->size());
  const std::size_t from =
      replay_steps != 0 ? 0 : running->size() - std::min(kTail, running->size());
  for (std::size_t i = from; i < running->size(); ++i) {
    std::fprintf(stderr, "    %s\n", to_cpp((*running)[i]).c_str());
  }
}

void on_abort(int) {
  print_running("a check failed");
  std::signal(SIGABRT, SIG_DFL);
  std::abort();
}

// The configuration is the seed's.
void run_program(std::uint64_t seed,
                 std::uint64_t steps,
                 std::uint64_t* served,
                 std::uint64_t* refused) {
  const Config& config = configs()[seed % configs().size()];
  Generator generator(seed, config);
  World world(config);
  std::vector<Instruction> done;
  done.reserve(steps);
  running_seed = seed;
  running = &done;
  for (std::uint64_t step = 0; step < steps && world.ok(); ++step) {
    done.push_back(generator.next());
    world.run(done.back());
  }
  world.finish();
  if (!world.ok()) {
    print_running(world.failure().c_str());
  }
  running = nullptr;
  ASSERT_TRUE(world.ok()) << world.failure();
  *served += world.served();
  *refused += world.refused();
}

TEST(Model, RandomProgramsKeepEveryPromise) {
  std::uint64_t served = 0;
  std::uint64_t refused = 0;
  if (replay_steps != 0) {
    run_program(first_seed, replay_steps, &served, &refused);
    return;
  }
  std::uint64_t seed = first_seed;
  for (std::uint64_t steps = 0; steps < total_steps; steps += kStepsPerProgram) {
    run_program(seed++, kStepsPerProgram, &served, &refused);
    if (HasFatalFailure()) {
      return;
    }
  }
  std::printf("seeds %llu to %llu: %llu requests served, %llu refused\n",
              static_cast<unsigned long long>(first_seed),
              static_cast<unsigned long long>(seed - 1),
              static_cast<unsigned long long>(served),
              static_cast<unsigned long long>(refused));
  // A generator that mostly fails, or never does, tests little.
  EXPECT_GT(served, 2 * refused);
  EXPECT_GT(refused, total_steps / 1000);
}

bool number_argument(const char* argument, const char* name, std::uint64_t* out) {
  const std::size_t length = std::strlen(name);
  if (std::strncmp(argument, name, length) != 0) {
    return false;
  }
  *out = std::strtoull(argument + length, nullptr, 10);
  return true;
}

}  // namespace
}  // namespace nofrag::model

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  using namespace nofrag::model;  // NOLINT(google-build-using-namespace): the program's own names
  for (int i = 1; i < argc; ++i) {
    if (!number_argument(argv[i], "--seed=", &first_seed) &&
        !number_argument(argv[i], "--steps=", &replay_steps) &&
        !number_argument(argv[i], "--total=", &total_steps)) {
      std::fprintf(stderr, "model_test: unknown argument '%s'\n", argv[i]);
      return 2;
    }
  }
  std::signal(SIGABRT, on_abort);
  return RUN_ALL_TESTS();
}
