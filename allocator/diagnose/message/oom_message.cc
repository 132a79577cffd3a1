#include "diagnose/message/oom_message.h"

#include <algorithm>

#include "diagnose/message/text_scan.h"

namespace nofrag {
namespace {

// Text of which every second byte is zero.
std::string narrowed(std::string_view bytes, std::size_t first) {
  std::string text;
  text.reserve(bytes.size() / 2);
  for (std::size_t i = first; i < bytes.size(); i += 2) {
    text.push_back(bytes[i]);
  }
  return text;
}

// What pages and languages put between a number and its unit, or between thousands: how long it is, or 0.
std::size_t blank_of_several_bytes(std::string_view text, std::size_t at) {
  constexpr std::string_view kBlanks[] = {
      "\xc2\xa0", "\xe2\x80\xaf", "\xe2\x80\x89", "\xe2\x80\x87"};
  for (const std::string_view blank : kBlanks) {
    if (text.substr(at, blank.size()) == blank) {
      return blank.size();
    }
  }
  return 0;
}

}  // namespace

std::string plain_text(std::string_view bytes) {
  const auto starts = [&](const char* mark) {
    return bytes.substr(0, 2) == std::string_view(mark, 2);
  };
  // At every second byte; at all of them a log was cut while it was written.
  std::size_t zeros[2] = {0, 0};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    zeros[i % 2] += bytes[i] == '\0' ? 1U : 0U;
  }
  const auto [fewer, more] = std::minmax(zeros[0], zeros[1]);
  const bool wide = (fewer + more) * 4 > bytes.size() && fewer * 4 < more;
  std::string text;
  if (starts("\xff\xfe")) {
    text = narrowed(bytes, 2);
  } else if (starts("\xfe\xff")) {
    text = narrowed(bytes, 3);
  } else if (wide) {
    text = narrowed(bytes, !bytes.empty() && bytes[0] == '\0' ? 1 : 0);
  } else {
    text = std::string(bytes);
  }
  // Terminal colours, and zero bytes that are left.
  std::string plain;
  plain.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b' && i + 1 < text.size() && text[i + 1] == '[') {
      while (i < text.size() && (text[i] < '@' || text[i] == '[')) {
        ++i;
      }
      continue;
    }
    if (const std::size_t wide_blank = blank_of_several_bytes(text, i); wide_blank != 0) {
      plain.push_back(' ');
      i += wide_blank - 1;
      continue;
    }
    plain.push_back(text[i] == '\0' ? ' ' : text[i]);
  }
  return plain;
}

void detail::refuse_unclear(std::string_view message, Failure* failure) {
  if (const std::string_view size = negative_size(message); !size.empty()) {
    failure->impossible.push_back("the text states a size below zero: " + std::string(size));
  }
  if (const std::string_view size = ambiguous_size(message); !size.empty()) {
    failure->impossible.push_back(
        "a size can be read in two ways: " + std::string(size) +
        " (write it with a point, and without a comma between thousands)");
  }
}

namespace {

bool read_device_message(std::string_view text, OomMessage* message) {
  return detail::read_nofrag_message(text, message) || detail::read_torch_message(text, message) ||
         detail::read_bfc_message(text, message) ||
         detail::read_application_message(text, message) ||
         detail::read_other_message(text, message);
}

// One allocator's message is looked for after the other's, wherever they stand: the last failure counts.
void prefer_last(std::string_view text, OomMessage* message) {
  const std::string_view end = detail::text_of_last_failure(text);
  OomMessage last;
  if (!end.empty() && read_device_message(end, &last) && last.failure.requested &&
      last.failure.source != message->failure.source) {
    *message = std::move(last);
  }
}

}  // namespace

OomMessage read_oom_message(std::string_view text) {
  OomMessage message;
  if (detail::read_host_message(text, &message)) {
    detail::note_several_failures(text, &message.failure);
    return message;
  }
  OomMessage program;
  const bool of_program = detail::read_program_message(text, &program);
  const bool known = of_program
                         ? read_device_message(detail::without_program_messages(text), &message)
                         : read_device_message(text, &message);
  if (of_program && (!known || message.vague)) {
    return program;
  }
  if (!known && detail::guess_host_message(text, &message)) {
    return message;
  }
  if (known) {
    prefer_last(text, &message);
  }
  if (known && message.failure.moment == Moment::kUnknown) {
    message.failure.moment = detail::moment_near(text, detail::place_of(text, message.failure));
  }
  if (known) {
    detail::note_application(text, &message.failure);
    detail::note_several_failures(text, &message.failure);
  }
  return message;
}

}  // namespace nofrag
