// A recorded job with eyes on every byte: the trace's allocations and frees in their order, each
// stream of the trace a CUDA stream of its own, and a kernel for every event. At its allocation a
// block is filled, on its stream, with a pattern of its own; before it is freed a kernel reads every
// word, and so does one for each live block every few hundred events, while the kernels of other
// streams run in the same physical memory. The host does not wait for the GPU, so what is freed is
// truly pending. Through the C interface alone.
//
// usage: replay_canary TRACE.csv [--limit BYTES|1.02x] [--events N] [--streams N] [--sweep-every N]
//                      [--lag N] [--plant EVENT]
//   --limit        most that nofrag may hold: bytes, or times the peak live bytes of what is played
//   --events       only the trace's first N events
//   --streams      spreads the blocks of a trace of one stream over N streams
//   --sweep-every  events from one reading of all live blocks to the next (500)
//   --lag          at most N frees whose kernels have not run (without: as many as there are)
//   --plant        after that event, overwrite a word behind the allocator's back: it must be found
//
// Prints one line of JSON. Exit 0; 1 if a word is wrong, CUDA or nofrag failed, or something was left;
// 4 if only memory ran out; 2 bad usage; 77 no GPU.
#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstring>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include <nofrag/nofrag.h>

#include "canary_kernels.cuh"

namespace {

using canary::cuda;
using canary::ok;

constexpr std::uint64_t kRounding = 512;
constexpr std::uint64_t kGranule = 2u << 20;

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

[[noreturn]] void refuse(const std::string& what) {
  std::fprintf(stderr, "replay_canary: %s\n", what.c_str());
  std::exit(2);
}

struct Settings {
  std::string path;
  std::string limit;
  std::uint64_t events = UINT64_MAX;
  std::uint64_t streams = 0;  // 0 = the trace's own
  std::uint64_t sweep_every = 500;
  std::uint64_t lag = UINT64_MAX;
  std::uint64_t plant = UINT64_MAX;
};

struct Event {
  std::uint64_t block;
  std::uint64_t size;
  std::uint32_t stream;  // index
  bool is_free;
};

struct Trace {
  std::vector<Event> events;
  std::uint64_t blocks = 0;
  std::uint32_t streams = 0;
  std::uint64_t peak_live = 0;
};

// What `nofrag convert --to csv` wrote: nothing in it needs to be doubted but that it is that.
Trace read_trace(const Settings& settings) {
  std::FILE* file = std::fopen(settings.path.c_str(), "r");
  if (file == nullptr) {
    refuse("cannot read " + settings.path);
  }
  char line[256];
  if (std::fgets(line, sizeof line, file) == nullptr ||
      std::strcmp(line, "time_us,op,id,size,stream\n") != 0) {
    refuse(settings.path + " is no csv trace");
  }
  Trace trace;
  std::unordered_map<std::uint64_t, std::uint64_t> block_of;
  std::unordered_map<std::uint64_t, std::uint32_t> stream_of;
  std::vector<std::uint64_t> held;
  std::uint64_t live = 0;
  while (trace.events.size() < settings.events && std::fgets(line, sizeof line, file) != nullptr) {
    char op = 0;
    std::uint64_t id = 0;
    std::uint64_t size = 0;
    std::uint64_t stream = 0;
    if (std::sscanf(line, "%*u,%c,%" SCNu64 ",%" SCNu64 ",%" SCNu64, &op, &id, &size, &stream) !=
            4 ||
        (op != 'a' && op != 'f')) {
      refuse("event " + std::to_string(trace.events.size()) + " is no event: " + line);
    }
    const bool is_free = op == 'f';
    if (!is_free) {
      block_of[id] = trace.blocks++;
      held.push_back(round_up(size, kRounding));
      live += held.back();
      trace.peak_live = std::max(trace.peak_live, live);
    }
    const auto block = block_of.find(id);
    if (block == block_of.end()) {
      refuse("a block is freed that was not allocated: " + std::to_string(id));
    }
    live -= is_free ? held[block->second] : 0;
    const auto at =
        stream_of.try_emplace(stream, static_cast<std::uint32_t>(stream_of.size())).first;
    trace.events.push_back({block->second, size, at->second, is_free});
  }
  std::fclose(file);
  trace.streams = static_cast<std::uint32_t>(stream_of.size());
  return trace;
}

// Blocks of one stream go round N streams, each block with its free.
void spread(Trace* trace, std::uint64_t streams) {
  if (trace->streams > 1) {
    refuse("--streams is for traces of one stream");
  }
  for (Event& event : trace->events) {
    event.stream = static_cast<std::uint32_t>(event.block % streams);
  }
  trace->streams = static_cast<std::uint32_t>(std::min(streams, trace->blocks));
}

std::uint64_t limit_of(const std::string& text, std::uint64_t peak_live) {
  if (text.empty()) {
    return UINT64_MAX;
  }
  char* end = nullptr;
  if (text.back() == 'x') {
    const double times = std::strtod(text.c_str(), &end);
    return round_up(static_cast<std::uint64_t>(std::ceil(times * static_cast<double>(peak_live))),
                    kGranule);
  }
  const std::uint64_t bytes = std::strtoull(text.c_str(), &end, 10);
  if (*end != '\0' || bytes == 0) {
    refuse("--limit takes bytes or a multiple of peak live, as in 1.02x");
  }
  return bytes;
}

nofrag_device_stats stats() {
  nofrag_device_stats s{};
  s.struct_size = sizeof s;
  ok(nofrag_get_stats(0, &s), "nofrag_get_stats");
  return s;
}

// The library's own report, on one line.
std::string stats_json() {
  std::size_t needed = 0;
  nofrag_stats_json(nullptr, 0, &needed);
  std::string text(needed + 4096, '\0');
  ok(nofrag_stats_json(text.data(), text.size(), &needed), "nofrag_stats_json");
  text.resize(std::strlen(text.c_str()));
  text.erase(std::remove(text.begin(), text.end(), '\n'), text.end());
  return text;
}

class Replay {
 public:
  Replay(const Trace& trace, const Settings& settings)
      : trace_(trace), settings_(settings), blocks_(trace.blocks), streams_(trace.streams) {
    for (cudaStream_t& stream : streams_) {
      cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    }
  }

  void play() {
    for (std::uint64_t i = 0; i < trace_.events.size(); ++i) {
      const Event& event = trace_.events[i];
      Block& block = blocks_[event.block];
      if (event.is_free && block.words != nullptr) {
        release(event.block, event.stream);
      } else if (!event.is_free && event.size > 0) {
        allocate(event);
      }
      if ((i + 1) % settings_.sweep_every == 0) {
        sweep();
      }
      if (i == settings_.plant) {
        plant();
      }
    }
    sweep();
  }

  void free_everything() {
    while (!live_.empty()) {
      const std::uint64_t last = live_.back();
      release(last, blocks_[last].stream);
    }
  }

  // Waits for all that was queued.
  unsigned long long wrong_words() {
    cuda(cudaDeviceSynchronize(), "synchronize");
    return canary::wrong_words(findings_);
  }

  // pre: the device is idle.
  void close() {
    for (cudaStream_t stream : streams_) {
      ok(nofrag_retire_stream(0, stream), "nofrag_retire_stream");
      cuda(cudaStreamDestroy(stream), "stream");
    }
  }

  std::uint64_t bytes_filled = 0;
  std::uint64_t bytes_verified = 0;
  std::uint64_t sweeps = 0;
  std::uint64_t frees_elsewhere = 0;  // on another stream than the block's
  std::uint64_t failures = 0;         // allocations that found no memory

 private:
  struct Block {
    std::uint32_t* words = nullptr;
    std::uint64_t count = 0;
    std::uint64_t place = 0;  // in live_
    std::uint32_t stream = 0;
  };

  static std::uint32_t pattern(std::uint64_t block) {
    return static_cast<std::uint32_t>(block * 2654435761u + 1);
  }

  void allocate(const Event& event) {
    void* memory = nofrag_malloc(event.size, 0, streams_[event.stream]);
    if (memory == nullptr) {
      const char* report = nullptr;
      const nofrag_status why = nofrag_last_error(&report);
      if (why != NOFRAG_LIMIT && why != NOFRAG_OUT_OF_MEMORY) {
        canary::die("nofrag_malloc");
      }
      if (++failures == 1) {
        std::fprintf(stderr, "%s\n", report);
      }
      return;
    }
    // The last word may reach into the block's rounding to 512 bytes.
    blocks_[event.block] = {
        static_cast<std::uint32_t*>(memory), (event.size + 3) / 4, live_.size(), event.stream};
    live_.push_back(event.block);
    const Block& block = blocks_[event.block];
    canary::fill(streams_[block.stream], block.words, block.count, pattern(event.block));
    bytes_filled += block.count * 4;
  }

  void check(std::uint64_t number, std::uint32_t stream) {
    const Block& block = blocks_[number];
    canary::check(streams_[stream], block.words, block.count, pattern(number), findings_);
    bytes_verified += block.count * 4;
  }

  void release(std::uint64_t number, std::uint32_t stream) {
    Block& block = blocks_[number];
    if (stream != block.stream) {
      ++frees_elsewhere;
      cudaEvent_t filled = take_event();
      cuda(cudaEventRecord(filled, streams_[block.stream]), "event");
      cuda(cudaStreamWaitEvent(streams_[stream], filled, 0), "event");
      spare_events_.push_back(filled);
      ok(nofrag_record_stream(block.words, streams_[stream]), "nofrag_record_stream");
    }
    check(number, stream);
    ok(nofrag_free(block.words), "nofrag_free");
    blocks_[live_.back()].place = block.place;
    live_[block.place] = live_.back();
    live_.pop_back();
    block.words = nullptr;
    hold_back(stream);
  }

  // Waits until at most `lag` frees have not been reached by the GPU.
  void hold_back(std::uint32_t stream) {
    if (settings_.lag == UINT64_MAX) {
      return;
    }
    unfinished_.push_back(take_event());
    cuda(cudaEventRecord(unfinished_.back(), streams_[stream]), "event");
    while (unfinished_.size() > settings_.lag) {
      cuda(cudaEventSynchronize(unfinished_.front()), "event");
      spare_events_.push_back(unfinished_.front());
      unfinished_.pop_front();
    }
  }

  cudaEvent_t take_event() {
    if (spare_events_.empty()) {
      spare_events_.emplace_back();
      cuda(cudaEventCreateWithFlags(&spare_events_.back(), cudaEventDisableTiming), "event");
    }
    cudaEvent_t event = spare_events_.back();
    spare_events_.pop_back();
    return event;
  }

  void sweep() {
    ++sweeps;
    for (const std::uint64_t number : live_) {
      check(number, blocks_[number].stream);
    }
  }

  void plant() {
    if (live_.empty()) {
      refuse("--plant: no block is live there");
    }
    const Block& block = blocks_[live_.front()];
    canary::fill(streams_[block.stream], block.words + block.count / 2, 1, ~pattern(live_.front()));
  }

  const Trace& trace_;
  const Settings& settings_;
  std::vector<Block> blocks_;
  std::vector<cudaStream_t> streams_;
  std::vector<std::uint64_t> live_;
  std::deque<cudaEvent_t> unfinished_;
  std::vector<cudaEvent_t> spare_events_;
  canary::Findings* findings_ = canary::make_findings();
};

Settings parse(int argc, char** argv) {
  Settings settings;
  const std::pair<const char*, std::uint64_t*> numbers[] = {
      {"--events", &settings.events},
      {"--streams", &settings.streams},
      {"--sweep-every", &settings.sweep_every},
      {"--lag", &settings.lag},
      {"--plant", &settings.plant}};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.substr(0, 2) != "--" && settings.path.empty()) {
      settings.path = word;
      continue;
    }
    const auto number = std::find_if(std::begin(numbers),
                                     std::end(numbers),
                                     [&](const auto& known) { return word == known.first; });
    if (i + 1 == argc || (number == std::end(numbers) && word != "--limit")) {
      refuse("unknown or unfinished option " + word);
    }
    if (word == "--limit") {
      settings.limit = argv[++i];
    } else {
      *number->second = std::strtoull(argv[++i], nullptr, 10);
    }
  }
  if (settings.path.empty() || settings.sweep_every == 0) {
    refuse(
        "usage: replay_canary TRACE.csv [--limit BYTES|1.02x] [--events N] [--streams N] "
        "[--sweep-every N] [--lag N] [--plant EVENT]");
  }
  return settings;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse(argc, argv);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: no GPU\n");
    return 77;
  }
  Trace trace = read_trace(settings);
  if (settings.streams > 0) {
    spread(&trace, settings.streams);
  }
  const std::uint64_t limit = limit_of(settings.limit, trace.peak_live);
  Replay replay(trace, settings);
  ok(nofrag_set_limit(0, limit), "nofrag_set_limit");

  const auto start = std::chrono::steady_clock::now();
  replay.play();
  const double queued = seconds_since(start);  // the host is done; the GPU need not be
  const nofrag_device_stats played = stats();
  const std::string report = stats_json();
  replay.free_everything();
  const unsigned long long wrong = replay.wrong_words();
  const double finished = seconds_since(start);
  ok(nofrag_check(0), "nofrag_check");
  replay.close();
  ok(nofrag_set_limit(0, UINT64_MAX), "nofrag_set_limit");
  ok(nofrag_trim(0, 0, nullptr), "nofrag_trim");
  const nofrag_device_stats end = stats();
  cuda(cudaDeviceSynchronize(), "synchronize");

  const auto number = [](std::uint64_t value) { return std::to_string(value); };
  const std::string text =
      "{\"trace\":\"" + settings.path.substr(settings.path.rfind('/') + 1) +
      "\",\"events\":" + number(trace.events.size()) + ",\"streams\":" + number(trace.streams) +
      ",\"limit_bytes\":" + (limit == UINT64_MAX ? "null" : number(limit)) +
      ",\"bytes_filled\":" + number(replay.bytes_filled) +
      ",\"bytes_verified\":" + number(replay.bytes_verified) +
      ",\"sweeps\":" + number(replay.sweeps) +
      ",\"frees_on_other_streams\":" + number(replay.frees_elsewhere) +
      ",\"wrong_words\":" + number(wrong) + ",\"failures\":" + number(replay.failures) +
      ",\"trace_peak_live_bytes\":" + number(trace.peak_live) +
      ",\"peak_live_bytes\":" + number(played.peak_live_bytes) +
      ",\"peak_reserved_bytes\":" + number(played.peak_reserved_bytes) +
      ",\"seconds_queueing\":" + std::to_string(queued) +
      ",\"seconds\":" + std::to_string(finished) + ",\"blocks_left\":" + number(end.live_blocks) +
      ",\"bytes_left\":" + number(end.reserved_bytes) + ",\"nofrag\":" + report + "}";
  std::printf("%s\n", text.c_str());
  if (wrong != 0 || end.live_blocks != 0 || end.reserved_bytes != 0) {
    return 1;
  }
  return replay.failures == 0 ? 0 : 4;
}
