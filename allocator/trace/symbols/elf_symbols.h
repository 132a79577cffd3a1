// name_addresses: which functions of a program's or library's file these addresses are in.
//
// Owns: nothing; reads the file. Layer: trace. Units: addresses as the file's own symbol table has them.
// Invariants: the path comes from a trace, which may say anything: only a plain file is opened, every offset in it is
// checked, and a file that is another build than the recording's answers nothing.
// Threads: none. Failure: no names. Cost: one pass over the symbol tables, whatever the number of addresses.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nofrag {

struct NamedAddress {
  std::uint64_t address = 0;
  std::string function;  // as it is in the file (mangled); empty if there is none
};

// `build_id`: its bytes; empty if the recording's module had none.
void name_addresses(const std::string& path,
                    const std::string& build_id,
                    std::vector<NamedAddress>* addresses);

// The build id that the file has: "" if it has none, or cannot be read.
std::string build_id_of_file(const std::string& path);

}  // namespace nofrag
