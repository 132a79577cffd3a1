// TorchProcess: the real PyTorch allocator as a peer, in a child process.
//
// Owns: a `python3` child that holds the trace and replays it on demand through PyTorch's caching
// allocator, and the socket to it. Layer: cli. The child gets the events once, then one line a run
// and answers one line of JSON. Units: bytes, nanoseconds. Times: CPU time of the loop less that of
// the same loop around a function that does nothing; driver time is not known. A free on another
// stream than the allocation's counts as one on the allocation's. Threads: none. Failure: start
// gives nullptr and says why (no python3, no torch, no such device); a child that dies later makes
// the run's fault. Cost: importing torch takes seconds, once a process.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <sys/types.h>

#include "cli/replay/replay_run.h"

namespace nofrag {

class TorchProcess {
 public:
  static std::unique_ptr<TorchProcess> start(const Trace& trace,
                                             int device,
                                             bool expandable,
                                             std::string* why);
  TorchProcess(const TorchProcess&) = delete;
  TorchProcess& operator=(const TorchProcess&) = delete;
  ~TorchProcess();

  // `most` is what the device could give, for the verdict at an out-of-memory end.
  ReplayRun run(std::optional<Bytes> capacity, Bytes most);

 private:
  TorchProcess(pid_t child, int socket) : child_(child), socket_(socket) {}
  bool send_bytes(const void* bytes, std::size_t count);
  bool send_trace(const Trace& trace);
  bool read_line(std::string* line);

  pid_t child_;
  int socket_;
  std::string received_;
};

// The program that the child runs (torch_script.cc).
extern const char* const kTorchReplayScript;

}  // namespace nofrag
