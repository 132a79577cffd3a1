// The recorder: threads that emit all they can, and a writer.
#include "trace/record/recorder.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <random>
#include <thread>

#include <sys/stat.h>

#include "recording_file.h"

namespace nofrag {
namespace {

AllocatorEvent allocation(std::uint64_t address, std::uint64_t size) {
  AllocatorEvent event;
  event.kind = EventKind::kAlloc;
  event.address = VirtAddr(address);
  event.size = Bytes(size);
  event.requested = Bytes(size);
  return event;
}
AllocatorEvent freeing(std::uint64_t address) {
  AllocatorEvent event;
  event.kind = EventKind::kFreeRequested;
  event.address = VirtAddr(address);
  return event;
}

class RecorderTest : public testing::Test {
 protected:
  ~RecorderTest() override {
    recorder_.reset();
    std::remove(path_.c_str());
  }

  void start(std::uint64_t keep = 0, std::uint64_t max = RecordOutput::kNoMax) {
    RecorderSettings settings;
    settings.path = path_;
    settings.keep = keep;
    settings.max = max;
    settings.say = [this](const std::string& line) {
      const std::lock_guard<std::mutex> lock(said_mutex_);
      said_ += line + "\n";
    };
    std::string problem;
    recorder_ = Recorder::start(std::move(settings), &problem);
    ASSERT_NE(recorder_, nullptr) << problem;
  }
  Trace read() {
    Trace trace;
    const auto error = load_trace(path_, TraceFormat::kAuto, &trace);
    EXPECT_FALSE(error.has_value()) << error->message();
    return trace;
  }
  std::string said() {
    const std::lock_guard<std::mutex> lock(said_mutex_);
    return said_;
  }
  // Waits for something that the writer does in its time.
  template <typename Condition>
  static bool comes(Condition condition) {
    for (int i = 0; i < 1000 && !condition(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return condition();
  }

  std::string path_ = temporary_path("recorder");
  std::unique_ptr<Recorder> recorder_;

 private:
  std::mutex said_mutex_;
  std::string said_;
};

TEST_F(RecorderTest, ManyThreadsLoseNothing) {
  constexpr std::uint64_t kThreads = 6;
  constexpr std::uint64_t kEach = 3 * Ring::kSlots;  // each fills its ring more than once
  start();
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      for (std::uint64_t i = 0; i < kEach / 2; ++i) {
        const std::uint64_t address = (t << 32) + 512 * (1 + i % 100);
        recorder_->on_event(allocation(address, 512));
        recorder_->on_event(freeing(address));
      }
      recorder_->mark("thread " + std::to_string(t));
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  recorder_->stop(NOFRAG_TRACE_STOP_ASKED);
  const Trace trace = read();
  EXPECT_TRUE(trace.warnings.empty()) << trace.warnings.front();
  EXPECT_EQ(trace.events.size(), kThreads * kEach);
  EXPECT_EQ(trace.live_at_end, Bytes(0));
  EXPECT_EQ(trace.recording->lost, 0U);
  EXPECT_EQ(trace.recording->marks.size(), kThreads);
  EXPECT_EQ(trace.recording->threads.size(), kThreads);
  std::size_t ended = 0;
  for (const Recording::Note& note : trace.recording->notes) {
    ended += note.event.kind == NOFRAG_TRACE_RECORD_THREAD_END ? 1 : 0;
  }
  EXPECT_EQ(ended, kThreads);
}

// Blocks go from hand to hand: an address is never live twice, whoever had it.
TEST_F(RecorderTest, BlocksThatPassBetweenThreadsStayInOrder) {
  constexpr int kThreads = 4;
  constexpr int kAddresses = 8;
  start();
  std::array<std::atomic<bool>, kAddresses> taken{};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t, &taken] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < 20000; ++i) {
        const std::size_t at = random() % kAddresses;
        if (taken[at].exchange(true, std::memory_order_acquire)) {
          continue;
        }
        recorder_->on_event(allocation(0x1000 * (at + 1), 512));
        AllocatorEvent event = freeing(0x1000 * (at + 1));
        event.stamp = recorder_->stamp();
        taken[at].store(false, std::memory_order_release);
        recorder_->on_event(event);  // late, as a thread cache tells it
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  recorder_->stop(NOFRAG_TRACE_STOP_ASKED);
  const Trace trace = read();
  EXPECT_TRUE(trace.warnings.empty()) << trace.warnings.front();
  EXPECT_EQ(trace.live_at_end, Bytes(0));
  EXPECT_LE(trace.peak_live, Bytes(512 * kAddresses));
}

TEST_F(RecorderTest, FlushWritesWhatWasRecorded) {
  start();
  recorder_->on_event(allocation(0x1000, 100));
  recorder_->add_info("what", "a test");
  ASSERT_TRUE(recorder_->flush());
  const Trace trace = read();
  EXPECT_EQ(trace.events.size(), 1U);
  EXPECT_EQ(trace.recording->info.at("what"), "a test");
  EXPECT_FALSE(trace.recording->whole);
  EXPECT_EQ(recorder_->events(), 1U);
  EXPECT_EQ(recorder_->bytes(), file_bytes(path_).size());
  recorder_->stop(NOFRAG_TRACE_STOP_ASKED);
  EXPECT_FALSE(recorder_->active());
  EXPECT_FALSE(recorder_->flush()) << "it has ended";
  recorder_->on_event(allocation(0x2000, 100));
  recorder_->mark("nobody hears");
  EXPECT_EQ(read().events.size(), 1U);
}

TEST_F(RecorderTest, BlocksAreWrittenWithoutBeingAskedFor) {
  start();
  recorder_->on_event(allocation(0x1000, 100));
  EXPECT_TRUE(comes([this] { return recorder_->events() == 1; }));
  EXPECT_EQ(read().events.size(), 1U);
}

TEST_F(RecorderTest, AFullFileEndsTheRecordingWithOneLine) {
  start(0, 64 * 1024);
  std::mt19937_64 random(1);
  for (int i = 0; i < 200000 && recorder_->active(); ++i) {
    recorder_->on_event(allocation(random(), random() % (1 << 20) + 1));
  }
  EXPECT_TRUE(comes([this] { return !recorder_->active(); }));
  recorder_->stop(NOFRAG_TRACE_STOP_ASKED);
  EXPECT_EQ(said(), "recording has ended: " + path_ + " has the size that it may have (max=)\n");
  EXPECT_LE(file_bytes(path_).size(), 64U * 1024);
}

// Of a job that ends before the writer has looked again.
TEST_F(RecorderTest, AFileThatIsFullAtTheEndIsSaidToo) {
  start(0, 64 * 1024);
  std::mt19937_64 random(1);
  for (int i = 0; i < 12000; ++i) {
    recorder_->on_event(allocation(random(), random() % (1 << 20) + 1));
  }
  recorder_->stop(NOFRAG_TRACE_STOP_ASKED);
  EXPECT_EQ(said(), "recording has ended: " + path_ + " has the size that it may have (max=)\n");
  const std::size_t size = file_bytes(path_).size();
  EXPECT_LE(size, 64U * 1024);
  EXPECT_GT(size, 58U * 1024);
}

// Without a flush: as a job that is killed in its first second leaves it.
TEST_F(RecorderTest, TheFirstEventsAndFailuresAreInTheFileAtOnce) {
  start();
  const auto before = std::chrono::steady_clock::now();
  recorder_->on_event(allocation(0x1000, 100));
  EXPECT_TRUE(comes([this] { return recorder_->events() == 1; }));
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(700))
      << "a usual block comes after a second";
  Trace trace = read();
  EXPECT_EQ(trace.events.size(), 1U);
  // Blocks grow old then, but not one with a failure.
  for (std::uint64_t i = 0; i < 6; ++i) {
    recorder_->on_event(allocation(0x2000 + 512 * i, 100));
    EXPECT_TRUE(comes([this, i] { return recorder_->events() == 2 + i; }));
  }
  const auto six = std::chrono::steady_clock::now() - before;
  EXPECT_GE(six, std::chrono::milliseconds(700)) << "40 + 80 + 160 + 320 + ...";
  AllocatorEvent failed;
  failed.kind = EventKind::kOutOfMemory;
  failed.size = Bytes(1 << 30);
  const auto refused = std::chrono::steady_clock::now();
  recorder_->on_event(failed);
  EXPECT_TRUE(comes([this] { return recorder_->events() == 8; }));
  EXPECT_LT(std::chrono::steady_clock::now() - refused, std::chrono::milliseconds(700))
      << "a usual block comes after a second";
}

TEST_F(RecorderTest, AFlightRecorderWritesWhenARequestFailed) {
  start(1 << 20);
  recorder_->on_event(allocation(0x1000, 100));
  AllocatorEvent failed;
  failed.kind = EventKind::kOutOfMemory;
  failed.size = Bytes(1 << 30);
  recorder_->on_event(failed);
  ASSERT_TRUE(comes([this] { return !file_bytes(path_).empty(); }));
  EXPECT_TRUE(comes([this] { return !said().empty(); }));
  EXPECT_EQ(said(), "the last of what happened is in " + path_ + "\n");
  const Trace trace = read();
  EXPECT_EQ(trace.events.size(), 1U);
  EXPECT_EQ(trace.recording->notes.at(0).event.kind, NOFRAG_TRACE_RECORD_OUT_OF_MEMORY);
  EXPECT_EQ(trace.recording->notes.at(0).event.size, 1U << 30);
  // A signal asks for it too.
  std::remove(path_.c_str());
  recorder_->request_flush();
  EXPECT_TRUE(comes([this] { return !file_bytes(path_).empty(); }));
}

// What threads do while they end, after the recorder's own share of them went.
TEST_F(RecorderTest, AThreadThatEndsIsHeardToTheLast) {
  struct Late {
    Recorder* recorder = nullptr;
    Late() = default;
    Late(const Late&) = delete;
    Late& operator=(const Late&) = delete;
    ~Late() {
      if (recorder != nullptr) {
        recorder->on_event(freeing(0x1000));
      }
    }
  };
  start();
  std::thread([this] {
    static thread_local Late late;  // made first, so it goes last
    late.recorder = recorder_.get();
    recorder_->on_event(allocation(0x1000, 512));
  }).join();
  recorder_->stop(NOFRAG_TRACE_STOP_ASKED);
  const Trace trace = read();
  EXPECT_EQ(story(trace), "a0 f0");
  EXPECT_TRUE(trace.warnings.empty());
}

// Where the system has no more threads nothing is recorded, and the program goes on.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    EXPECT_EQ(::pthread_getattr_default_np(&usual_), 0);
    pthread_attr_t huge;
    EXPECT_EQ(::pthread_attr_init(&huge), 0);
    EXPECT_EQ(::pthread_attr_setstacksize(&huge, std::size_t{1} << 47), 0);  // all addresses
    EXPECT_EQ(::pthread_setattr_default_np(&huge), 0);
  }
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;
  ~NoMoreThreads() { EXPECT_EQ(::pthread_setattr_default_np(&usual_), 0); }

 private:
  pthread_attr_t usual_{};
};

// What a recorder without a thread says.
std::string refusal(const std::string& path) {
  const NoMoreThreads none_left;
  RecorderSettings settings;
  settings.path = path;
  std::string problem;
  EXPECT_EQ(Recorder::start(std::move(settings), &problem), nullptr);
  return problem;
}

TEST_F(RecorderTest, ARecorderWithoutAThreadSaysSo) {
  sigset_t before;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  const std::string problem = refusal(path_);
  EXPECT_NE(problem.find("no thread could be made"), std::string::npos) << problem;
  EXPECT_FALSE(std::ifstream(path_).is_open()) << "a file that nobody will write";
  sigset_t after;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int signal = 1; signal < NSIG; ++signal) {
    EXPECT_EQ(sigismember(&after, signal), sigismember(&before, signal)) << signal;
  }
}

TEST_F(RecorderTest, ARecorderWithoutAThreadTakesNothingAwayThatWasThere) {
  const auto exists = [this] {
    struct stat status {};
    return ::lstat(path_.c_str(), &status) == 0;
  };
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  const int reader = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  EXPECT_NE(refusal(path_), "");
  EXPECT_TRUE(exists());
  ::close(reader);
  std::remove(path_.c_str());
  ASSERT_EQ(::symlink("/dev/null", path_.c_str()), 0);
  EXPECT_NE(refusal(path_), "");
  EXPECT_TRUE(exists());
  std::remove(path_.c_str());
  std::ofstream(path_).close();
  EXPECT_NE(refusal(path_), "");
  EXPECT_TRUE(exists());
}

TEST_F(RecorderTest, OneAfterTheOther) {
  start();
  recorder_->on_event(allocation(0x1000, 512));
  recorder_->stop(NOFRAG_TRACE_STOP_ASKED);
  EXPECT_EQ(read().events.size(), 1U);
  const std::unique_ptr<Recorder> before = std::move(recorder_);
  start();
  recorder_->on_event(allocation(0x1000, 512));
  recorder_->on_event(freeing(0x1000));
  recorder_->stop(NOFRAG_TRACE_STOP_ASKED);
  EXPECT_EQ(read().events.size(), 2U);
}

}  // namespace
}  // namespace nofrag
