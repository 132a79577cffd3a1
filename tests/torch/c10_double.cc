#include "c10_double.h"

#include <atomic>

namespace c10 {
namespace {

std::atomic<int> objects{0};

}  // namespace

Error::Error(SourceLocation source_location, std::string msg)
    : msg_(std::move(msg)),
      context_{source_location.function},
      what_(msg_ + " (from " + source_location.function + ")") {
  ++objects;
}

Error::~Error() {
  --objects;
}

const char* Error::what() const noexcept {
  return what_.c_str();
}

int Error::alive() {
  return objects;
}

}  // namespace c10
