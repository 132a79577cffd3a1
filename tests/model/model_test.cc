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

struct Totals {
  std::uint64_t programs = 0;
  std::uint64_t served = 0;
  std::uint64_t refused = 0;
  MappingCounts counts;
};

// The configuration is the seed's.
void run_program(std::uint64_t seed, std::uint64_t steps, Totals* totals) {
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
  ++totals->programs;
  totals->served += world.served();
  totals->refused += world.refused();
  totals->counts += world.counts();
}

// One line a configuration; each must have come to what it is there for.
Totals judge(const std::vector<Totals>& by_config) {
  Totals sum;
  for (std::size_t i = 0; i < configs().size(); ++i) {
    const Config& config = configs()[i];
    const Totals& totals = by_config[i];
    std::printf("%-30s %8llu served %6llu refused %7llu aliases %6llu evictions %5llu cuts\n",
                config.name.c_str(),
                static_cast<unsigned long long>(totals.served),
                static_cast<unsigned long long>(totals.refused),
                static_cast<unsigned long long>(totals.counts.aliases),
                static_cast<unsigned long long>(totals.counts.evictions),
                static_cast<unsigned long long>(totals.counts.cuts));
    sum.served += totals.served;
    sum.refused += totals.refused;
    sum.counts += totals.counts;
    if (totals.programs < 3) {
      continue;
    }
    const bool aliases = config.virtual_memory && config.max_aliases > 1;
    EXPECT_EQ(totals.counts.aliases > totals.programs, aliases) << config.name;
  }
  return sum;
}

TEST(Model, RandomProgramsKeepEveryPromise) {
  std::vector<Totals> by_config(configs().size());
  if (replay_steps != 0) {
    run_program(first_seed, replay_steps, by_config.data());
    return;
  }
  std::uint64_t seed = first_seed;
  for (std::uint64_t steps = 0; steps < total_steps; steps += kStepsPerProgram) {
    run_program(seed, kStepsPerProgram, &by_config[seed % configs().size()]);
    ++seed;
    if (HasFatalFailure()) {
      return;
    }
  }
  std::printf("seeds %llu to %llu\n",
              static_cast<unsigned long long>(first_seed),
              static_cast<unsigned long long>(seed - 1));
  const Totals sum = judge(by_config);
  // A generator that mostly fails, or never does, tests little.
  EXPECT_GT(sum.served, 2 * sum.refused);
  EXPECT_GT(sum.refused, total_steps / 1000);
  EXPECT_GT(sum.counts.evictions, 10U);
  EXPECT_GT(sum.counts.cuts, 10U);
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
