#include "config/metrics_address.h"

#include <charconv>

#include <arpa/inet.h>

namespace nofrag {
namespace {

constexpr std::string_view kFile = "file:";
constexpr int kHighestPort = 65535;

}  // namespace

bool parse_metrics_address(std::string_view text, MetricsAddress* out) {
  const std::size_t colon = text.rfind(':');
  const std::string_view number = colon == std::string_view::npos ? text : text.substr(colon + 1);
  if (colon != std::string_view::npos) {
    out->host = text.substr(0, colon);
  }
  const char* const end = number.data() + number.size();
  // One number, one way to write it: "00" is no switch, and "-0" no port.
  if (number.empty() || number[0] == '-' || (number[0] == '0' && number.size() > 1)) {
    return false;
  }
  const auto [stop, error] = std::from_chars(number.data(), end, out->port);
  in_addr host{};
  return error == std::errc() && stop == end && out->port >= 0 && out->port <= kHighestPort &&
         ::inet_pton(AF_INET, out->host.c_str(), &host) == 1;
}

bool is_metrics_place(std::string_view text) {
  if (text.starts_with(kFile)) {
    return text.size() > kFile.size();
  }
  MetricsAddress address;
  return text == "off" || parse_metrics_address(text, &address);
}

bool has_ipv6_address(std::string_view text) {
  for (std::string_view host : {text, text.substr(0, text.rfind(':'))}) {
    if (host.starts_with('[') && host.ends_with(']')) {
      host = host.substr(1, host.size() - 2);
    }
    in6_addr address{};
    if (::inet_pton(AF_INET6, std::string(host.substr(0, host.find('%'))).c_str(), &address) == 1) {
      return true;
    }
  }
  return false;
}

}  // namespace nofrag
