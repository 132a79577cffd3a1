#include "driver/simulated/fault_script.h"

#include <algorithm>
#include <charconv>

namespace nofrag {
namespace {

constexpr Errc kInjectable[] = {Errc::kOutOfMemory,
                                Errc::kInvalidArgument,
                                Errc::kNotSupported,
                                Errc::kNotReady,
                                Errc::kNotInitialized,
                                Errc::kDriverFailure,
                                Errc::kCapturing};

// "out of memory" is written out_of_memory in scripts.
std::string script_name(Errc code) {
  std::string name = to_string(code);
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

std::optional<Errc> errc_from_name(std::string_view name) {
  for (const Errc code : kInjectable) {
    if (script_name(code) == name) {
      return code;
    }
  }
  return std::nullopt;
}

bool explain(std::string_view item, const std::string& what, std::string* error) {
  *error = "fault '" + std::string(item) + "': " + what;
  return false;
}

std::string known_codes() {
  std::string list;
  for (const Errc code : kInjectable) {
    list += (list.empty() ? "" : ", ") + script_name(code);
  }
  return list;
}

// CALL:N[+]=CODE
bool parse_item(std::string_view item, Fault* fault, std::string* error) {
  const std::size_t colon = item.find(':');
  const std::size_t equals = item.find('=');
  if (colon == std::string_view::npos || equals == std::string_view::npos || equals < colon) {
    return explain(item, "expected CALL:N=CODE, for example map:3=out_of_memory", error);
  }
  const std::string_view call = item.substr(0, colon);
  if (call != "any") {
    DriverCall parsed{};
    if (!driver_call_from_name(call, &parsed)) {
      return explain(item, "unknown call '" + std::string(call) + "'", error);
    }
    fault->call = parsed;
  }
  std::string_view number = item.substr(colon + 1, equals - colon - 1);
  if (!number.empty() && number.back() == '+') {
    fault->from_then_on = true;
    number.remove_suffix(1);
  }
  const auto [end, failure] =
      std::from_chars(number.data(), number.data() + number.size(), fault->nth);
  if (failure != std::errc() || end != number.data() + number.size() || fault->nth == 0) {
    return explain(item, "expected a call number from 1 up after ':'", error);
  }
  const std::optional<Errc> code = errc_from_name(item.substr(equals + 1));
  if (!code) {
    return explain(item, "expected one of " + known_codes() + " after '='", error);
  }
  fault->code = *code;
  return true;
}

}  // namespace

bool FaultScript::parse(std::string_view text, std::string* error) {
  std::vector<Fault> parsed;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    Fault fault;
    if (!parse_item(text.substr(0, comma), &fault, error)) {
      return false;
    }
    parsed.push_back(fault);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  faults_.insert(faults_.end(), parsed.begin(), parsed.end());
  return true;
}

Errc FaultScript::count_call(DriverCall call) {
  Errc result = Errc::kOk;
  for (Fault& fault : faults_) {
    if (fault.call && *fault.call != call) {
      continue;
    }
    if (fault.nth > 1) {
      --fault.nth;
    } else if (fault.nth == 1) {
      result = fault.code;
      // 0 = spent.
      fault.nth = fault.from_then_on ? 1 : 0;
    }
  }
  std::erase_if(faults_, [](const Fault& fault) { return fault.nth == 0; });
  return result;
}

}  // namespace nofrag
