// The C functions of libnofrag_torch_X_Y.so, which the Python package calls.
//
// Owns: nothing. Threads: install once, before the GPU is used; the others any time.
// Failure: nonzero, and nofrag_torch_native_error() says why; nothing was changed then.
#pragma once

#define NOFRAG_TORCH_API __attribute__((visibility("default")))

extern "C" {

// Puts nofrag in the place of PyTorch's CUDA allocator, if this is the PyTorch that the library was built for and
// its allocator is not in use yet. 0 = done, or done before.
NOFRAG_TORCH_API int nofrag_torch_native_install(void) noexcept;
// Why the last install failed; "" if none did. Static until the next one.
NOFRAG_TORCH_API const char* nofrag_torch_native_error(void) noexcept;
// "2.11": the releases that this library serves.
NOFRAG_TORCH_API const char* nofrag_torch_native_version(void) noexcept;
// 1 if nofrag is PyTorch's allocator now.
NOFRAG_TORCH_API int nofrag_torch_native_installed(void) noexcept;
}
