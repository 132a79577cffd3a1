#include "config/human_bytes.h"

#include <array>
#include <cstdio>
#include <utility>

namespace nofrag {
namespace {

constexpr Bytes kTiB = 1024 * kGiB;

}  // namespace

std::string torch_bytes(Bytes bytes) {
  constexpr std::array<std::pair<Bytes, const char*>, 3> kUnits = {
      {{kGiB, "GiB"}, {kMiB, "MiB"}, {kKiB, "KiB"}}};
  for (const auto& [unit, name] : kUnits) {
    if (bytes >= unit) {
      char text[32];
      const double value = static_cast<double>(bytes.count()) / static_cast<double>(unit.count());
      std::snprintf(text, sizeof text, "%.2f %s", value, name);
      return text;
    }
  }
  return std::to_string(bytes.count()) + " B";
}

std::string human_bytes(Bytes bytes) {
  if (bytes < kTiB) {
    return torch_bytes(bytes);
  }
  char text[32];
  std::snprintf(text,
                sizeof text,
                "%.2f TiB",
                static_cast<double>(bytes.count()) / static_cast<double>(kTiB.count()));
  return text;
}

}  // namespace nofrag
