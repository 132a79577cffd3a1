// What to do where the machine's memory ran out, not a GPU's.
#include <algorithm>
#include <iterator>
#include <string_view>

#include "diagnose/advice.h"

namespace nofrag {
namespace {

using Advice = std::vector<std::string>;

void machine_memory(bool container, Advice* out) {
  out->emplace_back(
      "let the host hold less: fewer data loader workers, less prefetching and pinned memory, "
      "checkpoints read by mmap or piece by piece");
  out->emplace_back(container ? "raise the limit of the container or job: memory.max of its "
                                "control group, which docker "
                                "--memory, a pod's resources.limits.memory or Slurm's --mem sets"
                              : "give the machine or the container more: its memory limit (docker "
                                "--memory, a pod's or a "
                                "job's memory request), or swap");
  out->emplace_back(
      "see what grows on the host: ps, smem, or a heap profiler of the language; no GPU allocator "
      "changes this");
}

void shared_memory(Advice* out) {
  out->emplace_back(
      "give shared memory more room: docker run --shm-size=16g (64 MiB unless it is said) or "
      "--ipc=host; in Kubernetes an emptyDir of medium Memory, mounted at /dev/shm");
  out->emplace_back(
      "let less pass through it: fewer data loader workers (num_workers; 0 uses none of it), a "
      "smaller prefetch_factor, smaller batches");
  out->emplace_back(
      "see how full it is while the job runs: df -h /dev/shm; files there of processes that are "
      "gone can be deleted");
}

void open_files(Advice* out) {
  out->emplace_back("raise the limit of open files: ulimit -n 65536 (LimitNOFILE in systemd)");
  out->emplace_back(
      "or torch.multiprocessing.set_sharing_strategy('file_system'), which keeps no file open for "
      "each tensor");
  out->emplace_back(
      "keep fewer tensors of data loader workers alive (copy what is kept), and fewer workers");
}

void pinned_memory(Advice* out) {
  out->emplace_back(
      "pin less: pin_memory=False in the data loader, smaller buffers for offloading");
  out->emplace_back(
      "see what may be pinned: ulimit -l, the container's memory limit, and what the machine has "
      "free (free -h)");
}

// What gives a program of a kind more of the machine's memory, and what shows what fills it.
struct ProgramAdvice {
  std::string_view source;
  const char* more;
  const char* see;
};
constexpr ProgramAdvice kProgramAdvice[] = {
    {"Java",
     "raise the limit that its error names: -Xmx for the heap (Spark: spark.driver.memory and "
     "spark.executor.memory, Gradle: org.gradle.jvmargs), -XX:MaxDirectMemorySize for direct "
     "buffers, -XX:MaxMetaspaceSize for classes; as far as the machine and the container have it",
     "see what fills it: a heap dump (-XX:+HeapDumpOnOutOfMemoryError, jcmd PID GC.heap_dump FILE) "
     "in Eclipse MAT or VisualVM"},
    {"JavaScript",
     "raise V8's limit: NODE_OPTIONS=--max-old-space-size=8192 (in MiB), as far as the machine and "
     "the container have it",
     "see what fills it: node --heapsnapshot-near-heap-limit=1, and the memory tab of Chrome's "
     "developer tools"},
    {"Go",
     "give the machine or its container more, see ulimit -v, and set GOMEMLIMIT a little below "
     "what there is: the collector works harder then instead of the program failing",
     "see what fills it: a heap profile (go tool pprof)"},
    {"PostgreSQL",
     "lower work_mem, hash_mem_multiplier or the number of connections (each sort or hash of each "
     "connection takes its own), or shared_buffers; see vm.overcommit_memory",
     "see what fills it: the memory contexts in the server's log, "
     "pg_log_backend_memory_contexts(PID), EXPLAIN of the query"},
    {"MySQL",
     "lower innodb_buffer_pool_size or the buffers of each connection, or give the machine more",
     "see what fills it: performance_schema's memory summaries"},
    {"ClickHouse",
     "raise max_memory_usage or max_server_memory_usage, or let large queries spill "
     "(max_bytes_before_external_group_by, max_bytes_before_external_sort)",
     "see what fills it: system.query_log and system.processes (memory_usage)"},
    {"DuckDB",
     "raise memory_limit, set temp_directory so that it can spill, or fewer threads",
     "see what fills it: duckdb_memory()"},
    {"Redis", "raise maxmemory, or set a maxmemory-policy that evicts", "see INFO memory"},
    {"PHP", "raise memory_limit in php.ini", "see memory_get_peak_usage()"},
};

void memory_of_a_program(std::string_view source, std::vector<std::string>* out) {
  const auto known = std::find_if(std::begin(kProgramAdvice),
                                  std::end(kProgramAdvice),
                                  [source](const auto& one) { return one.source == source; });
  if (known != std::end(kProgramAdvice)) {
    out->emplace_back(known->more);
    out->emplace_back(known->see);
  } else {
    out->emplace_back(
        "give the machine or the container more (docker --memory, a pod's or a job's memory "
        "request), or swap; see the process's own limits (ulimit -v)");
    out->emplace_back("see what grows on the host: ps, smem, or a heap profiler of the language");
  }
  out->emplace_back(
      "no GPU is involved: no GPU allocator changes this, and nofrag does not either; if a job on "
      "a "
      "GPU failed as well, give its own message or its log");
}

}  // namespace

void advise_on_host(const Failure& f, std::vector<std::string>* out) {
  switch (f.host.which) {
    case HostMemory::kMachine:
      if (f.source == "Ollama" || f.source == "llama.cpp") {
        out->emplace_back(
            "take a smaller model or one in fewer bits, a shorter context, or end what else holds "
            "the machine's memory (free -h)");
      }
      [[fallthrough]];
    case HostMemory::kContainer:
      machine_memory(f.host.which == HostMemory::kContainer, out);
      break;
    case HostMemory::kShared:
      shared_memory(out);
      break;
    case HostMemory::kOpenFiles:
      open_files(out);
      break;
    case HostMemory::kPinned:
      pinned_memory(out);
      break;
    case HostMemory::kProgram:
      memory_of_a_program(f.source, out);
      break;
  }
}

}  // namespace nofrag
