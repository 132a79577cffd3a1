#include "trace/stacks/module_table.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "trace/record/record_codec.h"

namespace nofrag {
namespace {

std::string full_path(const std::string& path) {
  std::string full(PATH_MAX, '\0');
  if (path.empty()) {  // the program
    const ssize_t size = ::readlink("/proc/self/exe", full.data(), full.size());
    full.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
    return full;
  }
  if (path.front() != '/' && ::realpath(path.c_str(), full.data()) != nullptr) {
    full.resize(std::strlen(full.c_str()));
    return full;
  }
  return path;
}

}  // namespace

std::vector<CodeRange> ModuleTable::refresh() {
  std::vector<Module> now;
  for (const LoadedModules::Module& module : loaded_.read()) {
    now.push_back(
        {module.range, module.base, std::string(module.path), std::string(module.build_id)});
  }
  std::sort(now.begin(), now.end(), [](const Module& a, const Module& b) {
    return a.range.begin < b.range.begin;
  });
  slices_stacks_ = std::any_of(now.begin(), now.end(), [](const Module& module) {
    return module.path.find("greenlet") != std::string::npos;
  });
  std::vector<CodeRange> gone;
  for (const Module& old : modules_) {
    if (old.number == 0) {
      continue;
    }
    const auto at = std::lower_bound(
        now.begin(), now.end(), old.range.begin, [](const Module& module, std::uint64_t begin) {
          return module.range.begin < begin;
        });
    if (at != now.end() && at->range == old.range && at->path == old.path &&
        at->build_id == old.build_id) {
      at->number = old.number;
    } else {
      gone.push_back(old.range);
    }
  }
  modules_ = std::move(now);
  return gone;
}

ModuleTable::Place ModuleTable::place(std::uint64_t address) {
  auto at = std::upper_bound(
      modules_.begin(), modules_.end(), address, [](std::uint64_t wanted, const Module& module) {
        return wanted < module.range.begin;
      });
  if (at == modules_.begin()) {
    return {0, address};
  }
  --at;
  if (!at->range.holds(address)) {
    return {0, address};
  }
  if (at->number == 0) {
    at->number = ++last_number_;
    append_varint(at->number, &rows_);
    append_text(full_path(at->path), &rows_);
    append_text(at->build_id, &rows_);
    ++row_count_;
  }
  return {at->number, address - at->base};
}

std::size_t ModuleTable::take_rows(std::string* rows) {
  rows->swap(rows_);
  rows_.clear();
  return std::exchange(row_count_, 0);
}

}  // namespace nofrag
