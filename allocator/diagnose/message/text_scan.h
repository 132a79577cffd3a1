// text_scan: sizes and phrases in the text of a log.
//
// Layer: diagnose. Units: bytes; KB, MB and GB are read as KiB, MiB and GiB, as the programs that print
// them mean it. Invariants: never reads outside the text; any bytes are accepted. Threads: pure functions.
// Failure: empty, or kNowhere. Cost: one pass a phrase.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/units.h"

namespace nofrag {

inline constexpr std::size_t kNowhere = std::string_view::npos;

// "20.00 MiB", "1,073,741,824 bytes", "1.5GiB", "17": at the start of `text`, spaces skipped. "1,00 GiB" is 1.00 GiB in
// the print of many languages, "1.024,50 MiB" and "1 024,50 MiB" more than one GiB.
[[nodiscard]] std::optional<Bytes> size_at(std::string_view text);
// The size that follows the first `phrase`, and the one that stands before it.
[[nodiscard]] std::optional<Bytes> size_after(std::string_view text, std::string_view phrase);
[[nodiscard]] std::optional<Bytes> size_before(std::string_view text, std::string_view phrase);
// What a tensor takes of which "shape[24,1,2304] and type float" is said; empty if the text does not begin with that.
[[nodiscard]] std::optional<Bytes> tensor_size(std::string_view text);
// Is it said to be on TensorFlow's device CPU? The node that is named behind it may be on another device.
[[nodiscard]] bool is_tensor_on_cpu(std::string_view text);
// "-1.50 GiB" where a size could stand: what no memory is. Empty if there is none.
[[nodiscard]] std::string_view negative_size(std::string_view text);
// "1,073 GiB": a thousand and more, or one and a fraction. Empty if there is none.
[[nodiscard]] std::string_view ambiguous_size(std::string_view text);
// Where the last of it is, or kNowhere.
[[nodiscard]] std::size_t last_of(std::string_view text, std::string_view phrase);
// The last of which is_meant(where) holds, or kNowhere.
template <typename IsMeant>
[[nodiscard]] std::size_t last_meant(std::string_view text,
                                     std::string_view phrase,
                                     const IsMeant& is_meant) {
  std::size_t at = last_of(text, phrase);
  while (at != kNowhere && !is_meant(at)) {
    at = at == 0 ? kNowhere : last_of(text.substr(0, at + phrase.size() - 1), phrase);
  }
  return at;
}
[[nodiscard]] bool holds(std::string_view text, std::string_view phrase);
// Is it of a GPU: does a word of it name one, its memory or calls that concern it?
[[nodiscard]] bool names_gpu(std::string_view text);

}  // namespace nofrag
