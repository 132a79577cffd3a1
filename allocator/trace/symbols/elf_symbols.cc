#include "trace/symbols/elf_symbols.h"

#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include <sys/stat.h>

namespace nofrag {
namespace {

constexpr std::uint64_t kLargestTable = std::uint64_t{2} << 30;
constexpr std::uint64_t kLargestNote = 4096;
constexpr char kGnuText[] = "GNU";
constexpr std::string_view kGnuOwner(kGnuText, sizeof kGnuText);  // with its 0

class ElfFile {
 public:
  explicit ElfFile(const std::string& path)
      : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {
    struct stat is {};
    if (file_ >= 0 && ::fstat(file_, &is) == 0 && S_ISREG(is.st_mode)) {
      size_ = static_cast<std::uint64_t>(is.st_size);
      good_ = read_sections();
    }
  }
  ElfFile(const ElfFile&) = delete;
  ElfFile& operator=(const ElfFile&) = delete;
  ~ElfFile() {
    if (file_ >= 0) {
      ::close(file_);
    }
  }

  [[nodiscard]] bool good() const { return good_; }

  [[nodiscard]] std::string build_id() const {
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type != SHT_NOTE || section.sh_size > kLargestNote) {
        continue;
      }
      const std::string notes = bytes(section.sh_offset, section.sh_size);
      Elf64_Nhdr header;
      if (notes.size() < sizeof header) {
        continue;
      }
      std::memcpy(&header, notes.data(), sizeof header);
      const std::size_t start = sizeof header + kGnuOwner.size();
      if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == kGnuOwner.size() &&
          std::string_view(notes).substr(sizeof header, kGnuOwner.size()) == kGnuOwner &&
          header.n_descsz <= notes.size() - std::min(notes.size(), start)) {
        return notes.substr(start, header.n_descsz);
      }
    }
    return {};
  }

  // visit(address, size, name)
  template <typename Visitor>
  void for_each_function(const Visitor& visit) const {
    for (const Elf64_Shdr& section : sections_) {
      if ((section.sh_type != SHT_SYMTAB && section.sh_type != SHT_DYNSYM) ||
          section.sh_link >= sections_.size()) {
        continue;
      }
      const std::string symbols = bytes(section.sh_offset, section.sh_size);
      const Elf64_Shdr& text = sections_[section.sh_link];
      const std::string names = bytes(text.sh_offset, text.sh_size);
      for (std::size_t at = 0; at + sizeof(Elf64_Sym) <= symbols.size(); at += sizeof(Elf64_Sym)) {
        Elf64_Sym symbol;
        std::memcpy(&symbol, symbols.data() + at, sizeof symbol);
        const unsigned type = ELF64_ST_TYPE(symbol.st_info);
        if ((type == STT_FUNC || type == STT_GNU_IFUNC) && symbol.st_shndx != SHN_UNDEF &&
            symbol.st_name < names.size()) {
          const std::string_view rest = std::string_view(names).substr(symbol.st_name);
          visit(symbol.st_value, symbol.st_size, rest.substr(0, rest.find('\0')));
        }
      }
    }
  }

 private:
  // False unless all of it is in the file.
  bool read(std::uint64_t from, std::uint64_t count, void* to) const {
    if (from > size_ || count > size_ - from) {
      return false;
    }
    auto* const start = static_cast<char*>(to);
    std::uint64_t done = 0;
    while (done < count) {
      const ssize_t got =
          ::pread(file_, start + done, count - done, static_cast<off_t>(from + done));
      if (got <= 0) {
        return false;
      }
      done += static_cast<std::uint64_t>(got);
    }
    return true;
  }

  // Empty where read() says false.
  [[nodiscard]] std::string bytes(std::uint64_t from, std::uint64_t count) const {
    std::string text(count > kLargestTable || count > size_ ? 0 : count, '\0');
    return text.size() == count && read(from, count, text.data()) ? text : std::string();
  }

  bool read_sections() {
    Elf64_Ehdr header{};
    if (!read(0, sizeof header, &header)) {
      return false;
    }
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
        header.e_shentsize != sizeof(Elf64_Shdr)) {
      return false;
    }
    const std::string table =
        bytes(header.e_shoff, std::uint64_t{header.e_shnum} * sizeof(Elf64_Shdr));
    if (table.empty()) {
      return false;
    }
    sections_.resize(table.size() / sizeof(Elf64_Shdr));
    std::memcpy(sections_.data(), table.data(), sections_.size() * sizeof(Elf64_Shdr));
    return true;
  }

  const int file_;
  std::uint64_t size_ = 0;
  bool good_ = false;
  std::vector<Elf64_Shdr> sections_;
};

// The function that begins last at or before an address.
struct Nearest {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::string function;
};

}  // namespace

std::string build_id_of_file(const std::string& path) {
  const ElfFile file(path);
  return file.good() ? file.build_id() : std::string();
}

void name_addresses(const std::string& path,
                    const std::string& build_id,
                    std::vector<NamedAddress>* addresses) {
  const ElfFile file(path);
  // Without one nobody knows whether it is the file of then.
  if (build_id.empty() || !file.good() || file.build_id() != build_id) {
    return;
  }
  const auto earlier = [](const NamedAddress& a, const NamedAddress& b) {
    return a.address < b.address;
  };
  std::sort(addresses->begin(), addresses->end(), earlier);
  std::vector<Nearest> nearest(addresses->size());
  file.for_each_function([&](std::uint64_t begin, std::uint64_t size, std::string_view name) {
    const auto at = std::lower_bound(
        addresses->begin(), addresses->end(), begin, [](const NamedAddress& a, std::uint64_t b) {
          return a.address < b;
        });
    if (at == addresses->end()) {
      return;
    }
    Nearest& best = nearest[static_cast<std::size_t>(at - addresses->begin())];
    if (best.function.empty() || begin > best.begin) {
      best = {begin, size > UINT64_MAX - begin ? UINT64_MAX : begin + size, std::string(name)};
    }
  });
  const Nearest* last = nullptr;
  for (std::size_t i = 0; i < nearest.size(); ++i) {
    last = nearest[i].function.empty() ? last : &nearest[i];
    NamedAddress& address = (*addresses)[i];
    // Hand-written code may have no size.
    if (last != nullptr && (address.address < last->end || last->end == last->begin)) {
      address.function = last->function;
    }
  }
}

}  // namespace nofrag
