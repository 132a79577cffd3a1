// Options: every setting of nofrag as one plain struct, generated from options.def.
//
// Layer: config (depends on base only). Units: in the field's type. Threads: immutable after start.
// Precedence, applied by runtime: C API call > NOFRAG_CONF > default.
#pragma once

#include <string>

#include "base/units.h"

namespace nofrag {

enum class Backend : unsigned char { kAuto, kVmm, kPlain };
enum class Policy : unsigned char { kBalanced, kLean, kFast };
enum class ShareableHandles : unsigned char { kNone, kFd };
enum class LogLevel : unsigned char { kSilent, kWarning, kInfo };
enum class PreloadMode : unsigned char { kAuto, kVmm, kNative, kOff };
enum class StatsMode : unsigned char { kOff, kExit, kSummary };
enum class NvtxMode : unsigned char { kOff, kRanges, kMemory };

struct Options {
#define NOFRAG_OPTION_BYTES(field, default_value, minimum, maximum, since, doc) \
  Bytes field = (default_value);
#define NOFRAG_OPTION_DOUBLE(field, default_value, minimum, maximum, since, doc) \
  double field = (default_value);
#define NOFRAG_OPTION_INT(field, default_value, minimum, maximum, since, doc) \
  std::int64_t field = (default_value);
#define NOFRAG_OPTION_BOOL(field, default_value, since, doc) bool field = (default_value);
#define NOFRAG_OPTION_STRING(field, default_value, rule, since, doc) \
  std::string field = (default_value);
#define NOFRAG_OPTION_ENUM(field, type, default_value, since, doc) type field = (default_value);
#include "config/options.def"
#undef NOFRAG_OPTION_BYTES
#undef NOFRAG_OPTION_DOUBLE
#undef NOFRAG_OPTION_INT
#undef NOFRAG_OPTION_BOOL
#undef NOFRAG_OPTION_STRING
#undef NOFRAG_OPTION_ENUM
};

}  // namespace nofrag
