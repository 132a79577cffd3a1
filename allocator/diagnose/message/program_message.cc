// Memory of other programs and languages: Java, JavaScript, Go, databases and the like say "out of memory" too, in words
// that a GPU's messages have as well. None of it is about a GPU, and where a text also tells of one, that counts.
#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#include "config/human_bytes.h"
#include "diagnose/message/oom_message.h"
#include "diagnose/message/text_scan.h"

namespace nofrag::detail {
namespace {

constexpr std::size_t kPassage = 300;
constexpr std::size_t kShortlyBefore = 120;

constexpr double kClear = 0.95;
constexpr double kProbable = 0.8;

struct ProgramSign {
  std::string_view text;
  std::string_view source;
  HostMemory which;
  double confidence;
  std::string_view evidence;
  std::string_view size = {};  // what stands before the size that was asked for
};
constexpr HostMemory kProgram = HostMemory::kProgram;
constexpr HostMemory kMachine = HostMemory::kMachine;
constexpr std::string_view kJavaHeap = "a Java program's heap is full, which -Xmx limits";
constexpr std::string_view kJavaThreads =
    "a Java program could not start a thread: for want of memory outside its heap, or because a "
    "limit of processes is reached (ulimit -u, pids.max)";
constexpr std::string_view kJavaDirect =
    "a Java program's direct buffers reached their limit (-XX:MaxDirectMemorySize)";
constexpr std::string_view kV8Heap =
    "JavaScript's heap (V8: Node.js, a browser) reached its limit, which is mostly lower than the "
    "machine's memory";
constexpr std::string_view kGo = "a Go program got no memory from the operating system";
constexpr std::string_view kPostgres = "PostgreSQL got no memory for one of its queries";
constexpr std::string_view kNoMachineMemory = "the operating system refused memory of the machine";
constexpr std::string_view kCommit =
    "Windows could not promise memory: machine and paging file together are full";
// Of two that begin at one place the longer stands behind the shorter.
constexpr auto kProgramSigns = std::to_array<ProgramSign>({
    {"java.lang.OutOfMemoryError", "Java", kProgram, kClear, "a Java program ran out of memory"},
    {"OutOfMemoryError: Java heap space", "Java", kProgram, kClear, kJavaHeap},
    {"OutOfMemoryError: GC overhead limit exceeded", "Java", kProgram, kClear, kJavaHeap},
    {"OutOfMemoryError: Requested array size exceeds VM limit",
     "Java",
     kProgram,
     kClear,
     "a Java program asked for an array that is longer than any may be"},
    {"OutOfMemoryError: Metaspace",
     "Java",
     kProgram,
     kClear,
     "a Java program's classes fill their part of memory (-XX:MaxMetaspaceSize)"},
    {"OutOfMemoryError: Direct buffer memory", "Java", kProgram, kClear, kJavaDirect},
    {"OutOfMemoryError: Cannot reserve ", "Java", kProgram, kClear, kJavaDirect, "Cannot reserve "},
    {"OutOfMemoryError: unable to create ", "Java", kProgram, kClear, kJavaThreads},
    {"There is insufficient memory for the Java Runtime Environment",
     "Java",
     kProgram,
     kClear,
     "the operating system refused memory to a Java virtual machine",
     "failed to map "},
    {"JavaScript heap out of memory", "JavaScript", kProgram, kClear, kV8Heap},
    {"Allocation failed - process out of memory", "JavaScript", kProgram, kClear, kV8Heap},
    {"runtime: out of memory", "Go", kProgram, kClear, kGo, "cannot allocate "},
    {"fatal error: out of memory", "Go", kProgram, kProbable, kGo},
    {"fatal error: runtime: cannot allocate memory", "Go", kProgram, kClear, kGo},
    {"ERROR:  out of memory", "PostgreSQL", kProgram, kProbable, kPostgres, "of size "},
    {"FATAL:  out of memory", "PostgreSQL", kProgram, kProbable, kPostgres, "of size "},
    {"errors.OutOfMemory: out of memory", "PostgreSQL", kProgram, kClear, kPostgres, "of size "},
    {"Failed on request of size ", "PostgreSQL", kProgram, kClear, kPostgres, "of size "},
    {"invalid memory alloc request size ",
     "PostgreSQL",
     kProgram,
     kClear,
     "PostgreSQL takes less than 1 GiB in one piece, and a value or a result was larger",
     "request size "},
    {"Out of memory (Needed ", "MySQL", kProgram, kClear, "MySQL got no memory", "(Needed "},
    {"DB::Exception: Memory limit",
     "ClickHouse",
     kProgram,
     kClear,
     "ClickHouse reached a memory limit of its own",
     "attempt to allocate chunk of "},
    {"Out of Memory Error: ",
     "DuckDB",
     kProgram,
     kClear,
     "DuckDB reached its memory_limit",
     "block of size "},
    {"OOM command not allowed when used memory",
     "Redis",
     kProgram,
     kClear,
     "Redis reached its maxmemory"},
    {"Allowed memory size of ",
     "PHP",
     kProgram,
     kClear,
     "a PHP script reached its memory_limit",
     "tried to allocate "},
    {"System.OutOfMemoryException", ".NET", kProgram, kClear, "a .NET program got no memory"},
    {"cannot allocate vector of size ",
     "R",
     kProgram,
     kClear,
     "R got no memory for a vector",
     "of size "},
    {"memory allocation of ", "Rust", kProgram, kClear, "a Rust program got no memory", "tion of "},
    {"OutOfMemoryError()", "Julia", kProgram, kProbable, "a Julia program got no memory"},
    {"Out of memory, malloc failed",
     "git",
     kMachine,
     kClear,
     kNoMachineMemory,
     "tried to allocate "},
    {"OperationalError: out of memory", "SQLite", kProgram, kProbable, "SQLite got no memory"},
    {"could not resize shared memory segment",
     "PostgreSQL",
     HostMemory::kShared,
     kProbable,
     "PostgreSQL's shared memory (/dev/shm) is full",
     " to "},
    {"LLVM ERROR: out of memory", "a compiler", kMachine, kClear, kNoMachineMemory},
    {"died due to signal 9",
     "a compiler",
     kMachine,
     kProbable,
     "a part of a compiler was ended by SIGKILL, which is what the OOM killer sends"},
    {"virtual memory exhausted", "a compiler", kMachine, kClear, kNoMachineMemory},
    {": out of memory allocating ",
     "a compiler",
     kMachine,
     kClear,
     kNoMachineMemory,
     "allocating "},
    {"Killed signal terminated program",
     "a compiler",
     kMachine,
     kProbable,
     "a compiler was ended by SIGKILL, which is what the OOM killer sends"},
    {"paging file is too small for this operation", "Windows", kMachine, kClear, kCommit},
    {": Cannot allocate memory", "Linux", kMachine, kProbable, kNoMachineMemory},
    {": cannot allocate memory", "Linux", kMachine, kProbable, kNoMachineMemory},
    {" of pinned memory: ",
     "llama.cpp",
     HostMemory::kPinned,
     kProbable,
     "pinned memory of the machine could not be had; llama.cpp goes on without"},
});

std::string_view shortly_before(std::string_view text, std::size_t at, std::size_t size) {
  const std::size_t begin = at > size ? at - size : 0;
  return text.substr(begin, at - begin);
}

// The line that it stands in, as far as it matters.
std::string_view line_of(std::string_view text, std::size_t at, std::size_t size) {
  const std::string_view before = shortly_before(text, at, kShortlyBefore);
  const std::size_t first = last_of(before, "\n");
  const std::size_t begin = at - (first == kNowhere ? before.size() : before.size() - first - 1);
  const std::string_view behind = text.substr(at + size, kPassage);
  return text.substr(begin, at - begin + size + std::min(behind.find('\n'), behind.size()));
}

// Are they also said of a GPU's memory? The others are one program's own, even where the line names a machine "gpu01".
bool may_be_of_gpu(const ProgramSign& sign) {
  constexpr std::string_view kAnybodys[] = {"java.lang.OutOfMemoryError",
                                            "OutOfMemoryError: Cannot reserve ",
                                            "runtime: out of memory",
                                            "fatal error: out of memory",
                                            "ERROR:  out of memory",
                                            "FATAL:  out of memory",
                                            "errors.OutOfMemory: out of memory",
                                            "Out of Memory Error: ",
                                            "System.OutOfMemoryException",
                                            "cannot allocate vector of size ",
                                            "memory allocation of ",
                                            "OutOfMemoryError()",
                                            "OperationalError: out of memory",
                                            ": out of memory allocating ",
                                            ": Cannot allocate memory",
                                            ": cannot allocate memory"};
  return std::find(std::begin(kAnybodys), std::end(kAnybodys), sign.text) != std::end(kAnybodys);
}

// The same words, of something else.
bool is_meant(std::string_view text, std::size_t at, const ProgramSign& sign) {
  const std::string_view behind = text.substr(at + sign.text.size(), kPassage);
  const std::string_view line = line_of(text, at, sign.text.size());
  if (may_be_of_gpu(sign) && names_gpu(line)) {
    return false;
  }
  if (sign.source == "Java") {
    // What a library for GPUs throws into Java.
    return !holds(line, ": Could not allocate native memory") && !holds(line, "RMM");
  }
  if (sign.source == "Julia") {
    // In Python it is a class of some module's.
    return at == 0 || (text[at - 1] != '.' && text[at - 1] != '_' &&
                       std::isalnum(static_cast<unsigned char>(text[at - 1])) == 0);
  }
  if (sign.text == ": out of memory allocating ") {
    return holds(behind.substr(0, 80), "after a total of");
  }
  if (sign.text.ends_with("annot allocate memory")) {
    // A library that wants its thread-local variables where there is no more room for any; memory that is to stay in.
    return !behind.starts_with(" in static TLS") &&
           !holds(shortly_before(text, at, kShortlyBefore), "mlock");
  }
  if (sign.text == " of pinned memory: ") {
    return holds(shortly_before(text, at, kShortlyBefore), "failed to allocate ");
  }
  if (sign.source == "Rust") {
    return holds(behind.substr(0, 40), " bytes failed");
  }
  if (sign.source == "DuckDB" || sign.source == "PHP") {
    return holds(behind, "exhausted") || holds(behind, "allocate") || holds(behind, "used");
  }
  return true;
}

std::optional<Bytes> size_of(std::string_view text, std::size_t at, const ProgramSign& sign) {
  if (sign.text == " of pinned memory: ") {
    return size_after(shortly_before(text, at, 40), "failed to allocate ");
  }
  if (sign.size.empty()) {
    return std::nullopt;
  }
  const std::string_view line = text.substr(at, kPassage);
  const std::optional<Bytes> size = size_after(line, sign.size);
  return size || sign.source != "Java" ? size : size_after(line, "failed to allocate ");
}

void blank(std::size_t at, std::size_t size, std::string* text) {
  std::fill_n(text->begin() + static_cast<std::ptrdiff_t>(at), size, ' ');
}

}  // namespace

bool read_program_message(std::string_view text, OomMessage* message) {
  std::size_t latest = kNowhere;
  const ProgramSign* found = nullptr;
  for (const ProgramSign& sign : kProgramSigns) {
    // The system's own words stand behind those of the program that heard them.
    if (found != nullptr && sign.source == "Linux") {
      continue;
    }
    const std::size_t at =
        last_meant(text, sign.text, [&](std::size_t place) { return is_meant(text, place, sign); });
    if (at != kNowhere && (found == nullptr || at >= latest)) {
      latest = at;
      found = &sign;
    }
  }
  if (found == nullptr) {
    return false;
  }
  Failure f;
  f.source = found->source;
  f.host_memory = true;
  f.host.which = found->which;
  f.host.confidence = found->confidence;
  f.host.evidence.emplace_back(found->evidence);
  f.requested = size_of(text, latest, *found);
  if (f.requested) {
    f.host.evidence.push_back("it asked for " + human_bytes(*f.requested));
  }
  if (found->source == "Go") {
    if (const auto used = size_after(text.substr(latest, kPassage), "-byte block (")) {
      f.host.evidence.push_back("it held " + human_bytes(*used));
    }
  }
  message->failure = std::move(f);
  return true;
}

std::string without_program_messages(std::string_view text) {
  std::string rest(text);
  for (const ProgramSign& sign : kProgramSigns) {
    for (std::size_t at = text.find(sign.text); at != kNowhere;
         at = text.find(sign.text, at + sign.text.size())) {
      if (!is_meant(text, at, sign)) {
        continue;
      }
      blank(at, sign.text.size(), &rest);
      if (sign.source == "llama.cpp") {
        const std::string_view line = line_of(text, at, sign.text.size());
        blank(static_cast<std::size_t>(line.data() - text.data()), line.size(), &rest);
      }
      // "ERROR:  out of memory", and on the next line what was asked for.
      if (sign.text.starts_with("Failed on request")) {
        constexpr std::string_view kWords = "out of memory";
        constexpr std::size_t kDetail = 16;
        const std::string_view left = shortly_before(text, at, kWords.size() + kDetail);
        if (const std::size_t words = last_of(left, kWords); words != kNowhere) {
          blank(at - left.size() + words, kWords.size(), &rest);
        }
      }
    }
  }
  // Options of the Java virtual machine: -XX:+HeapDumpOnOutOfMemoryError.
  constexpr std::string_view kOption = "OnOutOfMemoryError";
  for (std::size_t at = text.find(kOption); at != kNowhere; at = text.find(kOption, at + 1)) {
    blank(at, kOption.size(), &rest);
  }
  return rest;
}

}  // namespace nofrag::detail
