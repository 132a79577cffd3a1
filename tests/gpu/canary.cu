// Canaries: hundreds of live blocks, each filled by a kernel with a pattern of its own, while the
// allocator around them grows, frees, trims, and lives under limits. After every round a kernel
// reads every word of every live block. Through the C interface alone.
//
// usage: canary [--rounds N] [--seed N] [--json FILE]     exit 1 if one word is wrong
#include <cuda_runtime.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <nofrag/nofrag.h>

#include "canary_kernels.cuh"

namespace {

constexpr int kStreams = 6;
constexpr std::uint64_t kMiB = 1u << 20;

using canary::cuda;
using canary::die;
using canary::fill;
using canary::Findings;
using canary::make_findings;
using canary::ok;
using canary::spin;
using canary::wrong_words;

struct Block {
  std::uint32_t* words;
  std::uint64_t count;
  std::uint32_t pattern;
  int stream;
};

struct Phase {
  const char* name;
  std::uint64_t live_target;  // bytes that the job keeps live
  std::uint64_t limit;        // UINT64_MAX = none
  bool trims;
};

struct Tally {
  std::uint64_t allocations = 0;
  std::uint64_t refused = 0;
  std::uint64_t verified_bytes = 0;
  std::uint64_t most_blocks = 0;
  unsigned long long wrong = 0;
};

nofrag_device_stats stats() {
  nofrag_device_stats s{};
  s.struct_size = sizeof s;
  ok(nofrag_get_stats(0, &s), "nofrag_get_stats");
  return s;
}

class Canary {
 public:
  explicit Canary(unsigned seed) : random_(seed) {
    for (cudaStream_t& stream : streams_) {
      cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    }
  }

  Tally run(const Phase& phase, int rounds) {
    Tally tally;
    ok(nofrag_set_limit(0, phase.limit), "nofrag_set_limit");
    for (int round = 0; round < rounds; ++round) {
      while (live_bytes_ < phase.live_target && allocate(&tally)) {
      }
      if (round % 3 == 0) {
        keep_a_stream_busy();
      }
      verify_all(&tally);
      use_across_streams();
      free_some(round % 5 == 4 ? 0.7 : 0.35);
      if (phase.trims && round % 4 == 3) {
        ok(nofrag_trim(0, 0, nullptr), "nofrag_trim");
      }
      tally.most_blocks = blocks_.size() > tally.most_blocks ? blocks_.size() : tally.most_blocks;
    }
    verify_all(&tally);
    cuda(cudaDeviceSynchronize(), "synchronize");
    tally.wrong = wrong_words(findings_);
    return tally;
  }

  void free_everything() {
    free_some(1.0);
    cuda(cudaDeviceSynchronize(), "synchronize");
  }

 private:
  double uniform() { return std::uniform_real_distribution<>(0.0, 1.0)(random_); }

  // 512 B to 64 MiB, evenly on a logarithmic scale: many small blocks between few large ones.
  std::uint64_t draw_size() {
    return static_cast<std::uint64_t>(512.0 * std::pow(131072.0, uniform()));
  }

  bool allocate(Tally* tally) {
    const std::uint64_t size = draw_size();
    const int stream = static_cast<int>(random_() % kStreams);
    void* memory = nofrag_malloc(size, 0, streams_[stream]);
    if (memory == nullptr) {
      const nofrag_status why = nofrag_last_error(nullptr);
      if (why != NOFRAG_LIMIT && why != NOFRAG_OUT_OF_MEMORY) {
        die("nofrag_malloc");
      }
      ++tally->refused;
      return false;
    }
    ++tally->allocations;
    const Block block{static_cast<std::uint32_t*>(memory), size / 4, next_pattern_++, stream};
    fill(streams_[stream], block.words, block.count, block.pattern);
    live_bytes_ += block.count * 4;
    blocks_.push_back(block);
    return true;
  }

  void check(const Block& block, int stream) {
    canary::check(streams_[stream], block.words, block.count, block.pattern, findings_);
  }

  void verify_all(Tally* tally) {
    for (const Block& block : blocks_) {
      check(block, block.stream);
      tally->verified_bytes += block.count * 4;
    }
  }

  void keep_a_stream_busy() { spin(streams_[random_() % kStreams], 5000000); }

  // Every tenth block is read late by another stream and freed at once: the read must still find it.
  void use_across_streams() {
    for (std::size_t i = 0; i < blocks_.size(); i += 10) {
      Block& block = blocks_[i];
      const int other = (block.stream + 1) % kStreams;
      cudaEvent_t filled;
      cuda(cudaEventCreateWithFlags(&filled, cudaEventDisableTiming), "event");
      cuda(cudaEventRecord(filled, streams_[block.stream]), "event");
      cuda(cudaStreamWaitEvent(streams_[other], filled, 0), "event");
      cuda(cudaEventDestroy(filled), "event");
      spin(streams_[other], 100000);
      check(block, other);
      ok(nofrag_record_stream(block.words, streams_[other]), "nofrag_record_stream");
      release(i);
    }
  }

  void release(std::size_t at) {
    live_bytes_ -= blocks_[at].count * 4;
    ok(nofrag_free(blocks_[at].words), "nofrag_free");
    blocks_[at] = blocks_.back();
    blocks_.pop_back();
  }

  void free_some(double share) {
    for (std::size_t i = blocks_.size(); i-- > 0;) {
      if (uniform() < share) {
        release(i);
      }
    }
  }

  std::mt19937_64 random_;
  cudaStream_t streams_[kStreams];
  Findings* findings_ = make_findings();
  std::vector<Block> blocks_;
  std::uint64_t live_bytes_ = 0;
  std::uint32_t next_pattern_ = 1;
};

std::string row(const Phase& phase, int rounds, const Tally& tally, double seconds) {
  const nofrag_device_stats s = stats();
  char text[1024];
  std::snprintf(text,
                sizeof text,
                "{\"phase\":\"%s\",\"rounds\":%d,\"allocations\":%llu,\"refused\":%llu,"
                "\"most_live_blocks\":%llu,\"verified_gib\":%.1f,\"wrong_words\":%llu,"
                "\"peak_live_bytes\":%llu,\"peak_reserved_bytes\":%llu,\"moved\":%llu,"
                "\"from_other_streams\":%llu,\"seconds\":%.2f}",
                phase.name,
                rounds,
                static_cast<unsigned long long>(tally.allocations),
                static_cast<unsigned long long>(tally.refused),
                static_cast<unsigned long long>(tally.most_blocks),
                static_cast<double>(tally.verified_bytes) / (1024.0 * kMiB),
                tally.wrong,
                static_cast<unsigned long long>(s.peak_live_bytes),
                static_cast<unsigned long long>(s.peak_reserved_bytes),
                static_cast<unsigned long long>(s.rung_own_mappable),
                static_cast<unsigned long long>(s.rung_other_pools + s.rung_device_wait),
                seconds);
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 40;
  unsigned seed = 1;
  const char* json = nullptr;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--rounds") == 0) {
      rounds = std::atoi(argv[i + 1]);
    } else if (std::strcmp(argv[i], "--seed") == 0) {
      seed = static_cast<unsigned>(std::atoi(argv[i + 1]));
    } else if (std::strcmp(argv[i], "--json") == 0) {
      json = argv[i + 1];
    } else {
      std::fprintf(stderr, "usage: canary [--rounds N] [--seed N] [--json FILE]\n");
      return 2;
    }
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: no GPU\n");
    return 77;
  }
  const Phase phases[] = {{"free", 4096 * kMiB, UINT64_MAX, false},
                          {"trim", 2048 * kMiB, UINT64_MAX, true},
                          // More is wanted than the limit allows: handles are moved and stolen.
                          {"limit", 3072 * kMiB, 2048 * kMiB, false},
                          {"tight", 1024 * kMiB, 512 * kMiB, true}};
  Canary canary(seed);
  std::string rows;
  unsigned long long wrong = 0;
  for (const Phase& phase : phases) {
    ok(nofrag_reset_peaks(0), "nofrag_reset_peaks");
    const auto start = std::chrono::steady_clock::now();
    const Tally tally = canary.run(phase, rounds);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const std::string line = row(phase, rounds, tally, seconds.count());
    std::printf("%s\n", line.c_str());
    rows += (rows.empty() ? "  " : ",\n  ") + line;
    wrong = tally.wrong;  // the counter is never reset
  }
  canary.free_everything();
  ok(nofrag_check(0), "nofrag_check");
  ok(nofrag_set_limit(0, UINT64_MAX), "nofrag_set_limit");
  ok(nofrag_trim(0, 0, nullptr), "nofrag_trim");
  const nofrag_device_stats end = stats();
  if (end.live_blocks != 0 || end.reserved_bytes != 0) {
    std::fprintf(stderr,
                 "canary: %llu blocks and %llu bytes are left\n",
                 static_cast<unsigned long long>(end.live_blocks),
                 static_cast<unsigned long long>(end.reserved_bytes));
    return 1;
  }
  if (json != nullptr) {
    std::FILE* file = std::fopen(json, "w");
    if (file != nullptr) {
      std::fprintf(file, "[\n%s\n]\n", rows.c_str());
      std::fclose(file);
    }
  }
  if (wrong == 0) {
    std::printf("canary: every word of every live block was right\n");
  } else {
    std::printf("canary: %llu WRONG WORDS\n", wrong);
  }
  return wrong == 0 ? 0 : 1;
}
