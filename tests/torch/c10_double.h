// As much of c10's exception types as the hooks touch: the same names, the same mangling, the same
// kind of class (virtual, larger than std::exception, a derived type without members).
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace c10 {

struct SourceLocation {
  const char* function;
  const char* file;
  std::uint32_t line;
};

class Error : public std::exception {
 public:
  Error(SourceLocation source_location, std::string msg);
  Error(const Error&) = default;
  Error& operator=(const Error&) = default;
  ~Error() override;
  [[nodiscard]] const char* what() const noexcept override;
  [[nodiscard]] const std::string& msg() const { return msg_; }
  static int alive();

 private:
  std::string msg_;
  std::vector<std::string> context_;
  std::string what_;
};

class OutOfMemoryError : public Error {
  using Error::Error;
};

}  // namespace c10
