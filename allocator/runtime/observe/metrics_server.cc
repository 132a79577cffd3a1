#include "runtime/observe/metrics_server.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "config/metrics_address.h"

namespace nofrag {
namespace {

constexpr long kPatienceSeconds = 1;

struct Address {
  in_addr host{};
  int port = -1;
};

bool parse(const std::string& text, Address* address) {
  MetricsAddress read;
  if (!parse_metrics_address(text, &read)) {
    return false;
  }
  address->port = read.port;
  return ::inet_pton(AF_INET, read.host.c_str(), &address->host) == 1;
}

int listen_on(const in_addr& host, int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    return -1;
  }
  const int yes = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr = host;
  where.sin_port = htons(static_cast<std::uint16_t>(port));
  constexpr int kWaiting = 8;
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0 &&
      ::listen(fd, kWaiting) == 0) {
    return fd;
  }
  const int why = errno;
  ::close(fd);
  errno = why;
  return -1;
}

int port_of(int fd) {
  sockaddr_in where{};
  socklen_t size = sizeof where;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&where), &size);
  return ntohs(where.sin_port);
}

void send_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent <= 0) {
      return;
    }
    text.remove_prefix(static_cast<std::size_t>(sent));
  }
}

// "/metrics" of "GET /metrics?name HTTP/1.1".
std::string_view path_of(std::string_view request) {
  request.remove_prefix(std::string_view("GET ").size());
  return request.substr(0, request.find_first_of(" ?#\r\n"));
}

void send_page(int client, const char* status, std::string_view body) {
  send_all(client,
           std::string("HTTP/1.0 ") + status +
               "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: " +
               std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n");
  send_all(client, body);
}

}  // namespace

bool MetricsServer::open(const std::string& address, std::string* problem) {
  Address wanted;
  if (!parse(address, &wanted)) {
    *problem = "metrics:" + address +
               " is no port, no ADDRESS:PORT and no file:PATH; no metrics are served";
    return false;
  }
  int fd = -1;
  constexpr int kHighestPort = 65535;
  for (int i = 0; i <= (wanted.port == 0 ? 0 : kMorePorts) && wanted.port + i <= kHighestPort;
       ++i) {
    fd = listen_on(wanted.host, wanted.port + i);
    if (fd >= 0 || errno != EADDRINUSE) {
      break;
    }
  }
  if (fd < 0) {
    *problem = "metrics:" + address + " cannot be served: " + std::strerror(errno);
    return false;
  }
  port_ = port_of(fd);
  socket_.store(fd, std::memory_order_relaxed);
  return true;
}

void MetricsServer::answer(int client, const std::function<std::string()>& page) {
  const timeval patience{kPatienceSeconds, 0};
  ::setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ::setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  char request[2048];
  const ssize_t got = ::recv(client, request, sizeof request, 0);
  if (got <= 0) {
    return;
  }
  const std::string_view text(request, static_cast<std::size_t>(got));
  if (text.substr(0, 4) != "GET ") {
    send_all(client, "HTTP/1.0 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n");
    return;
  }
  const std::string_view path = path_of(text);
  if (path == "/metrics") {
    const std::string body = page();
    // An empty page would say that every series has ended well.
    send_page(client, body.empty() ? "503 Service Unavailable" : "200 OK", body);
  } else if (path == "/") {
    send_page(client, "200 OK", "nofrag: the metrics are at /metrics\n");
  } else {
    send_page(client, "404 Not Found", "nofrag: there is nothing but /metrics\n");
  }
}

void MetricsServer::serve(int milliseconds, const std::function<std::string()>& page) {
  pollfd waiting{socket_.load(std::memory_order_relaxed), POLLIN, 0};
  if (::poll(&waiting, 1, milliseconds) <= 0 || (waiting.revents & POLLIN) == 0) {
    return;
  }
  const int client = ::accept4(waiting.fd, nullptr, nullptr, SOCK_CLOEXEC);
  if (client >= 0) {
    answer(client, page);
    ::shutdown(client, SHUT_RDWR);
    ::close(client);
  }
}

void MetricsServer::close() {
  const int fd = socket_.exchange(-1, std::memory_order_relaxed);
  if (fd >= 0) {
    ::close(fd);
  }
}

}  // namespace nofrag
