// throw_torch_error: PyTorch's own exceptions, thrown from a library that links neither PyTorch nor
// libstdc++.so.
//
// CUDAPluggableAllocator takes a null pointer for a valid block, so the only way to report a failed
// allocation is to throw. Code above catches c10::OutOfMemoryError (torch.OutOfMemoryError), so
// that very type must be thrown, through the C++ runtime that PyTorch runs on: the one that is
// linked statically into this library has its own state. Everything needed is therefore looked up,
// at the first failure, among the libraries that the process has loaded. Layer: torch_plugin. Owns:
// nothing. Threads: any. Failure: where PyTorch's symbols are missing or have changed,
// std::runtime_error with the same message is thrown through the process's libstdc++; where there
// is none, the function prints the message once and returns, and the caller can only return null.
// Rule for callers: no live object with a destructor in any frame between here and the hook.
// Cost: a walk over the loaded libraries, about 100 us a throw.
// Decision: docs/pytorch.md, "Out of memory".
#pragma once

namespace nofrag {

enum class TorchException : unsigned char {
  kOutOfMemory,  // c10::OutOfMemoryError: torch.OutOfMemoryError in Python
  kError,        // c10::Error: RuntimeError in Python
};

void throw_torch_error(TorchException kind, const char* message);

}  // namespace nofrag
