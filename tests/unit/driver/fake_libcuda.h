// A libcuda.so.1 in software: what a test sets on it and what it saw.
//
// It checks what the simulated driver cannot: the handling around the calls (contexts, capture
// modes, refused flags, error numbers). It does not check memory rules.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace nofrag {

struct FakeCuda {
  // Set by the test.
  int driver_version = 13000;
  int init_result = 0;
  int devices = 2;
  bool virtual_memory = true;
  bool rdma_attribute = true;
  int rdma_create_result = 0;       // of a create that asks for the RDMA flag
  int rdma_access_result = 0;       // of set_access on memory that has it
  std::map<std::string, int> fail;  // entry -> what it returns, until erased
  bool implicit_capture = false;    // cuStreamIsCapturing answers 906
  int current_device = -1;          // device of the caller's own current context; -1 = none

  bool own_context = false;  // and that one is not the primary context

  // Seen.
  std::vector<std::string> calls;            // entries that the list below does not name
  std::map<std::string, int> wrong_context;  // entry -> times called without its device current
  std::map<std::string, int> unrelaxed;      // entry -> times called in global capture mode
  std::vector<std::string> synchronized;     // contexts waited for: "primary" or "own"
  int retains = 0;
  int releases = 0;
  int pushes = 0;
  int pops = 0;
  int mode_changes = 0;
  int handles = 0;
  int mappings = 0;
  int reservations = 0;
  unsigned handle_types = 0;  // of the last create
  bool rdma_flag = false;     // of the last create
};

}  // namespace nofrag

// The one instance; looked up in the loaded library.
using FakeCudaState = nofrag::FakeCuda* (*)();
inline constexpr const char* kFakeCudaStateSymbol = "fake_cuda_state";
