// FaultScript: which of the coming driver calls are to fail, and how.
//
// Owns: the pending faults. Layer: driver. Units: calls, counted from the moment a fault is added;
// the next call is number 1. A call that is made to fail changes nothing and is still counted.
// Threads: none; the owner's lock covers it. Failure: parse() leaves the script untouched and says
// what it expected. Cost: one comparison a call while the script is empty.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "driver/driver.h"

namespace nofrag {

struct Fault {
  std::optional<DriverCall> call;  // none = any call
  std::uint64_t nth = 1;
  Errc code = Errc::kDriverFailure;
  bool from_then_on = false;  // every matching call from the nth on fails, not just that one
};

class FaultScript {
 public:
  void add(const Fault& fault) { faults_.push_back(fault); }
  void clear() { faults_.clear(); }
  // "map:3=out_of_memory,any:17+=driver_failure": the third map, and every call from the 17th on.
  bool parse(std::string_view text, std::string* error);

  // Counts one call. The code to fail it with; kOk = let it pass.
  Errc next(DriverCall call) { return faults_.empty() ? Errc::kOk : count_call(call); }
  [[nodiscard]] bool empty() const { return faults_.empty(); }

 private:
  Errc count_call(DriverCall call);

  std::vector<Fault> faults_;
};

}  // namespace nofrag
