// Umpire's replay log, one JSON object a line, in both its forms: {kind, event, payload, result} of the older
// versions, {category, name, numeric_args, string_args, tags} of the newer.
#include <unordered_map>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "trace/importers/importer.h"
#include "trace/importers/line_reader.h"

namespace nofrag {
namespace {

using nlohmann::json;

constexpr const char* kUmpireExpected =
    "a line of Umpire's replay log (UMPIRE_REPLAY=On): a JSON object";
constexpr std::size_t kLongestUmpireLine = std::size_t{1} << 20;
constexpr int kMostParents = 64;

const json* member(const json& object, const char* key) {
  if (!object.is_object()) {
    return nullptr;
  }
  const auto at = object.find(key);
  return at == object.end() ? nullptr : &*at;
}

std::string text_of(const json* value) {
  return value != nullptr && value->is_string() ? value->get_ref<const std::string&>()
                                                : std::string();
}

std::optional<std::uint64_t> number_of(const json* value) {
  if (value == nullptr) {
    return std::nullopt;
  }
  if (value->is_number_unsigned()) {
    return value->get<std::uint64_t>();
  }
  return value->is_string() ? parse_unsigned(value->get_ref<const std::string&>()) : std::nullopt;
}

// The one allocator that the strings inside name first: what a pool takes its memory from.
void collect_texts(const json& value, std::vector<std::string>* texts, int depth) {
  if (value.is_string()) {
    texts->push_back(value.get_ref<const std::string&>());
  } else if (value.is_structured() && depth < 4) {
    for (const json& one : value) {
      collect_texts(one, texts, depth + 1);
    }
  }
}

class UmpireReader {
 public:
  UmpireReader(ByteWindow& input, const std::string& name)
      : lines_(input, name, kLongestUmpireLine), name_(name) {}
  ImportError read(std::vector<Trace>* traces);

 private:
  struct Allocator {
    std::string name;
    std::string parent;  // key, or nothing
    bool is_resource = false;
  };
  struct Operation {
    std::string kind;  // as the newer form calls it
    std::string allocator;
    std::optional<std::uint64_t> pointer;
    std::optional<std::uint64_t> size;
    std::uint64_t time_us = 0;
  };
  struct Item {
    EventList::Event event;
    std::string allocator;
    bool is_free = false;
  };

  bool fail(std::string found, std::string expected) {
    error_ = error_at_line(
        name_, std::max<std::uint64_t>(lines_.number(), 1), std::move(found), std::move(expected));
    return false;
  }
  bool read_line(std::string_view text);
  bool read_old(const json& line, Operation* operation);
  bool read_new(const json& line, Operation* operation);
  bool begin_reallocation();
  bool end_reallocation(const json& payload, const json& result, Operation operation);
  bool play(const Operation& operation);
  void add_allocator(const std::string& key,
                     const std::string& name,
                     bool is_resource,
                     const json& line);
  [[nodiscard]] bool on_host(const std::string& allocator) const;
  ImportError build(std::vector<Trace>* traces);

  LineReader lines_;
  const std::string& name_;
  std::unordered_map<std::string, Allocator> allocators_;  // by reference
  std::unordered_map<std::string, std::string> keys_;      // by name
  std::vector<Item> items_;
  std::size_t items_before_reallocation_ = 0;
  std::uint64_t reallocated_ = 0;
  ImportError error_;
};

void UmpireReader::add_allocator(const std::string& key,
                                 const std::string& name,
                                 bool is_resource,
                                 const json& line) {
  Allocator allocator{name, "", is_resource};
  std::vector<std::string> texts;
  collect_texts(line, &texts, 0);
  for (const std::string& text : texts) {
    const auto named = keys_.find(text);
    const std::string& other = named == keys_.end() ? text : named->second;
    if (other != key && allocators_.count(other) > 0) {
      allocator.parent = other;
      break;
    }
  }
  allocators_[key] = allocator;
  if (!name.empty()) {
    keys_[name] = key;
  }
}

// HOST, PINNED and FILE are memory of the host; pools lie where what they are made from lies.
bool UmpireReader::on_host(const std::string& allocator) const {
  std::string key = allocator;
  for (int i = 0; i < kMostParents; ++i) {
    const auto at = allocators_.find(key);
    if (at == allocators_.end()) {
      return false;
    }
    if (at->second.is_resource || at->second.parent.empty()) {
      const std::string& name = at->second.name;
      return name.starts_with("HOST") || name.starts_with("PINNED") || name.starts_with("FILE") ||
             name.starts_with("NO_OP");
    }
    key = at->second.parent;
  }
  return false;
}

bool UmpireReader::read_old(const json& line, Operation* operation) {
  const json* payload = member(line, "payload");
  const json* result = member(line, "result");
  const std::string event = text_of(member(line, "event"));
  if (payload == nullptr) {
    return true;
  }
  operation->allocator = text_of(member(*payload, "allocator_ref"));
  operation->size = number_of(member(*payload, "size"));
  if (event == "makeMemoryResource" && result != nullptr) {
    add_allocator(text_of(result), text_of(member(*payload, "name")), true, *payload);
  } else if (event == "makeAllocator" && result != nullptr) {
    add_allocator(text_of(member(*result, "allocator_ref")),
                  text_of(member(*payload, "allocator_name")),
                  false,
                  *payload);
  } else if (event == "allocate" && result != nullptr) {
    // The line before the call has no result yet.
    operation->kind = "allocate";
    operation->pointer = number_of(member(*result, "memory_ptr"));
  } else if (event == "deallocate") {
    operation->kind = "deallocate";
    operation->pointer = number_of(member(*payload, "memory_ptr"));
  } else if (event == "reallocate") {
    return result == nullptr ? begin_reallocation()
                             : end_reallocation(*payload, *result, *operation);
  }
  return true;
}

bool UmpireReader::begin_reallocation() {
  items_before_reallocation_ = items_.size();
  return true;
}

// Where the allocator did it by an allocation and a free of its own, those stand in the log.
bool UmpireReader::end_reallocation(const json& payload, const json& result, Operation operation) {
  const std::optional<std::uint64_t> before = number_of(member(payload, "ptr"));
  operation.pointer = number_of(member(result, "memory_ptr"));
  for (std::size_t i = items_before_reallocation_; i < items_.size(); ++i) {
    if (!items_[i].is_free && operation.pointer == items_[i].event.address) {
      return true;
    }
  }
  if (before.value_or(0) != 0) {
    Operation end = operation;
    end.kind = "deallocate";
    end.pointer = before;
    if (!play(end)) {
      return false;
    }
  }
  operation.kind = "allocate";
  return play(operation);
}

bool UmpireReader::read_new(const json& line, Operation* operation) {
  static constexpr const char* kNumbers = "numeric_args";
  const json* numbers = member(line, kNumbers);
  const json* texts = member(line, "string_args");
  const json* tags = member(line, "tags");
  const std::string name = text_of(member(line, "name"));
  if (text_of(member(line, "category")) != "operation") {
    return true;
  }
  operation->allocator = texts == nullptr ? "" : text_of(member(*texts, "allocator_ref"));
  operation->pointer = texts == nullptr ? std::nullopt : number_of(member(*texts, "pointer"));
  operation->size = numbers == nullptr ? std::nullopt : number_of(member(*numbers, "size"));
  if (name == "make_memory_resource" || name == "make_allocator") {
    add_allocator(operation->allocator,
                  tags == nullptr ? "" : text_of(member(*tags, "allocator_name")),
                  name == "make_memory_resource",
                  texts == nullptr ? line : *texts);
  } else if (name == "allocate" || name == "named_allocate" || name == "allocate_resource") {
    operation->kind = "allocate";
  } else if (name == "deallocate") {
    operation->kind = "deallocate";
  } else if (name == "reallocate") {
    ++reallocated_;
  }
  return true;
}

bool UmpireReader::play(const Operation& operation) {
  const bool is_free = operation.kind == "deallocate";
  if (!operation.pointer || (!is_free && !operation.size)) {
    return fail("an " + operation.kind + " without a pointer" + (is_free ? "" : " or a size"),
                "'pointer' (or 'memory_ptr') and 'size'");
  }
  Item item;
  item.event.time_us = operation.time_us;
  item.event.address = *operation.pointer;
  item.event.size = is_free ? EventList::kUnknownSize : *operation.size;
  item.event.place = lines_.number();
  item.allocator = operation.allocator;
  item.is_free = is_free;
  items_.push_back(std::move(item));
  return true;
}

bool UmpireReader::read_line(std::string_view text) {
  const json line = parse_json(text);
  if (!line.is_object()) {
    return fail("no JSON object: " + quoted_for_message(text), kUmpireExpected);
  }
  Operation operation;
  operation.time_us = number_of(member(line, "timestamp")).value_or(0) / 1000;
  const bool old = member(line, "event") != nullptr;
  if (!old && member(line, "category") == nullptr) {
    return fail("an object with neither 'event' nor 'category'", kUmpireExpected);
  }
  if (!(old ? read_old(line, &operation) : read_new(line, &operation))) {
    return false;
  }
  return operation.kind.empty() || play(operation);
}

ImportError UmpireReader::read(std::vector<Trace>* traces) {
  while (const std::optional<std::string_view> line = lines_.next()) {
    if (!line->empty() && !read_line(*line)) {
      return error_;
    }
  }
  return lines_.error() ? lines_.error() : build(traces);
}

ImportError UmpireReader::build(std::vector<Trace>* traces) {
  if (items_.empty()) {
    fail("a log without allocate or deallocate", kUmpireExpected);
    return error_;
  }
  std::uint64_t host = 0;
  for (const Item& item : items_) {
    host += on_host(item.allocator) ? 1U : 0U;
  }
  EventList events;
  const bool all_host = host == items_.size();
  for (const Item& item : items_) {
    if (!all_host && on_host(item.allocator)) {
      continue;
    }
    EventList::Event event = item.event;
    event.device = events.device(0);
    if (!(item.is_free ? events.add_free(event) : events.add_allocation(event))) {
      return error_at_line(name_, event.place, events.problem().found, events.problem().expected);
    }
  }
  if (all_host) {
    events.note("all allocations are of host memory: taken as if they were the device's");
  } else if (host > 0) {
    events.note(counted(host, "event", "events") + " of host memory left out");
  }
  if (reallocated_ > 0) {
    events.note(counted(reallocated_, "reallocation", "reallocations") +
                " left out where it did not allocate and free");
  }
  events.note("streams are not recorded: all events are on stream 0");
  EventList::Rules rules;
  if (!events.build(TraceFormat::kUmpire, rules, traces)) {
    return error_at_line(
        name_, events.problem().place, events.problem().found, events.problem().expected);
  }
  return std::nullopt;
}

}  // namespace

ImportError import_umpire(ByteWindow& input, const std::string& name, std::vector<Trace>* traces) {
  return UmpireReader(input, name).read(traces);
}

}  // namespace nofrag
