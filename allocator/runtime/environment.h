// environment: the process's environment variables, for the layers that may ask (tests/lint/layers.txt).
//
// Owns: nothing. Layer: runtime. Threads: any, as long as nobody changes the environment meanwhile.
// Failure: a variable that is not set is the empty string. Cost: one walk over the environment.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nofrag {

// pre: `name` ends in a zero byte. Valid until the environment is changed.
[[nodiscard]] const char* environment(const char* name);

// Names and values of all whose name begins with `prefix`, in whatever case.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> environment_with(
    std::string_view prefix);

// For programs that this process starts or becomes. pre: nobody else reads the environment meanwhile.
void set_environment(const char* name, const std::string& value);

}  // namespace nofrag
