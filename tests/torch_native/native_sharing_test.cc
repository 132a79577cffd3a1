// Tensors between processes: what a handle names, how it is opened, and what goes wrong.
#include <pthread.h>
#include <unistd.h>

#include <csignal>

#include <sys/wait.h>

#include "native_fixture.h"
#include "torch_plugin/native/sharing/descriptor_server.h"

namespace nofrag::test {
namespace {

using native::DescriptorServer;

class NativeSharingTest : public NativeTest {};

TEST_F(NativeSharingTest, AHandleOpensTheMemoryAndCountsUntilItIsLetGo) {
  const c10::DataPtr data = allocator().allocate(10 * kMiB);
  const torch_cuda::ShareableHandle shared = allocator().shareIpcHandle(data.get());
  EXPECT_GE(shared.offset, 0);
  std::shared_ptr<void> opened = allocator().getIpcDevPtr(shared.handle);
  ASSERT_NE(opened.get(), nullptr);
  EXPECT_NE(static_cast<char*>(opened.get()) + shared.offset, data.get());
  EXPECT_EQ(allocator().getIpcDevPtr(shared.handle), opened) << "opened once";
  const void* const base = opened.get();
  opened.reset();
  opened = allocator().getIpcDevPtr(shared.handle);
  EXPECT_NE(opened.get(), nullptr);
  (void)base;
}

// The wait would end a capture: the mapping goes when it may.
TEST_F(NativeSharingTest, WhatIsLetGoWhileAPoolIsFilledIsClosedLater) {
  constexpr PoolId kPool{0, 5};
  const c10::DataPtr data = allocator().allocate(10 * kMiB);
  std::shared_ptr<void> opened =
      allocator().getIpcDevPtr(allocator().shareIpcHandle(data.get()).handle);
  void* const base = opened.get();
  allocator().beginAllocateToPool(0, kPool, [](cudaStream_t) { return false; });
  opened.reset();
  EXPECT_EQ(nofrag_close_import(0, base), NOFRAG_CAPTURING);
  allocator().emptyCache({0, 0});
  allocator().endAllocateToPool(0, kPool);
  allocator().releasePool(0, kPool);
  EXPECT_EQ(nofrag_close_import(0, static_cast<char*>(base) + 1), NOFRAG_UNKNOWN_POINTER);
  allocator().emptyCache({0, 0});
  EXPECT_EQ(nofrag_close_import(0, base), NOFRAG_UNKNOWN_POINTER) << "it is closed already";
}

// Where the system has no more threads, sharing fails with a reason, and may be tried again.
TEST_F(NativeSharingTest, AServerWithoutAThreadIsAnError) {
  pthread_attr_t usual;
  ASSERT_EQ(::pthread_getattr_default_np(&usual), 0);
  pthread_attr_t huge;
  ASSERT_EQ(::pthread_attr_init(&huge), 0);
  ASSERT_EQ(::pthread_attr_setstacksize(&huge, std::size_t{1} << 47),
            0);  // all addresses there are
  sigset_t before;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  ASSERT_EQ(::pthread_setattr_default_np(&huge), 0);
  const std::string said = message_of([] { new DescriptorServer; });
  ASSERT_EQ(::pthread_setattr_default_np(&usual), 0);
  EXPECT_NE(said.find("no thread to share"), std::string::npos) << said;
  sigset_t after;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int signal = 1; signal < NSIG; ++signal) {
    EXPECT_EQ(sigismember(&after, signal), sigismember(&before, signal)) << signal;
  }
}

TEST_F(NativeSharingTest, BlocksOfOneAllocationHaveOneHandle) {
  const c10::DataPtr first = allocator().allocate(64 * kKiB);
  const c10::DataPtr second = allocator().allocate(64 * kKiB);
  const auto one = allocator().shareIpcHandle(first.get());
  const auto two = allocator().shareIpcHandle(second.get());
  EXPECT_EQ(one.handle, two.handle);
  EXPECT_EQ(two.offset - one.offset,
            static_cast<char*>(second.get()) - static_cast<char*>(first.get()));
  EXPECT_EQ(allocator().shareIpcHandle(first.get()).handle, one.handle) << "stable";
  // Anywhere inside the block.
  EXPECT_EQ(allocator().shareIpcHandle(static_cast<char*>(first.get()) + 512).offset,
            one.offset + 512);
}

TEST_F(NativeSharingTest, ABlockOfManyAllocationsIsMappedWhole) {
  std::vector<c10::DataPtr> pieces;
  for (int i = 0; i < 8; ++i) {
    pieces.push_back(allocator().allocate(32 * kMiB));
  }
  pieces.clear();
  const c10::DataPtr large = allocator().allocate(200 * kMiB);
  std::size_t parts = 0;
  ASSERT_EQ(nofrag_parts(large.get(), nullptr, &parts), NOFRAG_OK);
  EXPECT_GT(parts, 1U);
  const auto shared = allocator().shareIpcHandle(large.get());
  const std::shared_ptr<void> opened = allocator().getIpcDevPtr(shared.handle);
  EXPECT_NE(opened.get(), nullptr);
}

TEST_F(NativeSharingTest, WhatWentBackToTheDriverCannotBeOpened) {
  std::string handle;
  {
    const c10::DataPtr data = allocator().allocate(10 * kMiB);
    handle = allocator().shareIpcHandle(data.get()).handle;
  }
  allocator().emptyCache({0, 0});
  EXPECT_NE(message_of([&] { allocator().getIpcDevPtr(handle); }).find("no longer has its memory"),
            std::string::npos);
  const c10::DataPtr again = allocator().allocate(10 * kMiB);
  EXPECT_NE(allocator().shareIpcHandle(again.get()).handle, handle) << "names are never reused";
}

TEST_F(NativeSharingTest, DamagedHandlesAndForeignPointersAreRefused) {
  const c10::DataPtr data = allocator().allocate(kMiB);
  const std::string handle = allocator().shareIpcHandle(data.get()).handle;
  for (std::size_t length = 8; length < handle.size(); ++length) {
    EXPECT_NE(message_of([&] { allocator().getIpcDevPtr(handle.substr(0, length)); }), "")
        << length;
  }
  std::string damaged = handle;
  damaged[damaged.size() - 12] ^= 1;  // a name that nobody knows
  EXPECT_NE(message_of([&] { allocator().getIpcDevPtr(damaged); }), "");
  damaged = handle;
  damaged[30] ^= 1;  // a socket that nobody listens on
  EXPECT_NE(message_of([&] { allocator().getIpcDevPtr(damaged); }).find("cannot be reached"),
            std::string::npos);
  int on_the_host = 0;
  EXPECT_NE(
      message_of([&] { allocator().shareIpcHandle(&on_the_host); }).find("invalid device pointer"),
      std::string::npos);
}

// Descriptors cross to another process: here pipes, whose other ends show that they are the same.
TEST_F(NativeSharingTest, AnotherProcessGetsTheVeryDescriptors) {
  auto* const server = new DescriptorServer;  // for good
  constexpr std::size_t kMany = 300;          // more than one message holds
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  std::vector<std::uint64_t> names;
  for (std::size_t i = 0; i < kMany; ++i) {
    names.push_back(server->offer(ends[1]));
  }
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int status = 1;
    try {
      const std::vector<int> fetched = DescriptorServer::fetch(server->socket_name(), names);
      status = fetched.size() == kMany && ::write(fetched.back(), "x", 1) == 1 ? 0 : 2;
    } catch (const std::exception&) {
      status = 3;
    }
    ::_exit(status);
  }
  char said = 0;
  EXPECT_EQ(::read(ends[0], &said, 1), 1);
  EXPECT_EQ(said, 'x');
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  server->withdraw(names.front());
  EXPECT_NE(message_of([&] { DescriptorServer::fetch(server->socket_name(), names); }), "");
  EXPECT_EQ(DescriptorServer::fetch(server->socket_name(), {names.back()}).size(), 1U);
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace nofrag::test
