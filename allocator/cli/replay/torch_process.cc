#include "cli/replay/torch_process.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/json_text.h"

namespace nofrag {
namespace {

using nlohmann::json;

// The answer as an object, or an object that holds an "error".
json parse_answer(const std::string& line) {
  json answer = parse_json(line);
  if (!answer.is_object()) {
    answer = json{{"error", "an answer that is no JSON object"}};
  }
  return answer;
}

void exec_python(int socket, int device, bool expandable) {
  dup2(socket, STDIN_FILENO);
  dup2(socket, STDOUT_FILENO);
  const std::string ordinal = std::to_string(device);
  const char* const arguments[] = {
      "python3", "-c", kTorchReplayScript, ordinal.c_str(), expandable ? "1" : "0", nullptr};
  execvp("python3", const_cast<char* const*>(arguments));
  _exit(127);
}

}  // namespace

std::unique_ptr<TorchProcess> TorchProcess::start(const Trace& trace,
                                                  int device,
                                                  bool expandable,
                                                  std::string* why) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
    *why = "no socket pair";
    return nullptr;
  }
  const pid_t child = fork();
  if (child == 0) {
    exec_python(sockets[1], device, expandable);
  }
  close(sockets[1]);
  if (child < 0) {
    close(sockets[0]);
    *why = "no child process could be started";
    return nullptr;
  }
  std::unique_ptr<TorchProcess> process(new TorchProcess(child, sockets[0]));
  std::string line;
  if (!process->read_line(&line)) {
    *why = "python3 could not be run";
    return nullptr;
  }
  const json answer = parse_answer(line);
  if (answer.contains("error")) {
    *why = answer["error"].is_string() ? answer["error"].get<std::string>() : "an unknown error";
    return nullptr;
  }
  if (!process->send_trace(trace)) {
    *why = "the python3 child ended early";
    return nullptr;
  }
  return process;
}

TorchProcess::~TorchProcess() {
  close(socket_);  // ends the child's loop over its input
  while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

bool TorchProcess::send_bytes(const void* bytes, std::size_t count) {
  const char* at = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t sent = send(socket_, at, count, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) {
      continue;
    }
    if (sent <= 0) {
      return false;
    }
    at += sent;
    count -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool TorchProcess::send_trace(const Trace& trace) {
  struct Wire {
    std::uint64_t size;
    std::uint32_t block;
    std::uint32_t stream_and_op;
  };
  const std::uint64_t header[] = {trace.events.size(), trace.allocations, trace.streams.size()};
  if (!send_bytes(header, sizeof header)) {
    return false;
  }
  constexpr std::size_t kChunk = 4096;
  std::vector<Wire> chunk;
  for (std::size_t first = 0; first < trace.events.size(); first += kChunk) {
    const std::size_t last = std::min(trace.events.size(), first + kChunk);
    chunk.clear();
    for (std::size_t i = first; i < last; ++i) {
      const TraceEvent& event = trace.events[i];
      chunk.push_back({event.size, event.block, event.stream_and_op});
    }
    if (!send_bytes(chunk.data(), chunk.size() * sizeof(Wire))) {
      return false;
    }
  }
  return true;
}

bool TorchProcess::read_line(std::string* line) {
  for (;;) {
    const std::size_t end = received_.find('\n');
    if (end != std::string::npos) {
      *line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return true;
    }
    char buffer[4096];
    const ssize_t count = read(socket_, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      return false;
    }
    received_.append(buffer, static_cast<std::size_t>(count));
  }
}

ReplayRun TorchProcess::run(std::optional<Bytes> capacity, Bytes most) {
  ReplayRun run;
  const std::string request = std::to_string(capacity ? capacity->count() : 0) + "\n";
  std::string line;
  if (!send_bytes(request.data(), request.size()) || !read_line(&line)) {
    run.fault = "the PyTorch process ended unexpectedly";
    return run;
  }
  const json answer = parse_answer(line);
  if (answer.contains("error")) {
    run.fault = answer["error"].dump();
    return run;
  }
  run.completed = answer.at("completed").get<bool>();
  run.peak_reserved = Bytes(answer.at("peak_reserved").get<std::uint64_t>());
  run.events_replayed = answer.at("events").get<std::uint64_t>();
  run.host_ns = answer.at("host_ns").get<double>();
  if (answer.contains("num_device_alloc")) {
    run.driver_mallocs = answer["num_device_alloc"].get<std::uint64_t>();
  }
  if (answer.contains("num_device_free")) {
    run.driver_frees = answer["num_device_free"].get<std::uint64_t>();
  }
  if (answer.contains("oom")) {
    const json& end = answer["oom"];
    ReplayOom oom;
    oom.event = end.at("event").get<std::uint64_t>();
    oom.requested = Bytes(end.at("requested").get<std::uint64_t>());
    oom.live = Bytes(end.at("live").get<std::uint64_t>());
    oom.reserved = Bytes(end.at("reserved").get<std::uint64_t>());
    oom.free_granules = Bytes(end.at("free_granules").get<std::uint64_t>());
    const Bytes available = oom.reserved + Bytes(end.at("driver_free").get<std::uint64_t>());
    oom.cause = oom_cause(std::min(most, available), oom.live, oom.requested);
    run.oom = std::move(oom);
  }
  return run;
}

}  // namespace nofrag
