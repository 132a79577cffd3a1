// torch_conf: PyTorch's allocator configuration, read for nofrag in its place.
//
// Owns: the table of torch_conf.def. Layer: config (depends on base only). The text is that of
// PYTORCH_CUDA_ALLOC_CONF, in PyTorch's grammar (config/conf_items.h); values of keys that nofrag does not
// honour are PyTorch's to judge. Threads: pure functions. Failure: a key that nobody knows or a bad value is a
// note, not an error, as in NOFRAG_CONF; a refusal says that nofrag must not be installed. Cost: host only,
// once a process.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nofrag {

// The ways into PyTorch (docs/design.md, doors 3 and 4).
enum class TorchDoor : unsigned char { kHooks, kNative };

enum class TorchEffect : unsigned char { kHonoured, kNone, kPyTorch };

struct TorchKey {
  std::string_view key;
  TorchEffect native;
  TorchEffect hooks;
  std::string_view doc;
};

[[nodiscard]] std::span<const TorchKey> torch_keys();

struct TorchConf {
  std::string options;             // what it asks for, as options of nofrag: "memory_fraction:0.5"
  std::vector<std::string> notes;  // lines that the user should read once
  std::string refusal;             // if not empty, why nofrag must stay out
};

[[nodiscard]] TorchConf read_torch_conf(std::string_view text, TorchDoor door);

// The table in docs/pytorch.md stands between these lines.
inline constexpr std::string_view kTorchTableBegin =
    "<!-- keys: generated from torch_conf.def -->\n";
inline constexpr std::string_view kTorchTableEnd = "<!-- end of keys -->\n";
[[nodiscard]] std::string torch_conf_table();

}  // namespace nofrag
