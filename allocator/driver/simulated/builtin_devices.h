// The device files of sim/, as they were when the program was built.
//
// Owns: nothing; constants of a source file that CMake writes (allocator/driver/CMakeLists.txt).
// Layer: driver. In alphabetical order of name. Threads: immutable.
#pragma once

#include <span>
#include <string_view>

namespace nofrag {

struct BuiltinDevice {
  std::string_view name;  // "h100-80g"
  std::string_view text;
};

std::span<const BuiltinDevice> builtin_device_files();

}  // namespace nofrag
