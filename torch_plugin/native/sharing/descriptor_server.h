// DescriptorServer: hands file descriptors to processes of the same user that know their names.
//
// A socket in the abstract namespace and a thread that answers on it: unlike pidfd_getfd it needs no right to
// trace the process, which containers and hardened systems do not give. The names are random enough that
// who has one was given it.
// Owns: the socket, the thread, duplicates of the descriptors it offers.
// Invariants: it answers only peers with this process's user id (or root).
// Threads: any. Failure: the constructor throws c10::Error; a peer that misbehaves is hung up on.
// Fork: a child has no thread, and the socket's name is its parent's.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace nofrag::native {

class DescriptorServer {
 public:
  DescriptorServer();
  DescriptorServer(const DescriptorServer&) = delete;
  DescriptorServer& operator=(const DescriptorServer&) = delete;
  ~DescriptorServer() = delete;  // its thread answers until the process ends

  [[nodiscard]] const std::string& socket_name() const { return socket_name_; }
  // A name for the descriptor, of which the server keeps its own duplicate until withdraw().
  std::uint64_t offer(int descriptor);
  void withdraw(std::uint64_t name);

  // In another process (or this one): the descriptors of these names, the caller's to close. Throws c10::Error
  // if the server is gone, or does not know one of them.
  static std::vector<int> fetch(const std::string& socket_name,
                                const std::vector<std::uint64_t>& names);

 private:
  static void* run(void* self);
  void serve();
  void answer(int peer);

  std::string socket_name_;
  int listener_ = -1;  // the thread's
  std::mutex mutex_;
  std::unordered_map<std::uint64_t, int> offered_;  // Sync: mutex_
};

}  // namespace nofrag::native
