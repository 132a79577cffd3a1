#include "torch_plugin/native/sharing/descriptor_server.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>

#include <c10/util/Exception.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

namespace nofrag::native {
namespace {

// One request: how many names, then the names. One answer: a byte, and with it as many descriptors. The
// kernel passes at most 253 at once.
constexpr std::size_t kMostAtOnce = 128;
constexpr int kPatienceSeconds = 20;
constexpr char kGranted = 'y';
constexpr char kUnknown = 'n';

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) {
      ::close(number_);
    }
  }
  [[nodiscard]] int number() const { return number_; }
  void release() { number_ = -1; }

 private:
  int number_;
};

std::uint64_t random_number() {
  std::uint64_t number = 0;
  TORCH_CHECK(::getrandom(&number, sizeof number, 0) == static_cast<ssize_t>(sizeof number),
              "nofrag: no random numbers: ",
              std::strerror(errno));
  return number;
}

socklen_t address_of(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  // The first byte stays zero: no file.
  const std::size_t length = std::min(name.size(), sizeof address->sun_path - 1);
  std::memcpy(address->sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

bool send_all(int socket, const void* data, std::size_t size) {
  return ::send(socket, data, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

bool receive_all(int socket, void* data, std::size_t size) {
  return ::recv(socket, data, size, MSG_WAITALL) == static_cast<ssize_t>(size);
}

void limit_waiting(int socket) {
  const timeval patience{kPatienceSeconds, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

bool same_user(int peer) {
  ucred who{};
  socklen_t size = sizeof who;
  return ::getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 &&
         (who.uid == ::geteuid() || who.uid == 0);
}

struct Ancillary {
  alignas(cmsghdr) char bytes[CMSG_SPACE(kMostAtOnce * sizeof(int))] = {};
};

bool send_descriptors(int socket, const std::vector<int>& descriptors) {
  char granted = kGranted;
  iovec data{&granted, 1};
  Ancillary control;
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

// Empty if the server said no, or hung up.
std::vector<int> receive_descriptors(int socket, std::size_t count) {
  char answer = 0;
  iovec data{&answer, 1};
  Ancillary control;
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1 || answer != kGranted) {
    return {};
  }
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) {
    return {};
  }
  std::vector<int> descriptors((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
  std::memcpy(descriptors.data(), CMSG_DATA(header), descriptors.size() * sizeof(int));
  if (descriptors.size() != count) {
    for (const int descriptor : descriptors) {
      ::close(descriptor);
    }
    descriptors.clear();
  }
  return descriptors;
}

std::vector<int> ask(const std::string& socket_name,
                     const std::uint64_t* names,
                     std::size_t count) {
  const Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  const socklen_t length = address_of(socket_name, &address);
  limit_waiting(socket.number());
  TORCH_CHECK(
      ::connect(socket.number(), reinterpret_cast<const sockaddr*>(&address), length) == 0,
      "nofrag: the process that shared this CUDA tensor cannot be reached (it has ended, or has "
      "another network namespace): ",
      std::strerror(errno));
  std::vector<std::uint64_t> request{count};
  request.insert(request.end(), names, names + count);
  std::vector<int> descriptors;
  if (send_all(socket.number(), request.data(), request.size() * sizeof request[0])) {
    descriptors = receive_descriptors(socket.number(), count);
  }
  TORCH_CHECK(!descriptors.empty(),
              "nofrag: the process that shared this CUDA tensor no longer has its memory");
  return descriptors;
}

}  // namespace

DescriptorServer::DescriptorServer() {
  socket_name_ = "nofrag-" + std::to_string(::getpid()) + "-" + std::to_string(random_number());
  Descriptor listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  const socklen_t length = address_of(socket_name_, &address);
  const bool listening =
      listener.number() >= 0 &&
      ::bind(listener.number(), reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
      ::listen(listener.number(), SOMAXCONN) == 0;
  TORCH_CHECK(listening, "nofrag: no socket to share CUDA tensors through: ", std::strerror(errno));
  listener_ = listener.number();
  // Signals are for the program's own threads. (Not std::thread, which throws before the mask is put back.)
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread{};
  const int problem = ::pthread_create(&thread, nullptr, &DescriptorServer::run, this);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  TORCH_CHECK(
      problem == 0, "nofrag: no thread to share CUDA tensors with: ", std::strerror(problem));
  ::pthread_detach(thread);
  listener.release();
}

void* DescriptorServer::run(void* self) {
  static_cast<DescriptorServer*>(self)->serve();
  return nullptr;
}

std::uint64_t DescriptorServer::offer(int descriptor) {
  const int own = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  TORCH_CHECK(own >= 0, "nofrag: a file descriptor could not be kept: ", std::strerror(errno));
  const std::uint64_t name = random_number();
  const std::lock_guard lock(mutex_);
  offered_[name] = own;
  return name;
}

void DescriptorServer::withdraw(std::uint64_t name) {
  const std::lock_guard lock(mutex_);
  if (const auto found = offered_.find(name); found != offered_.end()) {
    ::close(found->second);
    offered_.erase(found);
  }
}

void DescriptorServer::serve() {
  for (;;) {
    const Descriptor peer(::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
    if (peer.number() >= 0 && same_user(peer.number())) {
      limit_waiting(peer.number());
      answer(peer.number());
    } else if (peer.number() < 0 && errno != EINTR && errno != ECONNABORTED) {
      ::usleep(10000);  // out of descriptors, most likely
    }
  }
}

void DescriptorServer::answer(int peer) {
  std::uint64_t count = 0;
  if (!receive_all(peer, &count, sizeof count) || count == 0 || count > kMostAtOnce) {
    return;
  }
  std::vector<std::uint64_t> names(count);
  if (!receive_all(peer, names.data(), count * sizeof names[0])) {
    return;
  }
  std::vector<int> descriptors;
  // Sent under the mutex, so that none is closed meanwhile.
  const std::lock_guard lock(mutex_);
  for (const std::uint64_t name : names) {
    if (const auto found = offered_.find(name); found != offered_.end()) {
      descriptors.push_back(found->second);
    }
  }
  if (descriptors.size() == names.size()) {
    send_descriptors(peer, descriptors);
  } else {
    send_all(peer, &kUnknown, 1);
  }
}

std::vector<int> DescriptorServer::fetch(const std::string& socket_name,
                                         const std::vector<std::uint64_t>& names) {
  std::vector<int> descriptors;
  try {
    for (std::size_t at = 0; at < names.size(); at += kMostAtOnce) {
      const std::size_t count = std::min(kMostAtOnce, names.size() - at);
      const std::vector<int> more = ask(socket_name, names.data() + at, count);
      descriptors.insert(descriptors.end(), more.begin(), more.end());
    }
  } catch (...) {
    for (const int descriptor : descriptors) {
      ::close(descriptor);
    }
    throw;
  }
  return descriptors;
}

}  // namespace nofrag::native
