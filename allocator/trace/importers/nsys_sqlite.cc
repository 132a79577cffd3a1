// Nsight Systems, exported to SQLite: cudaMalloc-level events of the table CUDA_GPU_MEMORY_USAGE_EVENTS.
#include <algorithm>
#include <memory>
#include <unordered_set>
#include <utility>

#include <sqlite3.h>

#include "trace/importers/importer.h"

namespace nofrag {
namespace {

constexpr const char* kTable = "CUDA_GPU_MEMORY_USAGE_EVENTS";
constexpr const char* kNsysExpected =
    "an export of Nsight Systems (nsys export --type sqlite) recorded with "
    "--cuda-memory-usage=true";
constexpr std::int64_t kAllocation = 0;
constexpr std::int64_t kDeallocation = 1;
// Kinds of memory that lie on the device and that an allocator would hold.
constexpr std::int64_t kKindDevice = 2;
constexpr std::size_t kVersionByte = 18;  // of the file's header: 2 = with a write-ahead log
constexpr int kStepsBetweenLooks = 1000;
constexpr std::uint64_t kStepsPerByte = 64;

struct CloseDatabase {
  void operator()(sqlite3* database) const { sqlite3_close(database); }
};
struct FinishStatement {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;
using Statement = std::unique_ptr<sqlite3_stmt, FinishStatement>;

class NsysReader {
 public:
  NsysReader(std::string& bytes, const std::string& name) : bytes_(bytes), name_(name) {}
  ImportError read(std::vector<Trace>* traces);

 private:
  bool open();
  bool find_columns();
  bool read_rows();
  bool read_row(sqlite3_stmt* row, std::uint64_t number);
  bool fail(std::string found, std::string expected);
  bool fail_row(std::uint64_t row, std::string found, std::string expected);
  Statement prepare(const std::string& query);
  // 0 where an older export has no such column.
  [[nodiscard]] std::string column_or_zero(const char* column) const {
    return columns_.count(column) > 0 ? column : "0";
  }
  static int look(void* self);

  std::string& bytes_;
  const std::string& name_;
  Database database_;
  std::unordered_set<std::string> columns_;
  std::uint64_t steps_left_ = 0;
  EventList events_;
  std::uint64_t other_memory_ = 0;
  ImportError error_;
};

bool NsysReader::fail(std::string found, std::string expected) {
  error_ = error_at_byte(name_, 0, std::move(found), std::move(expected));
  return false;
}

bool NsysReader::fail_row(std::uint64_t row, std::string found, std::string expected) {
  error_ = error_at_row(name_, row, std::move(found), std::move(expected));
  return false;
}

// A damaged index can send SQLite round in circles.
int NsysReader::look(void* self) {
  auto* reader = static_cast<NsysReader*>(self);
  reader->steps_left_ -= reader->steps_left_ > 0 ? 1 : 0;
  return reader->steps_left_ == 0 ? 1 : 0;
}

Statement NsysReader::prepare(const std::string& query) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(database_.get(), query.c_str(), -1, &statement, nullptr) != SQLITE_OK) {
    fail(std::string("a database that cannot be read (") + sqlite3_errmsg(database_.get()) + ")",
         kNsysExpected);
  }
  return Statement(statement);
}

bool NsysReader::open() {
  sqlite3* database = nullptr;
  const int opened = sqlite3_open_v2(":memory:", &database, SQLITE_OPEN_READWRITE, nullptr);
  database_.reset(database);
  if (opened != SQLITE_OK) {
    return fail("no memory for a database", "");
  }
  // A file may be made to harm: no function or virtual table of its schema is trusted, nothing is written.
  sqlite3_db_config(database, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(database, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(database, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(database, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
  sqlite3_limit(database, SQLITE_LIMIT_LENGTH, 1 << 24);
  // A database in memory has no write-ahead log; a file that was closed needs none.
  for (std::size_t version = kVersionByte; version < std::min(bytes_.size(), kVersionByte + 2);
       ++version) {
    bytes_[version] = bytes_[version] == 2 ? '\1' : bytes_[version];
  }
  const auto size = static_cast<sqlite3_int64>(bytes_.size());
  if (sqlite3_deserialize(database,
                          "main",
                          reinterpret_cast<unsigned char*>(bytes_.data()),
                          size,
                          size,
                          SQLITE_DESERIALIZE_READONLY) != SQLITE_OK) {
    return fail("a database that cannot be opened", kNsysExpected);
  }
  steps_left_ = 1000 + bytes_.size() * kStepsPerByte / kStepsBetweenLooks;
  sqlite3_progress_handler(database, kStepsBetweenLooks, &NsysReader::look, this);
  return true;
}

bool NsysReader::find_columns() {
  const Statement kind =
      prepare(std::string("SELECT type FROM sqlite_master WHERE name='") + kTable + "'");
  if (kind == nullptr) {
    return false;
  }
  const int found = sqlite3_step(kind.get());
  if (found != SQLITE_ROW && found != SQLITE_DONE) {
    return fail(std::string("a damaged database (") + sqlite3_errmsg(database_.get()) + ")",
                kNsysExpected);
  }
  const unsigned char* type = found == SQLITE_ROW ? sqlite3_column_text(kind.get(), 0) : nullptr;
  if (type == nullptr || std::string_view(reinterpret_cast<const char*>(type)) != "table") {
    return fail(std::string("a database without the table ") + kTable, kNsysExpected);
  }
  const Statement info = prepare(std::string("PRAGMA table_info(") + kTable + ")");
  if (info == nullptr) {
    return false;
  }
  while (sqlite3_step(info.get()) == SQLITE_ROW) {
    if (const unsigned char* name = sqlite3_column_text(info.get(), 1)) {
      columns_.emplace(reinterpret_cast<const char*>(name));
    }
  }
  for (const char* needed : {"start", "address", "bytes", "memKind", "memoryOperationType"}) {
    if (columns_.count(needed) == 0) {
      return fail(std::string("the table ") + kTable + " without the column " + needed,
                  kNsysExpected);
    }
  }
  return true;
}

bool NsysReader::read_row(sqlite3_stmt* row, std::uint64_t number) {
  for (int column = 0; column < 4; ++column) {
    if (sqlite3_column_type(row, column) != SQLITE_INTEGER) {
      return fail_row(
          number, "a time, an address, a size or a kind that is no whole number", "whole numbers");
    }
  }
  const std::int64_t start = sqlite3_column_int64(row, 0);
  const std::int64_t kind = sqlite3_column_int64(row, 3);
  const std::int64_t operation = sqlite3_column_int64(row, 4);
  if (start < 0) {
    return fail_row(number, "start " + std::to_string(start), "nanoseconds from 0 on");
  }
  if (operation != kAllocation && operation != kDeallocation) {
    return fail_row(number,
                    "memoryOperationType " + std::to_string(operation),
                    "0 (allocation) or 1 (deallocation)");
  }
  if (kind != kKindDevice) {
    ++other_memory_;
    return true;
  }
  const std::int64_t bytes = sqlite3_column_int64(row, 2);
  if (bytes < 0) {
    return fail_row(number, "bytes " + std::to_string(bytes), "a size from 0 on");
  }
  EventList::Event event;
  event.time_us = static_cast<std::uint64_t>(start) / 1000;
  event.address = static_cast<std::uint64_t>(sqlite3_column_int64(row, 1));
  event.size = static_cast<std::uint64_t>(bytes);
  event.stream = static_cast<std::uint64_t>(sqlite3_column_int64(row, 5));
  event.place = number;
  const auto global = static_cast<std::uint64_t>(sqlite3_column_int64(row, 6));
  event.device = events_.device(static_cast<std::uint64_t>(sqlite3_column_int64(row, 7)),
                                (global >> 24) & 0xFFFFFF);
  if (operation == kDeallocation && event.size == 0) {
    event.size = EventList::kUnknownSize;
  }
  return (operation == kAllocation ? events_.add_allocation(event) : events_.add_free(event)) ||
         fail_row(number, events_.problem().found, events_.problem().expected);
}

bool NsysReader::read_rows() {
  const Statement rows =
      prepare("SELECT start, address, bytes, memKind, memoryOperationType, " +
              column_or_zero("streamId") + ", " + column_or_zero("globalPid") + ", " +
              column_or_zero("deviceId") + ", rowid FROM " + kTable + " ORDER BY start, rowid");
  if (rows == nullptr) {
    return false;
  }
  for (;;) {
    const int got = sqlite3_step(rows.get());
    if (got == SQLITE_DONE) {
      return true;
    }
    if (got != SQLITE_ROW) {
      return fail(std::string("a damaged database (") + sqlite3_errmsg(database_.get()) + ")",
                  kNsysExpected);
    }
    if (!read_row(rows.get(), static_cast<std::uint64_t>(sqlite3_column_int64(rows.get(), 8)))) {
      return false;
    }
  }
}

ImportError NsysReader::read(std::vector<Trace>* traces) {
  if (!open() || !find_columns() || !read_rows()) {
    return error_;
  }
  if (events_.empty()) {
    return error_at_byte(
        name_,
        0,
        "no event of device memory (" + std::to_string(other_memory_) + " of other kinds)",
        kNsysExpected);
  }
  events_.note(
      "what the driver was asked for (cudaMalloc and its kin), not what an allocator above it "
      "served");
  if (other_memory_ > 0) {
    events_.note(counted(other_memory_, "event", "events") +
                 " of host, managed or static memory left out");
  }
  if (columns_.count("streamId") == 0) {
    events_.note("streams are not recorded: all events are on stream 0");
  }
  if (!events_.build(TraceFormat::kNsys, {}, traces)) {
    return error_at_row(
        name_, events_.problem().place, events_.problem().found, events_.problem().expected);
  }
  return std::nullopt;
}

}  // namespace

ImportError import_nsys(ByteWindow& input, const std::string& name, std::vector<Trace>* traces) {
  std::string bytes;
  if (ImportError error = read_all(input, &bytes)) {
    return error;
  }
  if (bytes.empty()) {
    return error_at_byte(name, 0, "an empty file", kNsysExpected);
  }
  return NsysReader(bytes, name).read(traces);
}

}  // namespace nofrag
