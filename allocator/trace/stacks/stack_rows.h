// The rows of MODULES and STACKS blocks (include/nofrag/trace_format.h), written again and read.
//
// Owns: nothing. Layer: trace. Threads: pure functions. Failure: reading trusts nothing: a number that comes twice or
// that nothing defines, more frames than anybody keeps or bytes that end too early are refused with *why.
// Cost: one pass.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "trace/record/recording.h"

namespace nofrag {

void append_module(std::uint32_t number, const Recording::Module& module, std::string* rows);
void append_stack(std::uint32_t site, const Recording::Stack& stack, std::string* rows);

bool decode_modules(std::string_view payload,
                    std::uint32_t items,
                    std::map<std::uint32_t, Recording::Module>* modules,
                    std::string* why);
bool decode_stacks(std::string_view payload,
                   std::uint32_t items,
                   const std::map<std::uint32_t, Recording::Module>& modules,
                   std::map<std::uint32_t, Recording::Stack>* stacks,
                   std::string* why);

}  // namespace nofrag
