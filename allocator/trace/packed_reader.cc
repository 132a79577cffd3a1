#include <array>
#include <utility>

#include <nofrag/trace_format.h>

#include "trace/packed_codec.h"
#include "trace/packed_format.h"
#include "trace/record/record_reader.h"
#include "trace/trace_builder.h"

namespace nofrag {
namespace {

static_assert(sizeof(nofrag_trace_file_header) == 16);
static_assert(sizeof(nofrag_trace_block_header) == 24);
static_assert(sizeof(nofrag_trace_totals) == 40);

constexpr std::size_t kFileHeader = sizeof(nofrag_trace_file_header);
constexpr std::size_t kBlockHeader = sizeof(nofrag_trace_block_header);
constexpr std::size_t kTotals = sizeof(nofrag_trace_totals);
constexpr std::string_view kMagic{NOFRAG_TRACE_MAGIC, NOFRAG_TRACE_MAGIC_BYTES};
constexpr std::size_t kColumnKinds = NOFRAG_TRACE_COLUMN_STREAM + 1;

class PackedReader {
 public:
  PackedReader(ByteWindow& input, const std::string& path)
      : input_(input), path_(path), builder_(TraceUnit::kEvent) {}

  std::optional<TraceError> read(Trace* trace);

 private:
  struct Block {
    std::uint16_t kind = 0;
    std::uint16_t flags = 0;
    std::uint32_t stored = 0;
    std::uint32_t raw = 0;
    std::uint32_t items = 0;
    std::uint64_t offset = 0;  // of its header
  };
  using Columns = std::array<std::string_view, kColumnKinds>;

  bool read_file_header();
  bool read_block_header(Block* block);
  bool read_payload(const Block& block, std::string_view* payload);
  bool read_events(const Block& block);
  bool split_columns(std::string_view payload, Columns* columns);
  bool decode(const Block& block, const Columns& columns);
  bool check_end(const Block& block);
  std::optional<TraceError> finish_packed(const Block& block, Trace* trace);
  bool read_recorded(const Block& block, bool* last);
  std::optional<TraceError> finish_recording(Trace* trace);
  std::optional<TraceError> ended_at_once();
  bool at_end();
  std::array<std::uint64_t, 5> totals_{};  // of the end block
  bool fail(std::uint64_t offset,
            std::string found,
            std::string expected,
            TraceError::Kind kind = TraceError::Kind::kCorrupt);
  bool cut_off(std::size_t have, std::string expected);
  bool bad_column(const char* what);
  bool read_values(std::string_view column, const char* name, std::vector<std::uint64_t>* values);

  ByteWindow& input_;
  const std::string& path_;
  TraceBuilder builder_;
  RecordReader recorded_;
  bool torn_ = false;  // error_ says where the file ends before its time
  std::string raw_;
  std::uint64_t block_offset_ = 0;
  std::uint64_t first_block_ = 0;  // where it begins
  std::uint64_t last_id_ = UINT64_MAX;
  std::optional<TraceError> error_;
};

bool PackedReader::fail(std::uint64_t offset,
                        std::string found,
                        std::string expected,
                        TraceError::Kind kind) {
  TraceError error;
  error.kind = kind;
  error.path = path_;
  error.offset = offset;
  error.found = std::move(found);
  error.expected = std::move(expected);
  error_ = std::move(error);
  return false;
}

bool PackedReader::cut_off(std::size_t have, std::string expected) {
  if (input_.source_error()) {
    error_ = input_.source_error();
    return false;
  }
  torn_ = true;
  return fail(input_.offset() + have, "the end of the file (a torn tail)", std::move(expected));
}

bool PackedReader::bad_column(const char* what) {
  return fail(block_offset_, std::string("a block of events with ") + what, "a sound block");
}

bool PackedReader::read_file_header() {
  const std::string_view bytes = input_.fill(kFileHeader);
  if (!looks_packed(bytes)) {
    if (input_.source_error()) {
      error_ = input_.source_error();
      return false;
    }
    if (bytes.empty()) {
      return fail(0, "an empty file", "a packed nofrag trace");
    }
    return fail(0,
                quoted_for_message(bytes.substr(0, kMagic.size())),
                "the start of a packed nofrag trace, '\\x8eNFTRC\\x0d\\x0a'");
  }
  if (bytes.size() < kFileHeader) {
    return cut_off(bytes.size(), "a file header of 16 bytes");
  }
  const auto version = load_little_endian<std::uint16_t>(bytes, 8);
  const auto header_bytes = load_little_endian<std::uint16_t>(bytes, 10);
  const auto flags = load_little_endian<std::uint32_t>(bytes, 12);
  if (version == 0 || version > NOFRAG_TRACE_VERSION) {
    return fail(8,
                "packed trace version " + std::to_string(version),
                "version " + std::to_string(NOFRAG_TRACE_VERSION) +
                    " at most (the trace needs a newer nofrag)",
                TraceError::Kind::kUnsupported);
  }
  if (header_bytes < kFileHeader) {
    return fail(10, "a file header of " + std::to_string(header_bytes) + " bytes", "16 or more");
  }
  if (flags != 0) {
    return fail(12,
                "unknown flags " + std::to_string(flags),
                "0 (the trace needs a newer nofrag)",
                TraceError::Kind::kUnsupported);
  }
  if (const std::size_t have = input_.fill(header_bytes).size(); have < header_bytes) {
    return cut_off(have, "a file header of " + std::to_string(header_bytes) + " bytes");
  }
  input_.consume(header_bytes);
  return true;
}

bool PackedReader::read_block_header(Block* block) {
  const std::string_view bytes = input_.fill(kBlockHeader);
  block->offset = input_.offset();
  block_offset_ = block->offset;
  if (bytes.size() < kBlockHeader) {
    return cut_off(bytes.size(), "a block header of 24 bytes (a trace ends with an end block)");
  }
  if (load_little_endian<std::uint32_t>(bytes, 0) != NOFRAG_TRACE_BLOCK_MAGIC) {
    return fail(block->offset, quoted_for_message(bytes.substr(0, 4)), "a block, 'NFBK'");
  }
  if (load_little_endian<std::uint32_t>(bytes, 20) != crc32_of(bytes.substr(0, 20))) {
    return fail(block->offset, "a block header with a wrong checksum", "an undamaged header");
  }
  block->kind = load_little_endian<std::uint16_t>(bytes, 4);
  block->flags = load_little_endian<std::uint16_t>(bytes, 6);
  block->stored = load_little_endian<std::uint32_t>(bytes, 8);
  block->raw = load_little_endian<std::uint32_t>(bytes, 12);
  block->items = load_little_endian<std::uint32_t>(bytes, 16);
  if (block->stored > NOFRAG_TRACE_MAX_RAW_BYTES || block->raw > NOFRAG_TRACE_MAX_RAW_BYTES) {
    return fail(block->offset,
                "a block of " + std::to_string(block->stored) + " bytes (" +
                    std::to_string(block->raw) + " unpacked)",
                "at most 64 MiB");
  }
  input_.consume(kBlockHeader);
  return true;
}

// The view is valid until the next read.
bool PackedReader::read_payload(const Block& block, std::string_view* payload) {
  const std::string_view bytes = input_.fill(block.stored);
  if (bytes.size() < block.stored) {
    return cut_off(bytes.size(),
                   "a block payload of " + std::to_string(block.stored) + " bytes from byte " +
                       std::to_string(input_.offset()));
  }
  const std::string_view stored = bytes.substr(0, block.stored);
  if ((block.flags & NOFRAG_TRACE_BLOCK_ZSTD) == 0) {
    if (block.stored != block.raw) {
      return fail(block.offset, "a plain block whose two sizes differ", "equal sizes");
    }
    *payload = stored;
    return true;
  }
  std::string why;
  if (!unpack_zstd(stored, block.raw, &raw_, &why)) {
    return fail(
        input_.offset(), why, "a zstd frame of " + std::to_string(block.raw) + " bytes unpacked");
  }
  *payload = raw_;
  return true;
}

bool PackedReader::split_columns(std::string_view payload, Columns* columns) {
  VarintReader reader(payload);
  std::array<bool, kColumnKinds> seen{};
  while (!reader.empty()) {
    std::string_view kind_byte;
    std::string_view bytes;
    std::uint64_t length = 0;
    if (!reader.take(1, &kind_byte) || !reader.next(&length) || !reader.take(length, &bytes)) {
      return bad_column("a column that runs past its end");
    }
    const auto kind = static_cast<unsigned char>(kind_byte[0]);
    if (kind == 0 || kind >= kColumnKinds) {
      if ((kind & NOFRAG_TRACE_COLUMN_MUST_UNDERSTAND) != 0) {
        return fail(block_offset_,
                    "column kind " + std::to_string(kind),
                    "a kind that this version knows (the trace needs a newer nofrag)",
                    TraceError::Kind::kUnsupported);
      }
      continue;
    }
    if (std::exchange(seen[kind], true)) {
      return bad_column("the same column twice");
    }
    (*columns)[kind] = bytes;
  }
  return true;
}

bool PackedReader::read_values(std::string_view column,
                               const char* name,
                               std::vector<std::uint64_t>* values) {
  VarintReader reader(column);
  while (!reader.empty()) {
    std::uint64_t value = 0;
    if (!reader.next(&value)) {
      return bad_column(name);
    }
    values->push_back(value);
  }
  return true;
}

bool PackedReader::decode(const Block& block, const Columns& columns) {
  std::vector<std::uint64_t> sizes;
  std::vector<std::uint64_t> streams;
  if (!read_values(columns[NOFRAG_TRACE_COLUMN_SIZE_VALUES], "broken size values", &sizes) ||
      !read_values(columns[NOFRAG_TRACE_COLUMN_STREAM_VALUES], "broken stream values", &streams)) {
    return false;
  }
  const std::string_view ops = columns[NOFRAG_TRACE_COLUMN_OP];
  if (ops.size() != block.items) {
    return bad_column("another number of events than its header says");
  }
  VarintReader times(columns[NOFRAG_TRACE_COLUMN_TIME]);
  VarintReader ids(columns[NOFRAG_TRACE_COLUMN_ID]);
  VarintReader size_uses(columns[NOFRAG_TRACE_COLUMN_SIZE]);
  VarintReader freed(columns[NOFRAG_TRACE_COLUMN_FREED]);
  VarintReader stream_uses(columns[NOFRAG_TRACE_COLUMN_STREAM]);
  std::uint64_t time = 0;
  for (const char op : ops) {
    std::uint64_t step = 0;
    std::uint64_t stream = 0;
    if (!times.next(&step) || !stream_uses.next(&stream) || stream >= streams.size() ||
        step > UINT64_MAX - time) {
      return bad_column("a broken time or stream column");
    }
    time += step;
    bool accepted = false;
    if (op == 'a') {
      std::uint64_t id_step = 0;
      std::uint64_t size = 0;
      if (!ids.next(&id_step) || !size_uses.next(&size) || size >= sizes.size()) {
        return bad_column("a broken id or size column");
      }
      last_id_ += 1 + static_cast<std::uint64_t>(unzigzag(id_step));
      accepted = builder_.add_allocation(time, last_id_, sizes[size], streams[stream]);
    } else if (op == 'f') {
      std::uint64_t distance = 0;
      if (!freed.next(&distance) || distance >= builder_.block_count()) {
        return bad_column("a free of a block that was never allocated");
      }
      accepted =
          builder_.add_free_of_block(time, builder_.block_count() - 1 - distance, streams[stream]);
    } else {
      return bad_column("an operation that is neither 'a' nor 'f'");
    }
    if (!accepted) {
      return fail(
          block_offset_,
          "at event " + std::to_string(builder_.event_count()) + " " + builder_.problem().found,
          builder_.problem().expected);
    }
  }
  if (!times.empty() || !ids.empty() || !size_uses.empty() || !freed.empty() ||
      !stream_uses.empty()) {
    return bad_column("more values in a column than events");
  }
  return true;
}

bool PackedReader::read_events(const Block& block) {
  std::string_view payload;
  Columns columns{};
  if (!read_payload(block, &payload) || !split_columns(payload, &columns) ||
      !decode(block, columns)) {
    return false;
  }
  input_.consume(block.stored);
  return true;
}

bool PackedReader::at_end() {
  const std::uint64_t end = input_.offset();
  if (!input_.fill(1).empty()) {
    return fail(end, "bytes after the end block", "the end of the file");
  }
  error_ = input_.source_error();
  return !error_.has_value();
}

bool PackedReader::read_recorded(const Block& block, bool* last) {
  std::string_view payload;
  if (!read_payload(block, &payload)) {
    return false;
  }
  if (builder_.event_count() > 0) {
    return fail(block.offset, "a recording's block among others", "one kind of trace in a file");
  }
  std::string why;
  if (!recorded_.take(block.kind, block.items, payload, last, &why)) {
    return fail(block.offset, "a block with " + why, "a sound block");
  }
  input_.consume(block.stored);
  return !*last || at_end();
}

// A process that was killed could not end its recording: what it had written stands.
std::optional<TraceError> PackedReader::finish_recording(Trace* trace) {
  std::string torn;
  if (torn_) {
    const std::uint64_t rest = *error_->offset - block_offset_;
    torn =
        "the recording has no end: its process was killed, or still runs; what it did in its last "
        "second is "
        "missing";
    if (rest > 0) {
      torn += " (the " + std::to_string(rest) + " bytes from byte " +
              std::to_string(block_offset_) + " on are the beginning of a block)";
    }
    error_.reset();
  }
  std::string why;
  if (!recorded_.finish(torn, trace, &why)) {
    fail(block_offset_,
         why,
         "a recording that can be played",
         recorded_.told_nothing() ? TraceError::Kind::kEmpty : TraceError::Kind::kCorrupt);
  }
  return error_;
}

// Only a recording is seen before its first block is whole: it has its header at once, other traces get their
// names when they are complete.
std::optional<TraceError> PackedReader::ended_at_once() {
  error_->kind = TraceError::Kind::kEmpty;
  error_->found +=
      ", of a recording that ended before its first block: its process was killed in its first "
      "moment, or has only begun";
  return error_;
}

bool PackedReader::check_end(const Block& block) {
  std::string_view payload;
  if (!read_payload(block, &payload)) {
    return false;
  }
  if (payload.size() < kTotals) {
    return fail(block.offset, "an end block of too few bytes", "40 bytes of totals");
  }
  std::array<std::uint64_t, 5>& totals = totals_;
  for (std::size_t i = 0; i < totals.size(); ++i) {
    totals[i] = load_little_endian<std::uint64_t>(payload, 8 * i);
  }
  input_.consume(block.stored);
  if (!at_end()) {
    return false;
  }
  if (totals[0] != builder_.event_count() || totals[1] != builder_.block_count()) {
    return fail(block.offset,
                "totals of " + std::to_string(totals[0]) + " events, " + std::to_string(totals[1]) +
                    " allocations",
                std::to_string(builder_.event_count()) + " events, " +
                    std::to_string(builder_.block_count()) + " allocations, as read");
  }
  if (totals[0] == 0) {
    return fail(block.offset, "a trace without events", "at least one event");
  }
  return true;
}

std::optional<TraceError> PackedReader::finish_packed(const Block& block, Trace* trace) {
  if (!check_end(block)) {
    return error_;
  }
  Trace finished = builder_.finish(TraceFormat::kNofrag);
  if (totals_[2] != finished.frees || totals_[3] != finished.peak_live.count() ||
      totals_[4] != finished.live_at_end.count()) {
    fail(block.offset,
         "totals of " + std::to_string(totals_[2]) + " frees, " + std::to_string(totals_[3]) +
             " bytes at the peak, " + std::to_string(totals_[4]) + " at the end",
         std::to_string(finished.frees) + ", " + std::to_string(finished.peak_live.count()) +
             " and " + std::to_string(finished.live_at_end.count()) + ", as read");
    return error_;
  }
  *trace = std::move(finished);
  return std::nullopt;
}

std::optional<TraceError> PackedReader::read(Trace* trace) {
  if (!read_file_header()) {
    return error_;
  }
  first_block_ = input_.offset();
  for (;;) {
    Block block;
    bool last = false;
    const bool whole = read_block_header(&block);
    if (whole && RecordReader::knows(block.kind) && read_recorded(block, &last) && !last) {
      continue;
    }
    if (last || (torn_ && recorded_.any())) {
      return last && error_ ? error_ : finish_recording(trace);
    }
    const bool of_recording = !whole || RecordReader::knows(block.kind);
    if (torn_ && block_offset_ == first_block_ && of_recording) {
      return ended_at_once();
    }
    if (!whole || error_) {
      return error_;
    }
    if (recorded_.any() && block.kind <= NOFRAG_TRACE_BLOCK_EVENTS) {
      fail(block.offset, "another trace's block in a recording", "one kind of trace in a file");
      return error_;
    }
    if (block.kind == NOFRAG_TRACE_BLOCK_END) {
      return finish_packed(block, trace);
    }
    if (block.kind == NOFRAG_TRACE_BLOCK_EVENTS) {
      if (!read_events(block)) {
        return error_;
      }
      continue;
    }
    if ((block.flags & NOFRAG_TRACE_BLOCK_MUST_UNDERSTAND) != 0) {
      fail(block.offset,
           "block kind " + std::to_string(block.kind),
           "a kind that this version knows (the trace needs a newer nofrag)",
           TraceError::Kind::kUnsupported);
      return error_;
    }
    if (const std::size_t have = input_.fill(block.stored).size(); have < block.stored) {
      cut_off(have, "a block payload of " + std::to_string(block.stored) + " bytes");
      return error_;
    }
    input_.consume(block.stored);
  }
}

}  // namespace

bool looks_packed(std::string_view first_bytes) {
  return first_bytes.substr(0, kMagic.size()) == kMagic;
}

std::optional<TraceError> read_packed(ByteWindow& input, const std::string& path, Trace* trace) {
  return PackedReader(input, path).read(trace);
}

}  // namespace nofrag
