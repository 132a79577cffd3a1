// nofrag's own message (device/report.cc) and the verdict appended to it (diagnose/report.cc).
#include <charconv>

#include "diagnose/message/oom_message.h"
#include "diagnose/message/text_scan.h"

namespace nofrag::detail {
namespace {

constexpr std::size_t kLongestSentence = 4000;

void read_verdict(std::string_view text, OomMessage* message) {
  constexpr std::string_view kCause = "cause: ";
  const std::size_t at = text.find(kCause);
  if (at == std::string_view::npos) {
    return;
  }
  const std::string_view rest = text.substr(at + kCause.size());
  for (std::size_t i = 0; i < kCauseCount; ++i) {
    const auto cause = static_cast<Cause>(i);
    const std::string_view word = to_string(cause);
    if (rest.substr(0, word.size()) != word) {
      continue;
    }
    message->said_cause = cause;
    const std::size_t open = rest.find('(');
    int percent = 0;
    if (open != std::string_view::npos) {
      const std::string_view number = rest.substr(open + 1, 3);
      std::from_chars(number.data(), number.data() + number.size(), percent);
    }
    message->said_confidence = static_cast<double>(percent) / 100;
  }
}

}  // namespace

bool read_nofrag_message(std::string_view text, OomMessage* message) {
  const std::size_t at = last_of(text, "nofrag holds ");
  const std::size_t tried =
      at == std::string_view::npos ? at : last_of(text.substr(0, at), "tried to allocate ");
  if (tried == std::string_view::npos) {
    return false;
  }
  const std::string_view one = text.substr(tried, kLongestSentence);
  Failure f;
  f.source = "nofrag";
  f.remapping = true;
  f.requested = size_after(one, "tried to allocate ");
  f.limit = size_after(one, "The limit of ");
  f.limit_reached = f.limit.has_value();
  f.live = size_before(one, "live,");
  f.pending = size_before(one, "waiting for streams");
  const Bytes kept = size_before(one, "kept by threads").value_or(Bytes(0));
  const std::optional<Bytes> handles = size_before(one, "free in whole handles");
  const Bytes ends = size_after(one, "up to ").value_or(Bytes(0));
  f.stranded = size_before(one, "in the middle of used ones");
  if (handles) {
    f.reachable = *handles + ends + kept;
  }
  const std::optional<Bytes> reserved = size_after(one, "nofrag holds ");
  if (reserved && f.live) {
    f.cached = *reserved > *f.live ? *reserved - *f.live : Bytes(0);
    const Bytes usable = f.reachable.value_or(*f.cached) + f.pending.value_or(Bytes(0));
    f.beside_live = *f.cached - std::min(*f.cached, usable);
  }
  const std::size_t driver = one.find("The driver has ");
  if (driver != std::string_view::npos) {
    f.driver_free = size_after(one.substr(driver), "The driver has ");
    f.capacity = size_after(one.substr(driver), " of ");
  }
  refuse_unclear(one, &f);
  message->failure = std::move(f);
  read_verdict(one, message);
  return true;
}

}  // namespace nofrag::detail
