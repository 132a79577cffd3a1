// MetricsServer: answers GET /metrics over HTTP/1.0, on one socket, in the thread that calls serve().
//
// Owns: a listening socket. Layer: runtime. Not a web server: /metrics is its page, / says so, anything else is 404;
// one request at a time, with a second for each side, and the connection is closed. Threads: one calls open and serve;
// close_after_fork may be called in a forked child. Failure: open says in *problem what is wrong; a client
// that is slow or goes away is dropped. SIGPIPE is never raised.
// Decision: docs/decisions/0010-metrics.md
#pragma once

#include <atomic>
#include <functional>
#include <string>

namespace nofrag {

class MetricsServer {
 public:
  MetricsServer() = default;
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;
  ~MetricsServer() { close(); }

  // "9400" or "0.0.0.0:9400"; where the port is taken, one of the next kMorePorts. "ADDRESS:0": any free one. (A
  // bare "0" is off, and nobody asks for it here.)
  bool open(const std::string& address, std::string* problem);
  [[nodiscard]] bool is_open() const { return socket_.load(std::memory_order_relaxed) >= 0; }
  [[nodiscard]] int port() const { return port_; }
  // Waits at most `milliseconds` for a client and serves it: 503 where page() has nothing to say any more.
  void serve(int milliseconds, const std::function<std::string()>& page);
  void close();

 private:
  static constexpr int kMorePorts = 31;

  static void answer(int client, const std::function<std::string()>& page);

  std::atomic<int> socket_{-1};
  int port_ = 0;
};

}  // namespace nofrag
