#include "torch_plugin/torch_error.h"

#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "runtime/log.h"

namespace nofrag {
namespace {

// c10::SourceLocation, by value in c10::Error's constructor.
struct SourceLocation {
  const char* function;
  const char* file;
  std::uint32_t line;
};

// A std::string of either ABI lives in storage that we only pass along: made, read and destroyed by
// the process's own libstdc++.
struct alignas(std::max_align_t) StringStorage {
  unsigned char bytes[64];
};

using ErrorConstructor = void (*)(void* self, SourceLocation where, StringStorage* message);
using StringConstructor = void (*)(StringStorage* self, const char* text, const void* allocator);
using StringDestructor = void (*)(StringStorage* self);
using AllocateException = void* (*)(std::size_t size);
using ObjectDestructor = void (*)(void* object);
using Throw = void (*)(void* object, void* type, ObjectDestructor destructor);
using ThrowRuntimeError = void (*)(const char* message);

// c10::Error is about 130 bytes in today's PyTorch; room for it to grow.
constexpr std::size_t kExceptionBytes = 2048;

struct MangledNames {
  const char* error_constructor[2];
  const char* string_constructor;
  const char* string_destructor;
};
// PyTorch built with the current and with the older string ABI (wheels up to 2.6).
constexpr MangledNames kNames[] = {
    {{"_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
      "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"},
     "_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEC1EPKcRKS3_",
     "_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEED1Ev"},
    {{"_ZN3c105ErrorC1ENS_14SourceLocationESs", "_ZN3c105ErrorC2ENS_14SourceLocationESs"},
     "_ZNSsC1EPKcRKSaIcE",
     "_ZNSsD1Ev"},
};

// The loaded libraries that may hold what we look for. PyTorch's are opened RTLD_LOCAL, so a global
// lookup does not see them; a handle by path does.
class LoadedLibraries {
 public:
  LoadedLibraries() { ::dl_iterate_phdr(&LoadedLibraries::note, this); }
  LoadedLibraries(const LoadedLibraries&) = delete;
  LoadedLibraries& operator=(const LoadedLibraries&) = delete;
  ~LoadedLibraries() = default;

  // A handle sees its library and what that one links, in load order.
  void* find(const char* library_prefix, const char* symbol) const {
    for (std::size_t i = 0; i < count_; ++i) {
      const char* slash = std::strrchr(paths_[i], '/');
      const char* name = slash == nullptr ? paths_[i] : slash + 1;
      if (std::strncmp(name, library_prefix, std::strlen(library_prefix)) != 0) {
        continue;
      }
      void* handle = ::dlopen(paths_[i], RTLD_LAZY | RTLD_NOLOAD);
      if (handle == nullptr) {
        continue;
      }
      void* address = ::dlsym(handle, symbol);
      ::dlclose(handle);  // it stays loaded: we only looked
      if (address != nullptr) {
        return address;
      }
    }
    return nullptr;
  }

 private:
  static constexpr std::size_t kMost = 64;

  // Under the loader's lock: copy names, open nothing. The strings live as long as the libraries.
  static int note(dl_phdr_info* info, std::size_t /*size*/, void* self) {
    auto* libraries = static_cast<LoadedLibraries*>(self);
    const char* path = info->dlpi_name;
    const bool wanted = path != nullptr && (std::strstr(path, "libc10") != nullptr ||
                                            std::strstr(path, "libtorch") != nullptr ||
                                            std::strstr(path, "libstdc++") != nullptr);
    if (wanted && libraries->count_ < kMost) {
      libraries->paths_[libraries->count_++] = path;
    }
    return 0;
  }

  const char* paths_[kMost] = {};
  std::size_t count_ = 0;
};

template <typename Function>
Function as_function(void* address) {
  return reinterpret_cast<Function>(address);
}

struct TorchRuntime {
  ErrorConstructor construct = nullptr;
  StringConstructor make_string = nullptr;
  StringDestructor destroy_string = nullptr;
  AllocateException allocate = nullptr;
  Throw raise = nullptr;
  void* type = nullptr;
  void** vtable = nullptr;  // null: no library emitted it; c10::Error's own does as well

  [[nodiscard]] bool complete() const {
    return construct != nullptr && make_string != nullptr && destroy_string != nullptr &&
           allocate != nullptr && raise != nullptr && type != nullptr;
  }
};

// Types may be emitted by any of PyTorch's libraries; they are compared by name when caught.
void* find_type_part(const LoadedLibraries& libraries, const char* symbol) {
  void* address = libraries.find("libc10", symbol);
  return address != nullptr ? address : libraries.find("libtorch", symbol);
}

TorchRuntime find_torch(const LoadedLibraries& libraries, TorchException kind) {
  constexpr const char* kCore = "libc10.so";
  TorchRuntime torch;
  for (const MangledNames& names : kNames) {
    void* constructor = libraries.find(kCore, names.error_constructor[0]);
    if (constructor == nullptr) {
      constructor = libraries.find(kCore, names.error_constructor[1]);
    }
    if (constructor != nullptr) {
      torch.construct = as_function<ErrorConstructor>(constructor);
      torch.make_string =
          as_function<StringConstructor>(libraries.find(kCore, names.string_constructor));
      torch.destroy_string =
          as_function<StringDestructor>(libraries.find(kCore, names.string_destructor));
      break;
    }
  }
  torch.allocate =
      as_function<AllocateException>(libraries.find(kCore, "__cxa_allocate_exception"));
  torch.raise = as_function<Throw>(libraries.find(kCore, "__cxa_throw"));
  const bool oom = kind == TorchException::kOutOfMemory;
  torch.type = find_type_part(libraries, oom ? "_ZTIN3c1016OutOfMemoryErrorE" : "_ZTIN3c105ErrorE");
  torch.vtable = static_cast<void**>(
      find_type_part(libraries, oom ? "_ZTVN3c1016OutOfMemoryErrorE" : "_ZTVN3c105ErrorE"));
  return torch;
}

void throw_with(const TorchRuntime& torch, const char* message) {
  // What a std::allocator<char> is to the string's constructor: an address that is never read.
  const char allocator = 0;
  StringStorage text{};
  torch.make_string(&text, message, &allocator);
  void* error = torch.allocate(kExceptionBytes);
  torch.construct(error, {"nofrag_torch_alloc", "nofrag", 0}, &text);
  torch.destroy_string(&text);
  // What is caught is decided by the type given to the throw. The object differs from a c10::Error
  // in its virtual table alone, because c10::OutOfMemoryError adds no member.
  void** functions = nullptr;
  if (torch.vtable != nullptr) {
    functions = torch.vtable + 2;  // before them: offset to the top, type
    std::memcpy(error, static_cast<const void*>(&functions), sizeof functions);
  }
  std::memcpy(static_cast<void*>(&functions), error, sizeof functions);
  torch.raise(error, torch.type, as_function<ObjectDestructor>(functions[0]));
}

}  // namespace

void throw_torch_error(TorchException kind, const char* message) {
  const LoadedLibraries libraries;
  const TorchRuntime torch = find_torch(libraries, kind);
  if (torch.complete()) {
    throw_with(torch, message);
  }
  void* fallback = libraries.find("libstdc++.so", "_ZSt21__throw_runtime_errorPKc");
  if (fallback != nullptr) {
    as_function<ThrowRuntimeError>(fallback)(message);
  }
  if (first_time(OnceMessage::kNoException)) {
    log_line(LogLevel::kWarning,
             "an allocation failed, and this process has no C++ runtime to throw in; the hook "
             "returns NULL (said once): %s",
             message);
  }
}

}  // namespace nofrag
