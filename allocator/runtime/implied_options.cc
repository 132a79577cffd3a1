#include "runtime/implied_options.h"

#include <algorithm>

#include "trace/nvtx/nvtx_sink.h"

namespace nofrag {
namespace {

// Blocks that lie side by side leave no room in which a tool could notice that one is overrun.
constexpr Bytes kNvtxGuard{512};

}  // namespace

bool add_implied(Options* options) {
  if (options->nvtx != NvtxMode::kMemory || !NvtxSink::available()) {
    return false;
  }
  options->guard = std::max(options->guard, kNvtxGuard);
  if (options->backend != Backend::kAuto) {
    return false;
  }
  options->backend = Backend::kPlain;
  return true;
}

}  // namespace nofrag
