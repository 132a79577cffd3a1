// What a client of the metrics gets.

#include "runtime/observe/metrics_server.h"

#include <unistd.h>

#include <string>
#include <thread>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace nofrag {
namespace {

std::string asked(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  where.sin_port = htons(static_cast<std::uint16_t>(port));
  std::string answer;
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0 &&
      ::send(fd, request.data(), request.size(), MSG_NOSIGNAL) > 0) {
    char part[512];
    for (ssize_t got = 0; (got = ::recv(fd, part, sizeof part, 0)) > 0;) {
      answer.append(part, static_cast<std::size_t>(got));
    }
  }
  ::close(fd);
  return answer;
}

std::string answer_with(const std::string& page) {
  MetricsServer server;
  std::string problem;
  EXPECT_TRUE(server.open("127.0.0.1:0", &problem)) << problem;
  std::string answer;
  std::thread client([&] { answer = asked(server.port()); });
  constexpr int kPatienceMs = 10'000;
  server.serve(kPatienceMs, [&] { return page; });
  client.join();
  return answer;
}

TEST(MetricsServer, SendsThePage) {
  const std::string answer = answer_with("nofrag_live_bytes 5\n");
  EXPECT_EQ(answer.substr(0, answer.find('\r')), "HTTP/1.0 200 OK");
  EXPECT_EQ(answer.substr(answer.find("\r\n\r\n") + 4), "nofrag_live_bytes 5\n");
}

// As while the process ends: an empty page with 200 would end every series as if all were well.
TEST(MetricsServer, NothingToSayIsNoAnswer) {
  const std::string answer = answer_with("");
  EXPECT_EQ(answer.substr(0, answer.find('\r')), "HTTP/1.0 503 Service Unavailable");
}

}  // namespace
}  // namespace nofrag
