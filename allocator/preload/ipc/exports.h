// Exports: blocks of ours that other processes or devices know of.
//
// Owns: the pins of blocks whose memory was exported (IPC handle, shareable handle, dma-buf), and the socket and
// thread that serve IPC handles to other preloaded processes (export_hooks.cc, channel.cc); what a handle and an answer
// hold. The importer's side is imports.h. Layer: preload. Invariant: an exported block is pinned until it is freed.
// Threads: any, own locks. Failure: CUresults. Cost of note_free: one load while nothing was exported.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "driver/real/driver_api.h"

namespace nofrag::preload {

// The block at `base` is about to be freed: its pin and its handle end.
void note_free(CUdeviceptr base);

// The device's blocks are about to go, and their addresses to others: their handles end. pre: the gate is held
// alone (devices.h).
void forget_exports(int device);

// ---- between the two sides

// One physical allocation under an exported block. The descriptor is open while the export is.
struct ExportedPart {
  int descriptor = -1;
  std::uint64_t size = 0;
};
struct ExportedBlock {
  std::uint64_t id = 0;      // never used again in this process
  std::uint64_t size = 0;    // of the block
  std::uint64_t offset = 0;  // of its first byte in the first part
  int device_in_exporter = 0;
  std::vector<ExportedPart> parts;
};
void close_parts(ExportedBlock& block);

// The address under which this process serves its exports; starts the server with the first. False: no socket
// or no thread.
struct ChannelName {
  std::uint64_t process = 0;
  std::uint64_t secret = 0;
};
bool serve_exports(ChannelName* name);
void offer_export(const ExportedBlock& block);
// Closes its descriptors.
void withdraw_export(std::uint64_t id);

// Asks the process for a block. The descriptors are the caller's to close. False: it is gone, or not ours.
bool fetch_export(const ChannelName& name, std::uint64_t id, ExportedBlock* block);

// What the 64 bytes of a handle of ours hold.
struct HandleText {
  char magic[8] = {};
  ChannelName name;
  std::uint64_t id = 0;
  std::uint64_t size = 0;
  std::uint64_t spare[3] = {};
};
static_assert(sizeof(HandleText) == sizeof(CUipcMemHandle));
constexpr char kHandleMagic[8] = {'n', 'o', 'f', 'r', 'a', 'g', 'I', '1'};

}  // namespace nofrag::preload
