#include "trace/stacks/loaded_modules.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/units.h"

namespace nofrag {
namespace {

constexpr std::size_t kNoteAlign = 4;
constexpr std::uint32_t kBuildIdNote = 3;
constexpr char kGnuText[] = "GNU";
constexpr std::string_view kGnu(kGnuText, sizeof kGnuText);  // with its 0

template <typename T>
std::size_t padded(T size) {
  return (static_cast<std::size_t>(size) + kNoteAlign - 1) / kNoteAlign * kNoteAlign;
}

// Among the notes of a module, which are in its memory.
std::string_view build_id_in(std::string_view notes) {
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
      return notes.substr(name, header.n_descsz);
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

std::string_view build_id_of(const dl_phdr_info& info) {
  std::string_view id;
  for (std::size_t i = 0; i < info.dlpi_phnum && id.empty(); ++i) {
    const ElfW(Phdr)& part = info.dlpi_phdr[i];
    if (part.p_type == PT_NOTE && is_readable(info, part)) {
      const VirtAddr begin(info.dlpi_addr + part.p_vaddr);
      id = build_id_in({static_cast<const char*>(begin.pointer()), part.p_filesz});
    }
  }
  return id;
}

CodeRange range_of(const dl_phdr_info& info) {
  CodeRange range{UINT64_MAX, 0};
  for (std::size_t i = 0; i < info.dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info.dlpi_phdr[i];
    if (part.p_type == PT_LOAD) {
      const std::uint64_t begin = info.dlpi_addr + part.p_vaddr;
      range.begin = std::min(range.begin, begin);
      range.end = std::max<std::uint64_t>(range.end, begin + part.p_memsz);
    }
  }
  return range;
}

int note_changes(dl_phdr_info* info, std::size_t /*size*/, void* argument) {
  *static_cast<LoaderChanges*>(argument) = {info->dlpi_adds, info->dlpi_subs};
  return 1;  // the same in all
}

struct Around {
  std::uint64_t address = 0;
  CodeRange range;
  bool first = true;
};

int note_around(dl_phdr_info* info, std::size_t /*size*/, void* argument) {
  auto& around = *static_cast<Around*>(argument);
  const bool program = std::exchange(around.first, false);
  const CodeRange range = range_of(*info);
  if (!range.holds(around.address)) {
    return 0;
  }
  around.range = program ? CodeRange{} : range;
  return 1;
}

}  // namespace

LoaderChanges loader_changes() {
  LoaderChanges changes;
  ::dl_iterate_phdr(&note_changes, &changes);
  return changes;
}

CodeRange library_around(std::uint64_t address) {
  Around around;
  around.address = address;
  ::dl_iterate_phdr(&note_around, &around);
  return around.range;
}

int LoadedModules::note_module(dl_phdr_info* info, std::size_t /*size*/, void* self) {
  static_cast<LoadedModules*>(self)->note(*info);
  return 0;
}

void LoadedModules::note(const dl_phdr_info& info) {
  const std::string_view path = info.dlpi_name == nullptr ? "" : info.dlpi_name;
  const std::string_view build_id = build_id_of(info);
  if (found_ < raw_.size()) {
    raw_[found_] = {range_of(info), info.dlpi_addr, path.size(), build_id.size()};
  }
  ++found_;
  copy(path);
  copy(build_id);
}

void LoadedModules::copy(std::string_view text) {
  if (bytes_found_ <= bytes_.size() && text.size() <= bytes_.size() - bytes_found_) {
    text.copy(bytes_.data() + bytes_found_, text.size());
  }
  bytes_found_ += text.size();
}

const std::vector<LoadedModules::Module>& LoadedModules::read() {
  while (true) {
    found_ = 0;
    bytes_found_ = 0;
    ::dl_iterate_phdr(&note_module, this);
    if (has_room()) {
      break;
    }
    // With some to spare: more may come before the next look.
    raw_.resize(std::max(raw_.size(), found_ + found_ / 4 + 1));
    bytes_.resize(std::max(bytes_.size(), bytes_found_ + bytes_found_ / 4 + 1));
  }
  modules_.clear();
  std::string_view rest = bytes_;
  const auto next = [&rest](std::size_t size) {
    const std::string_view text = rest.substr(0, size);
    rest.remove_prefix(size);
    return text;
  };
  for (std::size_t i = 0; i < found_; ++i) {
    const Raw& raw = raw_[i];
    const std::string_view path = next(raw.path_size);
    modules_.push_back({raw.range, raw.base, path, next(raw.build_id_size)});
  }
  return modules_;
}

}  // namespace nofrag
