#include "base/object_pool.h"

#include <unistd.h>

#include <atomic>

#include <sys/mman.h>

namespace nofrag {
namespace {

std::atomic<std::size_t> mapped_bytes{0};

}  // namespace

void* map_host_pages(std::size_t bytes) {
  void* address =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    return nullptr;
  }
  mapped_bytes.fetch_add(bytes, std::memory_order_relaxed);
  return address;
}

void* map_huge_host_pages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t whole = (bytes + page - 1) / page * page;
  const std::size_t wanted = whole + kHugePage;
  void* address =
      ::mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    return nullptr;
  }
  // What is before and behind the aligned part goes back.
  auto* const from = static_cast<std::byte*>(address);
  const std::size_t before =
      (kHugePage - reinterpret_cast<std::uintptr_t>(from) % kHugePage) % kHugePage;
  if (before > 0) {
    ::munmap(from, before);
  }
  ::munmap(from + before + whole, kHugePage - before);
  // Refused where there are none: then not.
  ::madvise(from + before, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  mapped_bytes.fetch_add(bytes, std::memory_order_relaxed);
  return from + before;
}

void unmap_host_pages(void* address, std::size_t bytes) {
  ::munmap(address, bytes);
  mapped_bytes.fetch_sub(bytes, std::memory_order_relaxed);
}

void discard_host_pages(void* address, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (bytes > page) {
    ::madvise(static_cast<std::byte*>(address) + page, bytes - page, MADV_DONTNEED);
  }
}

std::size_t host_page_bytes() {
  return mapped_bytes.load(std::memory_order_relaxed);
}

}  // namespace nofrag
