#include "trace/stacks/module_table.h"

#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/units.h"
#include "trace/record/record_codec.h"

namespace nofrag {
namespace {

using Module = ModuleTable::Module;

constexpr std::size_t kNoteAlign = 4;
constexpr std::uint32_t kBuildIdNote = 3;
constexpr char kGnuText[] = "GNU";
constexpr std::string_view kGnu(kGnuText, sizeof kGnuText);  // with its 0

template <typename T>
std::size_t padded(T size) {
  return (static_cast<std::size_t>(size) + kNoteAlign - 1) / kNoteAlign * kNoteAlign;
}

// Among the notes of a module, which are in its memory.
std::string build_id_in(std::string_view notes) {
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) header;
    std::memcpy(&header, notes.data(), sizeof header);
    notes.remove_prefix(sizeof header);
    const std::size_t name = padded(header.n_namesz);
    const std::size_t bytes = padded(header.n_descsz);
    if (name > notes.size() || header.n_descsz > notes.size() - name) {
      break;
    }
    if (header.n_type == kBuildIdNote && notes.substr(0, header.n_namesz) == kGnu) {
      return std::string(notes.substr(name, header.n_descsz));
    }
    notes.remove_prefix(std::min(notes.size(), name + bytes));
  }
  return {};
}

// Between a module's parts there may be nothing.
bool is_readable(const dl_phdr_info& info, const ElfW(Phdr) & wanted) {
  for (std::size_t i = 0; i < info.dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info.dlpi_phdr[i];
    if (part.p_type == PT_LOAD && (part.p_flags & PF_R) != 0 && wanted.p_vaddr >= part.p_vaddr &&
        wanted.p_filesz <= part.p_filesz &&
        wanted.p_vaddr - part.p_vaddr <= part.p_filesz - wanted.p_filesz) {
      return true;
    }
  }
  return false;
}

Module module_of(const dl_phdr_info& info) {
  Module module;
  module.base = info.dlpi_addr;
  module.begin = UINT64_MAX;
  for (std::size_t i = 0; i < info.dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info.dlpi_phdr[i];
    if (part.p_type == PT_LOAD) {
      module.begin = std::min<std::uint64_t>(module.begin, module.base + part.p_vaddr);
      module.end = std::max<std::uint64_t>(module.end, module.base + part.p_vaddr + part.p_memsz);
    }
  }
  for (std::size_t i = 0; i < info.dlpi_phnum && module.build_id.empty(); ++i) {
    const ElfW(Phdr)& part = info.dlpi_phdr[i];
    if (part.p_type == PT_NOTE && is_readable(info, part)) {
      const VirtAddr begin(module.base + part.p_vaddr);
      module.build_id = build_id_in({static_cast<const char*>(begin.pointer()), part.p_filesz});
    }
  }
  module.path = info.dlpi_name == nullptr ? "" : info.dlpi_name;
  return module;
}

struct Found {
  std::vector<Module> modules;
  std::uint64_t address = 0;
  CodeRange around;
  bool first = true;
};

int note_module(dl_phdr_info* info, std::size_t /*size*/, void* argument) {
  auto& found = *static_cast<Found*>(argument);
  found.modules.push_back(module_of(*info));
  return 0;
}

int note_changes(dl_phdr_info* info, std::size_t /*size*/, void* argument) {
  *static_cast<LoaderChanges*>(argument) = {info->dlpi_adds, info->dlpi_subs};
  return 1;  // the same in all
}

int note_around(dl_phdr_info* info, std::size_t /*size*/, void* argument) {
  auto& found = *static_cast<Found*>(argument);
  const Module module = module_of(*info);
  const bool program = std::exchange(found.first, false);
  const CodeRange range{module.begin, module.end};
  if (!range.holds(found.address)) {
    return 0;
  }
  found.around = program ? CodeRange{} : range;
  return 1;
}

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

LoaderChanges loader_changes() {
  LoaderChanges changes;
  ::dl_iterate_phdr(&note_changes, &changes);
  return changes;
}

CodeRange library_around(std::uint64_t address) {
  Found found;
  found.address = address;
  ::dl_iterate_phdr(&note_around, &found);
  return found.around;
}

void ModuleTable::refresh() {
  Found found;
  ::dl_iterate_phdr(&note_module, &found);
  std::sort(found.modules.begin(), found.modules.end(), [](const Module& a, const Module& b) {
    return a.begin < b.begin;
  });
  slices_stacks_ =
      std::any_of(found.modules.begin(), found.modules.end(), [](const Module& module) {
        return module.path.find("greenlet") != std::string::npos;
      });
  const auto key = [](const Module& module) { return module.begin; };
  for (const Module& old : modules_) {
    if (old.number == 0) {
      continue;
    }
    const auto at = std::lower_bound(
        found.modules.begin(),
        found.modules.end(),
        old.begin,
        [key](const Module& module, std::uint64_t begin) { return key(module) < begin; });
    if (at != found.modules.end() && at->begin == old.begin && at->end == old.end &&
        at->path == old.path && at->build_id == old.build_id) {
      at->number = old.number;
    } else {
      ++epoch_;
    }
  }
  modules_ = std::move(found.modules);
}

ModuleTable::Place ModuleTable::place(std::uint64_t address) {
  auto at = std::upper_bound(
      modules_.begin(), modules_.end(), address, [](std::uint64_t wanted, const Module& module) {
        return wanted < module.begin;
      });
  if (at == modules_.begin()) {
    return {0, address};
  }
  --at;
  if (address >= at->end) {
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
