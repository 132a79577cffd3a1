// make_nofrag: the device allocator itself as a ReplayAllocator.
//
// Layer: cli. Options come from --conf; PeerConfig::limit, if any, becomes options.limit. Threads:
// none. Failure: create errors of DeviceAllocator. Cost: the allocator's, plus one array access an
// event.
#pragma once

#include <memory>

#include "cli/peers/replay_allocator.h"
#include "config/options.h"

namespace nofrag {

Result<std::unique_ptr<ReplayAllocator>> make_nofrag(const PeerConfig& config,
                                                     const Options& options);

}  // namespace nofrag
