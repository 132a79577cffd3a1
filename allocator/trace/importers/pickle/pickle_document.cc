#include "trace/importers/pickle/pickle_document.h"

namespace nofrag {

const char* to_string(PickleType type) {
  constexpr const char* kNames[] = {"None",
                                    "a boolean",
                                    "a number",
                                    "a number",
                                    "a number",
                                    "a fraction",
                                    "a text",
                                    "bytes",
                                    "a list",
                                    "a tuple",
                                    "a set",
                                    "a dictionary"};
  return kNames[static_cast<std::size_t>(type)];
}

const std::vector<PickleValue>& PickleDocument::items(PickleValue value) const {
  return value.type() >= PickleType::kList ? containers_[value.payload()].items : nothing_;
}

std::uint64_t PickleDocument::offset(PickleValue value) const {
  return value.type() >= PickleType::kList ? containers_[value.payload()].offset : 0;
}

const PickleValue* PickleDocument::find(PickleValue dict, std::string_view key) const {
  if (dict.type() != PickleType::kDict) {
    return nullptr;
  }
  // The last of equal keys counts.
  const std::vector<PickleValue>& all = items(dict);
  for (std::size_t i = all.size(); i >= 2; i -= 2) {
    if (all[i - 2].type() == PickleType::kText && texts_[all[i - 2].payload()] == key) {
      return &all[i - 1];
    }
  }
  return nullptr;
}

std::optional<std::int64_t> PickleDocument::as_signed(PickleValue value) const {
  if (value.type() == PickleType::kInt) {
    return value.signed_payload();
  }
  if (value.type() == PickleType::kWideInt && (value.payload() & 1) == 0) {
    return static_cast<std::int64_t>(wide_[value.payload() / 2]);
  }
  return std::nullopt;
}

std::optional<std::uint64_t> PickleDocument::as_unsigned(PickleValue value) const {
  if (value.type() == PickleType::kWideInt && (value.payload() & 1) == 1) {
    return wide_[value.payload() / 2];
  }
  const std::optional<std::int64_t> number = as_signed(value);
  if (!number || *number < 0) {
    return std::nullopt;
  }
  return static_cast<std::uint64_t>(*number);
}

std::optional<std::string_view> PickleDocument::as_text(PickleValue value) const {
  if (value.type() != PickleType::kText) {
    return std::nullopt;
  }
  return texts_[value.payload()];
}

}  // namespace nofrag
