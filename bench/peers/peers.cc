// Nanoseconds for a pair of allocation and free, by pattern and by number of threads, through one of
// the allocators that this program was built with (peer.h).
//
//   peers --list
//   peers --peer NAME [--rounds N] [--round-ms X] [--threads 1,2,...] [--patterns LIST] [--seconds X]
//
// run.py builds it, runs it for every peer and writes the tables. A round goes once through many
// patterns, so what a machine does to one it does to the others: first those of one stream, in a process
// that has used no other; then those of many; at last the holes. Prints, as CSV:
//   round,PATTERN,THREADS,STREAMS,ROUND,NS_PER_PAIR,PAIRS   (ns of one thread's time)
//   info,KEY,VALUE
// STREAMS: own (one a thread), one (the same for all), many (one, after many have been used).
// `--seconds` is about the longest it may take: rounds that do not fit are left out. Exit status 77: no
// device.
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "peers/crew.h"
#include "peers/loads.h"

namespace nofrag::bench {

void stop(const std::string& why) {
  std::fflush(stdout);
  std::fprintf(stderr, "peers: %s\n", why.c_str());
  std::fflush(stderr);
  ::_exit(1);
}

namespace {

using Seconds = std::chrono::duration<double>;

struct Arguments {
  std::string peer;
  unsigned rounds = 11;
  Seconds round{0.03};
  Seconds most{60};
  std::vector<unsigned> threads{1, 2, 4, 8, 16};
  std::string patterns;  // ",a,b,"; empty: all
  bool list = false;

  [[nodiscard]] bool wants(const std::string& pattern) const {
    return patterns.empty() || patterns.find("," + pattern + ",") != std::string::npos;
  }
};

struct Cell {
  const char* pattern;
  unsigned threads;
  const char* streams;
};

class Bench {
 public:
  Bench(const Arguments& arguments, const PeerKind& kind)
      : arguments_(arguments), begin_(Clock::now()) {
    unsigned most = 2;  // a producer and a consumer
    for (const unsigned threads : arguments.threads) {
      most = std::max(most, threads);
    }
    streams_ = make_streams(most);
    held_before_ = device_bytes_in_use();
    peer_ = kind.make();
    crew_ = std::make_unique<Crew>(most);
    std::printf("info,settings,%s\n", peer_->settings().c_str());
  }

  void run() {
    run_rounds(one_stream_cells());
    run_rounds(many_streams_cells());
    std::printf(
        "info,held_bytes,%lld\n",
        static_cast<long long>(device_bytes_in_use()) - static_cast<long long>(held_before_));
    if (arguments_.wants("holes")) {
      run_holes();
    }
  }

 private:
  [[nodiscard]] std::vector<Cell> one_stream_cells() const {
    std::vector<Cell> cells;
    if (std::find(arguments_.threads.begin(), arguments_.threads.end(), 1U) !=
        arguments_.threads.end()) {
      cells = {{"pair-4k", 1, "own"},
               {"mixed", 1, "own"},
               {"large-repeat", 1, "own"},
               {"large-cycle", 1, "own"}};
    }
    cells.push_back({"producer-consumer", 2, "one"});
    return cells;
  }

  [[nodiscard]] std::vector<Cell> many_streams_cells() const {
    std::vector<Cell> cells;
    for (const char* pattern : {"pair-4k", "mixed"}) {
      for (const unsigned threads : arguments_.threads) {
        if (threads > 1) {
          cells.push_back({pattern, threads, "own"});
          cells.push_back({pattern, threads, "one"});
        }
      }
    }
    if (!cells.empty()) {
      cells.push_back({"large-cycle", 1, "many"});
    }
    return cells;
  }

  // Round 0 brings memory and caches and is not reported.
  void run_rounds(std::vector<Cell> cells) {
    std::erase_if(cells, [this](const Cell& cell) { return !arguments_.wants(cell.pattern); });
    for (unsigned round = 0; round <= arguments_.rounds && (round < 2 || !late(0.6)); ++round) {
      for (const Cell& cell : cells) {
        report(cell, round, measure(cell));
      }
    }
  }

  [[nodiscard]] bool late(double share) const {
    return Clock::now() - begin_ > share * arguments_.most;
  }

  Tally measure(const Cell& cell) {
    if (std::strcmp(cell.pattern, "producer-consumer") == 0) {
      return hand_over();
    }
    std::vector<Tally> tallies(cell.threads);
    std::barrier together(static_cast<std::ptrdiff_t>(cell.threads));
    crew_->run(cell.threads, [&](unsigned index) {
      const bool own = std::strcmp(cell.streams, "own") == 0;
      const Door door(*peer_, streams_[own ? index : 0]);
      const std::unique_ptr<Load> load = make_load(cell.pattern, door, index + 1);
      load->prepare();
      together.arrive_and_wait();
      run_for(*load, arguments_.round / 10);
      together.arrive_and_wait();
      tallies[index] = run_for(*load, arguments_.round);
      together.arrive_and_wait();  // nobody cleans up while others measure
      load->finish();
    });
    Tally sum;
    for (const Tally& tally : tallies) {
      sum.nanoseconds += tally.nanoseconds;
      sum.pairs += tally.pairs;
    }
    return sum;
  }

  Tally hand_over() {
    Tally tally;
    auto ring = std::make_unique<Ring<Block>>();
    crew_->run(2, [&](unsigned index) {
      const Door door(*peer_, streams_[0]);
      if (index == 1) {
        consume(door, *ring);
        return;
      }
      Producer producer(door, *ring);
      run_for(producer, arguments_.round / 10);
      tally = run_for(producer, arguments_.round);
      producer.finish();
    });
    return tally;
  }

  void run_holes() {
    Holes holes(Door(*peer_, streams_[0]), 0.15 * arguments_.most);
    crew_->run(1, [&](unsigned) { holes.prepare(); });
    std::printf("info,holes,%zu\n", holes.made());
    for (unsigned round = 0; round <= arguments_.rounds && !late(1); ++round) {
      Tally tally;
      crew_->run(1, [&](unsigned) { tally = run_for(holes, arguments_.round); });
      report({"holes", 1, "own"}, round, tally);
    }
  }

  static void report(const Cell& cell, unsigned round, const Tally& tally) {
    if (round == 0) {
      return;
    }
    // Flushed: of a program that is ended the figures so far count.
    std::printf("round,%s,%u,%s,%u,%.2f,%llu\n",
                cell.pattern,
                cell.threads,
                cell.streams,
                round,
                tally.nanoseconds / static_cast<double>(tally.pairs),
                static_cast<unsigned long long>(tally.pairs));
    std::fflush(stdout);
  }

  const Arguments& arguments_;
  const Clock::time_point begin_;
  std::vector<void*> streams_;
  std::uint64_t held_before_ = 0;
  std::unique_ptr<Peer> peer_;
  std::unique_ptr<Crew> crew_;
};

[[noreturn]] void usage() {
  std::fprintf(stderr,
               "usage: peers --list | --peer NAME [--rounds N] [--round-ms X] [--threads 1,2,...]\n"
               "             [--patterns LIST] [--seconds X]\n");
  std::exit(2);
}

std::vector<unsigned> parse_threads(const char* text) {
  std::vector<unsigned> threads;
  for (char* end = nullptr; *text != 0; text = *end == ',' ? end + 1 : end) {
    const unsigned long value = std::strtoul(text, &end, 10);
    if (end == text || value < 1 || value > 256 || (*end != 0 && *end != ',')) {
      usage();
    }
    threads.push_back(static_cast<unsigned>(value));
  }
  return threads;
}

double parse_number(const char* text, double least, double most) {
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (end == text || *end != 0 || !(value >= least && value <= most)) {
    usage();
  }
  return value;
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--list") {
      arguments.list = true;
      continue;
    }
    if (i + 1 == argc) {
      usage();
    }
    const char* value = argv[++i];
    if (name == "--peer") {
      arguments.peer = value;
    } else if (name == "--rounds") {
      arguments.rounds = static_cast<unsigned>(parse_number(value, 1, 1000));
    } else if (name == "--round-ms") {
      arguments.round = Seconds(parse_number(value, 0.01, 10000) / 1000);
    } else if (name == "--seconds") {
      arguments.most = Seconds(parse_number(value, 0.1, 3600));
    } else if (name == "--threads") {
      arguments.threads = parse_threads(value);
    } else if (name == "--patterns") {
      arguments.patterns = "," + std::string(value) + ",";
    } else {
      usage();
    }
  }
  return arguments;
}

int run(const Arguments& arguments) {
  for (const PeerKind& kind : peer_kinds()) {
    if (arguments.list) {
      std::printf("%s\n", kind.name);
    } else if (arguments.peer == kind.name) {
      std::string why;
      if (!open_device(&why)) {
        std::printf("skipped: %s\n", why.c_str());
        return 77;
      }
      Bench(arguments, kind).run();
      // Whatever the peer holds goes back with the process: taking it apart may take longer than all
      // the rounds.
      std::fflush(stdout);
      ::_exit(0);
    }
  }
  if (!arguments.list) {
    stop("there is no peer \"" + arguments.peer + "\" in this program");
  }
  return 0;
}

}  // namespace
}  // namespace nofrag::bench

int main(int argc, char** argv) {
  return nofrag::bench::run(nofrag::bench::parse(argc, argv));
}
