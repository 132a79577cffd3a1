#include "torch_plugin/native/install.h"

#include <dlfcn.h>

#include <fstream>
#include <string>

#include "torch_plugin/native/adapter.h"
#include "torch_plugin/native/native_allocator.h"

namespace nofrag::native {
namespace {

#define NOFRAG_TEXT_OF(number) #number
#define NOFRAG_TEXT(number) NOFRAG_TEXT_OF(number)
constexpr const char* kVersion = "2." NOFRAG_TEXT(NOFRAG_TORCH_MINOR);

std::string& last_error() {
  static std::string* const text = new std::string;
  return *text;
}

// The folder of the PyTorch that this process runs: its library knows where it came from.
std::string torch_folder() {
  Dl_info info{};
  if (::dladdr(&torch_cuda::allocator, &info) == 0 || info.dli_fname == nullptr) {
    return {};
  }
  const std::string library = info.dli_fname;
  const std::size_t name = library.rfind('/');
  return name == std::string::npos ? "." : library.substr(0, name) + "/..";
}

// "2.11.0+cu130", from the line __version__ = '...' of torch/version.py; empty if there is none.
std::string running_version() {
  std::ifstream file(torch_folder() + "/version.py");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("__version__", 0) == 0) {
      const std::size_t begin = line.find_first_of("'\"");
      const std::size_t end = line.find_last_of("'\"");
      return begin < end ? line.substr(begin + 1, end - begin - 1) : std::string();
    }
  }
  return {};
}

bool serves(const std::string& version) {
  const std::string wanted = kVersion;
  return version.rfind(wanted, 0) == 0 &&
         (version.size() == wanted.size() || version[wanted.size()] == '.');
}

std::string install() {
  CUDAAllocator* const before = torch_cuda::allocator.load();
  if (before == &adapter()) {
    return {};
  }
  const std::string running = running_version();
  if (!serves(running)) {
    return "this library was built for PyTorch " + std::string(kVersion) + ", and this is " +
           (running.empty() ? "one whose version is not to be found (" + torch_folder() +
                                  "/version.py)"
                            : "PyTorch " + running);
  }
  if (before == nullptr) {
    return "PyTorch has no CUDA allocator yet";
  }
  if (before->name() != "native") {
    return "PyTorch runs its backend \"" + before->name() +
           "\", which was asked for; nofrag stands in for the native one";
  }
  if (before->initialized()) {
    return "CUDA is in use in this process already: install nofrag right after `import torch`";
  }
  NativeAllocator::instance().set_previous(before);
  // Both ways in which PyTorch finds it.
  torch_cuda::allocator.store(&adapter());
  c10::SetAllocator(c10::kCUDA, &adapter(), 0);
  return {};
}

}  // namespace

Adapter& adapter() {
  static Adapter* const object = new Adapter;
  return *object;
}

}  // namespace nofrag::native

int nofrag_torch_native_install(void) noexcept {
  std::string& error = nofrag::native::last_error();
  try {
    error = nofrag::native::install();
  } catch (const std::exception& problem) {
    error = problem.what();
  } catch (...) {
    error = "an exception of no known kind";
  }
  return error.empty() ? 0 : 1;
}

const char* nofrag_torch_native_error(void) noexcept {
  return nofrag::native::last_error().c_str();
}

const char* nofrag_torch_native_version(void) noexcept {
  return nofrag::native::kVersion;
}

int nofrag_torch_native_installed(void) noexcept {
  return c10::cuda::CUDACachingAllocator::allocator.load() == &nofrag::native::adapter() ? 1 : 0;
}
