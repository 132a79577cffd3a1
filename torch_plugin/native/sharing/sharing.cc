#include "torch_plugin/native/sharing/sharing.h"

#include <unistd.h>

#include <cstring>

#include <c10/util/Exception.h>

#include <nofrag/frameworks.h>

namespace nofrag::native {
namespace {

// "nofrag" and the version of what follows: the socket's name with its length, then the parts.
constexpr char kMagic[8] = {'n', 'o', 'f', 'r', 'a', 'g', '\0', '\1'};

struct Part {
  std::uint64_t name;
  std::uint64_t size;
};

std::string encode(const std::string& socket_name, const std::vector<Part>& parts) {
  std::string text(kMagic, sizeof kMagic);
  const std::uint64_t counts[2] = {socket_name.size(), parts.size()};
  text.append(reinterpret_cast<const char*>(counts), sizeof counts);
  text += socket_name;
  text.append(reinterpret_cast<const char*>(parts.data()), parts.size() * sizeof(Part));
  return text;
}

void decode(const std::string& text, std::string* socket_name, std::vector<Part>* parts) {
  std::uint64_t counts[2] = {};
  constexpr std::size_t kHead = sizeof kMagic + sizeof counts;
  TORCH_CHECK(text.size() >= kHead, "nofrag: a handle of a shared CUDA tensor is cut short");
  std::memcpy(counts, text.data() + sizeof kMagic, sizeof counts);
  const std::size_t left = text.size() - kHead;
  const bool fits = counts[0] <= left && (left - counts[0]) % sizeof(Part) == 0 &&
                    counts[1] == (left - counts[0]) / sizeof(Part) && counts[1] > 0;
  TORCH_CHECK(fits, "nofrag: a handle of a shared CUDA tensor is damaged");
  *socket_name = text.substr(kHead, counts[0]);
  parts->resize(counts[1]);
  std::memcpy(parts->data(), text.data() + kHead + counts[0], counts[1] * sizeof(Part));
}

class OwnDescriptor {
 public:
  explicit OwnDescriptor(int number) : number_(number) {}
  OwnDescriptor(const OwnDescriptor&) = delete;
  OwnDescriptor& operator=(const OwnDescriptor&) = delete;
  ~OwnDescriptor() { ::close(number_); }

 private:
  const int number_;
};

// Can what nofrag_close_import refused be had later? At exit, and in a forked child, nothing is left to undo.
bool waits(nofrag_status closed) {
  return closed != NOFRAG_OK && closed != NOFRAG_UNKNOWN_POINTER && closed != NOFRAG_FORKED &&
         closed != NOFRAG_EXITING;
}

[[noreturn]] void throw_reason() {
  const char* reason = nullptr;
  nofrag_last_error(&reason);
  TORCH_CHECK(false, "nofrag: ", reason);
}

void* map_parts(int device,
                const std::vector<int>& descriptors,
                const std::vector<std::uint64_t>& sizes) {
  void* base = nullptr;
  const nofrag_status status =
      nofrag_import(device, descriptors.data(), sizes.data(), sizes.size(), &base);
  for (const int descriptor : descriptors) {
    ::close(descriptor);
  }
  if (status != NOFRAG_OK) {
    throw_reason();
  }
  return base;
}

}  // namespace

bool Sharing::share(void* address, torch_cuda::ShareableHandle* shared) {
  std::size_t count = 0;
  if (nofrag_parts(address, nullptr, &count) == NOFRAG_UNKNOWN_POINTER) {
    return false;
  }
  std::vector<nofrag_part> parts(count);
  if (nofrag_parts(address, parts.data(), &count) != NOFRAG_OK || count == 0) {
    throw_reason();
  }
  std::vector<Part> encoded;
  for (const nofrag_part& part : parts) {
    const Exported exported = export_once(address, part.allocation, part.size);
    encoded.push_back({exported.name, exported.size});
  }
  const std::lock_guard lock(exports_mutex_);
  shared->offset = static_cast<char*>(address) - static_cast<char*>(parts.front().address);
  shared->handle = encode(server_->socket_name(), encoded);
  return true;
}

Sharing::Exported Sharing::export_once(void* address, std::uint64_t allocation, std::size_t size) {
  {
    const std::lock_guard lock(exports_mutex_);
    if (const auto found = exports_.find(allocation); found != exports_.end()) {
      return found->second;
    }
  }
  // nofrag is called without the mutex, which forget() takes under nofrag's lock. The block is live, so
  // that its allocation does not go meanwhile.
  int descriptor = -1;
  if (nofrag_export(address, allocation, &descriptor) != NOFRAG_OK) {
    throw_reason();
  }
  const OwnDescriptor own(descriptor);  // the server has its own
  const std::lock_guard lock(exports_mutex_);
  if (server_ == nullptr) {
    server_ = new DescriptorServer;
  }
  Exported exported{server_->offer(descriptor), size};
  const auto [kept, made] = exports_.emplace(allocation, exported);
  if (!made) {
    server_->withdraw(exported.name);  // another thread was first
  }
  return kept->second;
}

void Sharing::forget(std::uint64_t allocation) {
  const std::lock_guard lock(exports_mutex_);
  if (const auto found = exports_.find(allocation); found != exports_.end()) {
    server_->withdraw(found->second.name);
    exports_.erase(found);
  }
}

bool Sharing::is_ours(const std::string& handle) {
  return handle.size() >= sizeof kMagic && std::memcmp(handle.data(), kMagic, sizeof kMagic) == 0;
}

// (In a forked child no mutex is taken: a thread that is not there may have it.)
void Sharing::let_go(std::list<Mapped>& mapped) noexcept {
  const nofrag_status closed = nofrag_close_import(mapped.front().device, mapped.front().address);
  if (closed == NOFRAG_OK) {
    close_what_waits();
  } else if (waits(closed)) {
    const std::lock_guard lock(closing_mutex_);
    closing_.splice(closing_.end(), mapped);
  }
}

void Sharing::close_what_waits() noexcept {
  std::list<Mapped> waiting;
  {
    const std::lock_guard lock(closing_mutex_);
    waiting.swap(closing_);
  }
  waiting.remove_if([](const Mapped& mapped) {
    return !waits(nofrag_close_import(mapped.device, mapped.address));
  });
  const std::lock_guard lock(closing_mutex_);
  closing_.splice(closing_.end(), waiting);
}

std::shared_ptr<void> Sharing::open(int device, const std::string& handle) {
  close_what_waits();
  const std::lock_guard lock(open_mutex_);
  std::weak_ptr<void>& known = open_[{device, handle}];
  if (std::shared_ptr<void> open = known.lock()) {
    return open;
  }
  std::erase_if(open_, [](const auto& entry) { return entry.second.expired(); });
  std::string socket_name;
  std::vector<Part> parts;
  decode(handle, &socket_name, &parts);
  std::vector<std::uint64_t> names;
  std::vector<std::uint64_t> sizes;
  for (const Part& part : parts) {
    names.push_back(part.name);
    sizes.push_back(part.size);
  }
  // Made before the mapping: letting it go must not need memory of the host.
  auto mapped = std::make_shared<std::list<Mapped>>(1, Mapped{device, nullptr});
  void* const base = map_parts(device, DescriptorServer::fetch(socket_name, names), sizes);
  mapped->front().address = base;
  std::shared_ptr<void> open(base, [this, mapped](void* /*address*/) { let_go(*mapped); });
  open_[{device, handle}] = open;
  return open;
}

}  // namespace nofrag::native
