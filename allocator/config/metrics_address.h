// MetricsAddress: where metrics are served over HTTP, as a user writes it.
//
// Owns: a value. Layer: config (depends on base only). Units: ports are 0 to 65535; 0 is any free one. Threads: pure
// functions. Failure: what is no address is false. Whether it can be served shows only when it is tried.
#pragma once

#include <string>
#include <string_view>

namespace nofrag {

struct MetricsAddress {
  std::string host = "127.0.0.1";  // as IPv4 is written
  int port = -1;
};

// "9400" or "0.0.0.0:9400".
bool parse_metrics_address(std::string_view text, MetricsAddress* out);

// What the option `metrics` takes: an address, "file:PATH", "off" or "0".
bool is_metrics_place(std::string_view text);

// An address of IPv6, with or without brackets, a zone and a port.
bool has_ipv6_address(std::string_view text);

}  // namespace nofrag
