// UsageError, RunError and the program's exit codes.
//
// Layer: cli, an edge: exceptions live here and end in main(). Codes are part of the contract
// (docs/replay.md). Threads: values. Failure: these are the failures.
#pragma once

#include <stdexcept>
#include <string>

namespace nofrag {

enum class ExitCode : int {
  kOk = 0,
  kFault = 1,        // the machine or nofrag itself failed
  kUsage = 2,        // unknown option, allocator, device or configuration key; a bad value
  kBadInput = 3,     // an unreadable or corrupt trace
  kOutOfMemory = 4,  // some replay ended out of memory: a result, not an error
  // Of `run`, as shells have them.
  kNotExecutable = 126,
  kNotFound = 127,
};

class CliError : public std::runtime_error {
 public:
  CliError(ExitCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  [[nodiscard]] ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

class UsageError final : public CliError {
 public:
  explicit UsageError(const std::string& what) : CliError(ExitCode::kUsage, what) {}
};

class CommandNotFound final : public CliError {
 public:
  explicit CommandNotFound(const std::string& what) : CliError(ExitCode::kNotFound, what) {}
};

class CommandNotExecutable final : public CliError {
 public:
  explicit CommandNotExecutable(const std::string& what)
      : CliError(ExitCode::kNotExecutable, what) {}
};

class InputError final : public CliError {
 public:
  explicit InputError(const std::string& what) : CliError(ExitCode::kBadInput, what) {}
};

class RunError final : public CliError {
 public:
  explicit RunError(const std::string& what) : CliError(ExitCode::kFault, what) {}
};

}  // namespace nofrag
