// How the file descriptors of exported memory come from one process to another: an abstract unix socket of the
// exporter, whose name and protocol carry a secret that only handles hold, and which serves its own user only.
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <mutex>

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "preload/ipc/exports.h"

namespace nofrag::preload {
namespace {

constexpr std::size_t kMostParts = 64 * std::size_t{1024};
constexpr std::size_t kPartsAMessage = 64;  // the kernel passes at most 253 descriptors at once

struct Request {
  std::uint64_t secret;
  std::uint64_t id;
};
// Before the parts. count 0: no such export.
struct Answer {
  std::uint64_t count;
  std::uint64_t size;
  std::uint64_t offset;
  std::int64_t device;
};

std::mutex channel_mutex;
ChannelName own_name;                 // Sync: channel_mutex; process 0 = not serving
int listener = -1;                    // Sync: channel_mutex until the thread runs, then constant
std::vector<ExportedBlock>* offered;  // Sync: channel_mutex; leaked

socklen_t name_socket(const ChannelName& name, sockaddr_un* address) {
  std::memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  // The first byte stays zero: the name is in no file system.
  const int length = std::snprintf(address->sun_path + 1,
                                   sizeof address->sun_path - 1,
                                   "nofrag-ipc-%llu-%016llx",
                                   static_cast<unsigned long long>(name.process),
                                   static_cast<unsigned long long>(name.secret >> 32));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                static_cast<std::size_t>(length));
}

bool same_user(int peer) {
  ucred who{};
  socklen_t size = sizeof who;
  return ::getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 &&
         (who.uid == ::geteuid() || who.uid == 0);
}

// A peer that says nothing must not hold the thread up.
void set_patience(int peer) {
  timeval patience{};
  patience.tv_sec = 10;
  ::setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ::setsockopt(peer, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

bool send_all(int peer, const void* data, std::size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = ::send(peer, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) {
      continue;
    }
    if (sent <= 0) {
      return false;
    }
    at += sent;
    size -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool receive_all(int peer, void* data, std::size_t size) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = ::recv(peer, at, size, 0);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      return false;
    }
    at += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

// Room for the descriptors of one message.
struct Control {
  alignas(cmsghdr) char bytes[CMSG_SPACE(kPartsAMessage * sizeof(int))] = {};
};

bool send_parts(int peer, const ExportedPart* parts, std::size_t count) {
  std::uint64_t sizes[kPartsAMessage];
  int descriptors[kPartsAMessage];
  for (std::size_t i = 0; i < count; ++i) {
    sizes[i] = parts[i].size;
    descriptors[i] = parts[i].descriptor;
  }
  Control control;
  iovec data{sizes, count * sizeof sizes[0]};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = CMSG_SPACE(count * sizeof(int));
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(count * sizeof(int));
  std::memcpy(CMSG_DATA(header), descriptors, count * sizeof(int));
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(peer, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  // Sizes of a few hundred bytes go whole into an empty socket buffer.
  return sent == static_cast<ssize_t>(data.iov_len);
}

bool receive_parts(int peer, std::size_t count, std::vector<ExportedPart>* parts) {
  std::uint64_t sizes[kPartsAMessage];
  Control control;
  iovec data{sizes, count * sizeof sizes[0]};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  ssize_t got = 0;
  do {
    got = ::recvmsg(peer, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL);
  } while (got < 0 && errno == EINTR);
  std::size_t descriptors = 0;
  for (cmsghdr* header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr; header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const std::size_t here = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < here; ++i, ++descriptors) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof descriptor);
      parts->push_back({descriptor, descriptors < count ? sizes[descriptors] : 0});
    }
  }
  return got == static_cast<ssize_t>(data.iov_len) && descriptors == count;
}

void answer(int peer) {
  Request request{};
  if (!same_user(peer) || !receive_all(peer, &request, sizeof request)) {
    return;
  }
  ExportedBlock block;
  {
    // Duplicates, so that a free of the block meanwhile closes nothing that is being sent.
    const std::lock_guard lock(channel_mutex);
    for (const ExportedBlock& known : *offered) {
      if (request.secret == own_name.secret && known.id == request.id) {
        block = known;
        for (ExportedPart& part : block.parts) {
          part.descriptor = ::dup(part.descriptor);
        }
      }
    }
  }
  const Answer head{block.parts.size(), block.size, block.offset, block.device_in_exporter};
  bool sent = send_all(peer, &head, sizeof head);
  for (std::size_t i = 0; i < block.parts.size() && sent; i += kPartsAMessage) {
    sent = send_parts(peer, &block.parts[i], std::min(kPartsAMessage, block.parts.size() - i));
  }
  for (const ExportedPart& part : block.parts) {
    ::close(part.descriptor);
  }
}

void* serve(void* /*unused*/) {
  for (;;) {
    const int peer = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (peer < 0) {
      if (errno == EINTR || errno == ECONNABORTED || errno == EMFILE || errno == ENFILE) {
        ::usleep(1000);
        continue;
      }
      return nullptr;
    }
    set_patience(peer);
    answer(peer);
    ::close(peer);
  }
}

// All signals stay with the program's own threads.
bool start_server() {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread{};
  const bool started = ::pthread_create(&thread, &attributes, &serve, nullptr) == 0;
  ::pthread_attr_destroy(&attributes);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace

void close_parts(ExportedBlock& block) {
  for (const ExportedPart& part : block.parts) {
    ::close(part.descriptor);
  }
  block.parts.clear();
}

bool serve_exports(ChannelName* name) {
  const std::lock_guard lock(channel_mutex);
  if (own_name.process == 0) {
    if (offered == nullptr) {
      offered = new std::vector<ExportedBlock>;
    }
    ChannelName made;
    made.process = static_cast<std::uint64_t>(::getpid());
    if (::getrandom(&made.secret, sizeof made.secret, 0) !=
        static_cast<ssize_t>(sizeof made.secret)) {
      return false;
    }
    listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    const socklen_t length = name_socket(made, &address);
    if (listener < 0 ||
        ::bind(listener, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
        ::listen(listener, 64) != 0 || !start_server()) {
      if (listener >= 0) {
        ::close(listener);
        listener = -1;
      }
      return false;
    }
    own_name = made;
  }
  *name = own_name;
  return true;
}

void offer_export(const ExportedBlock& block) {
  const std::lock_guard lock(channel_mutex);
  offered->push_back(block);
}

void withdraw_export(std::uint64_t id) {
  const std::lock_guard lock(channel_mutex);
  std::erase_if(*offered, [&](const ExportedBlock& block) {
    if (block.id != id) {
      return false;
    }
    for (const ExportedPart& part : block.parts) {
      ::close(part.descriptor);
    }
    return true;
  });
}

bool fetch_export(const ChannelName& name, std::uint64_t id, ExportedBlock* block) {
  const int peer = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (peer < 0) {
    return false;
  }
  set_patience(peer);
  sockaddr_un address{};
  const socklen_t length = name_socket(name, &address);
  const Request request{name.secret, id};
  Answer head{};
  bool good = ::connect(peer, reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
              same_user(peer) && send_all(peer, &request, sizeof request) &&
              receive_all(peer, &head, sizeof head) && head.count > 0 && head.count <= kMostParts;
  for (std::uint64_t i = 0; good && i < head.count; i += kPartsAMessage) {
    good =
        receive_parts(peer, std::min<std::size_t>(kPartsAMessage, head.count - i), &block->parts);
  }
  ::close(peer);
  std::uint64_t total = 0;
  for (const ExportedPart& part : block->parts) {
    total += part.size;
  }
  good = good && head.offset < total && head.size <= total - head.offset;
  if (!good) {
    close_parts(*block);
    return false;
  }
  block->id = id;
  block->size = head.size;
  block->offset = head.offset;
  block->device_in_exporter = static_cast<int>(head.device);
  return true;
}

}  // namespace nofrag::preload
