#include "diagnose/classify.h"

#include <algorithm>
#include <array>

#include "config/human_bytes.h"
#include "diagnose/advice.h"
#include "diagnose/shortage.h"

namespace nofrag {
namespace {

// The driver's own needs and the rounding of printed numbers: free memory that exceeds a request by less
// than this proves nothing.
constexpr Bytes kClearlyFree = 256 * kMiB;
constexpr Bytes kFreeWhateverTheRequest = 512 * kMiB;
// Free memory inside an allocator in smaller sums than this may be crumbs of used granules.
constexpr Bytes kClearlyCached = 128 * kMiB;
// A process's context and libraries, at most.
constexpr Bytes kContext = kGiB;
// More than this beside its allocator is none of that.
constexpr Bytes kFarOutside = 2 * kGiB;
// Memory that nobody is named for is other processes' only from this share of the card on.
constexpr std::uint64_t kUnnamedShare = 4;
constexpr Bytes kGranule = 2 * kMiB;
// By so much, and such a share, printed numbers may be off.
constexpr Bytes kRounded = 16 * kMiB;
constexpr std::uint64_t kRoundedShare = 100;

// That a limit refused it is said; what the card had is not.
constexpr double kLimitWithoutSize = 0.7;

struct CauseName {
  std::string_view word;
  std::string_view sentence;
};
constexpr std::array<CauseName, kCauseCount> kCauses = {{
    {"model_too_large", "the model is too large for the memory"},
    {"batch_too_large", "one step needs too much: the batch, or an input in it, is too large"},
    {"kv_cache_growth", "the context or KV cache has grown to the limit"},
    {"fragmentation",
     "fragmentation: the memory was free, in pieces that the allocator could not join"},
    {"leak", "a leak: memory stays in use after each equal unit of work"},
    {"refused_below", "refused below the allocator: the driver said no with memory free"},
    {"other_process", "other processes hold the memory that was missing"},
    {"limit", "a limit that the process was given refused it; the card had the memory"},
    {"host_memory", "the machine's own memory ran out, not the GPU's"},
    {"unknown", "the cause cannot be told from what is known"},
}};

Bytes minus(Bytes a, Bytes b) {
  return a > b ? a - b : Bytes(0);
}

// What could be had from the driver: what it has free, as far as the process's own limit allows.
std::optional<Bytes> obtainable(const Failure& f) {
  std::optional<Bytes> free = f.driver_free;
  if (f.limit && f.reserved()) {
    const Bytes allowed = minus(*f.limit, *f.reserved());
    free = free ? std::min(*free, allowed) : allowed;
  }
  if (!free && f.capacity && f.reserved() && f.source == "trace") {
    free = minus(*f.capacity, *f.reserved());
  }
  return free;
}

void conclude(Diagnosis* d, Cause cause, double confidence, std::string evidence) {
  d->cause = cause;
  d->confidence = confidence;
  d->evidence.insert(d->evidence.begin(), std::move(evidence));
}

// More than the whole card, or than the limit: no allocator and no neighbour matters.
bool larger_than_the_card(const Failure& f, Diagnosis* d) {
  const std::optional<Bytes> most = f.limit && f.limit_reached ? f.limit : f.capacity;
  if (!most || *f.requested <= *most) {
    return false;
  }
  const std::string text = "the request of " + human_bytes(*f.requested) +
                           " alone is larger than the " +
                           (most == f.limit ? "limit of " : "card's ") + human_bytes(*most);
  const bool kv = f.moment == Moment::kKvCache;
  const bool loading = f.moment == Moment::kLoading || f.moment == Moment::kOptimizerState;
  conclude(d,
           kv        ? Cause::kKvCacheGrowth
           : loading ? Cause::kModelTooLarge
                     : Cause::kBatchTooLarge,
           0.9,
           text);
  return true;
}

// The driver refused though it had the memory.
bool refused_below(const Failure& f, Diagnosis* d) {
  if (f.limit_reached || !f.driver_free || *f.driver_free < *f.requested) {
    return false;
  }
  if (f.limit && f.reserved() && *f.reserved() + *f.requested > *f.limit) {
    return false;
  }
  const Bytes margin = *f.driver_free - *f.requested;
  const std::string numbers = "the driver had " + human_bytes(*f.driver_free) +
                              " free for a request of " + human_bytes(*f.requested);
  const bool clear = margin >= kFreeWhateverTheRequest ||
                     (margin >= kClearlyFree && *f.driver_free >= 2 * *f.requested);
  if (clear) {
    const bool far = *f.driver_free >= 2 * *f.requested;
    conclude(d, Cause::kRefusedBelow, far ? 0.9 : 0.65, numbers + " and refused it");
  } else {
    conclude(d,
             Cause::kUnknown,
             0.3,
             numbers + ": it covers it by " + human_bytes(margin) +
                 " only, which rounding, alignment or the driver's own needs may explain");
    d->missing.emplace_back("exact byte counts at the failure");
  }
  return true;
}

bool in_pieces(const Failure& f, Bytes obtainable_bytes, Diagnosis* d) {
  // What a remapping allocator could not use, none could.
  if (!f.cached || f.remapping || *f.cached + obtainable_bytes < *f.requested) {
    return false;
  }
  const std::string numbers = human_bytes(*f.cached) +
                              " held by the allocator were free and the driver had " +
                              human_bytes(obtainable_bytes) + ", together enough for the " +
                              human_bytes(*f.requested) + " asked for";
  const bool clear = *f.cached >= kClearlyCached;
  const Bytes needed = *f.requested - std::min(obtainable_bytes, *f.requested);
  const bool narrow = 4 * needed > 3 * *f.cached;
  conclude(d, Cause::kFragmentation, !clear ? 0.45 : narrow ? 0.75 : 0.9, numbers);
  if (clear && narrow) {
    d->evidence.emplace_back(
        "more than three quarters of what the allocator held are needed for that, and what lies "
        "beside live blocks in "
        "the same 2 MiB cannot be mapped elsewhere: how much that is the text does not tell");
  }
  if (!clear) {
    d->evidence.emplace_back(
        "so little free memory may lie in granules that are partly in use: remapping serves it "
        "only "
        "where the holes span whole 2 MiB granules");
  }
  if (f.pending && *f.pending >= *f.requested) {
    d->evidence.push_back(human_bytes(*f.pending) + " of it waited for streams");
  }
  return true;
}

bool others_have_it(const Failure& f, Diagnosis* d) {
  if (f.limit_reached || !f.capacity) {
    return false;
  }
  const Bytes taken_by_us =
      f.process_in_use ? *f.process_in_use : f.reserved().value_or(*f.capacity) + kContext;
  std::optional<Bytes> others = f.others;
  const bool named = others.has_value();
  if (!named && f.driver_free) {
    others = minus(*f.capacity, taken_by_us + *f.driver_free);
    if (others->count() < f.capacity->count() / kUnnamedShare) {
      return false;
    }
  }
  if (!others || *others < d->short_by || others->is_zero()) {
    return false;
  }
  std::string text = f.other_processes > 0
                         ? std::to_string(f.other_processes) + " other process(es) hold "
                         : "others hold ";
  text += human_bytes(*others) + " of the card's " + human_bytes(*f.capacity) +
          "; without them the " + human_bytes(d->short_by) +
          " that were missing would have been there";
  conclude(d, Cause::kOtherProcess, named ? 0.85 : 0.6, std::move(text));
  return true;
}

// What no card can have had at once. Printed numbers are rounded; traces are checked where they are read.
std::vector<std::string> impossible(const Failure& f) {
  std::vector<std::string> found = f.impossible;
  if (!f.capacity || f.source == "trace") {
    return found;
  }
  const Bytes most = *f.capacity + kRounded + Bytes(f.capacity->count() / kRoundedShare);
  const std::pair<std::optional<Bytes>, const char*> parts[] = {
      {f.driver_free, "free"},
      {f.live, "allocated by the program"},
      {f.reserved(), "held by the allocator"},
      {f.process_in_use, "in use by the process"}};
  for (const auto& [size, what] : parts) {
    if (size && *size > most) {
      found.push_back(human_bytes(*size) + " are said to be " + what + ", of a card that has " +
                      human_bytes(*f.capacity));
      return found;
    }
  }
  if (f.driver_free && f.reserved() && *f.driver_free + *f.reserved() > most) {
    found.push_back(human_bytes(*f.driver_free) + " are said to be free and " +
                    human_bytes(*f.reserved()) + " held, together more than the card's " +
                    human_bytes(*f.capacity));
  }
  return found;
}

// How much more the limit would have had to allow. Memory is held in granules: a limit between two is the lower.
std::string more_than_the_limit(const Failure& f, const Diagnosis& d) {
  if (!f.reserved() || d.short_by.is_zero()) {
    return {};
  }
  // A limit that was lowered below what is held allows nothing until it is above that again.
  const Bytes more = d.short_by + minus(*f.reserved(), *f.limit);
  return "; at least " + human_bytes(more) + " more would have been needed: a limit of " +
         human_bytes(round_up(*f.limit + more, kGranule)) + " or more";
}

void say_limit(const Failure& f, Diagnosis* d) {
  const bool known = f.reserved().has_value();
  conclude(d,
           Cause::kLimit,
           known && f.driver_free ? 0.9 : 0.7,
           (f.limit_name.empty() ? "the process's own limit of " + human_bytes(*f.limit)
                                 : f.limit_name + " (" + human_bytes(*f.limit) + ")") +
               " refused " + human_bytes(*f.requested) + more_than_the_limit(f, *d) +
               (f.driver_free ? "; the driver had " + human_bytes(*f.driver_free) + " free"
                              : "; what the driver had free is not said"));
}

// What a reader should know of the card whatever the cause: who else holds it, and what else this process does.
void say_who_holds(const Failure& f, Diagnosis* d) {
  if (d->cause == Cause::kHostMemory || d->cause == Cause::kLimit || !impossible(f).empty()) {
    return;
  }
  if (f.large_neighbour()) {
    d->evidence.push_back(f.largest_other + " holds " + human_bytes(f.largest_other_size) +
                          " of the card's " + human_bytes(*f.capacity));
  }
  if (f.outside() > kFarOutside) {
    d->evidence.push_back("the process holds " + human_bytes(f.outside()) +
                          " beside what this allocator has reserved; about 1 GiB is normal, for "
                          "the context and libraries");
  }
}

// The bytes were there, and no mapping could have joined them: what a history tells of growth explains little then.
void say_what_is_pinned(const Failure& f, Diagnosis* d) {
  if (!f.pinned_down() || d->cause == Cause::kLimit || !impossible(f).empty()) {
    return;
  }
  d->confidence = std::min(d->confidence, 0.5);
  d->evidence.insert(
      d->evidence.begin(),
      human_bytes(*f.beside_live) + " of the " + human_bytes(*f.reserved()) +
          " that nofrag holds are free, but beside live blocks in the same physical allocations" +
          (f.holders.empty() ? std::string()
                             : " (mostly of " + human_bytes(f.holders.front().size) + ")") +
          ", from where they cannot be mapped elsewhere");
}

void note_missing(const Failure& f, Diagnosis* d) {
  // A server that says why it does not start has said it all.
  if (f.host_memory || f.moment == Moment::kNoRoomForCache || f.moment == Moment::kCacheTooSmall) {
    return;
  }
  const std::pair<bool, const char*> wanted[] = {
      {f.requested.has_value(), "the size of the request"},
      {f.capacity.has_value(), "the memory of the card"},
      {f.live.has_value(), "how much the program had allocated"},
      {f.cached.has_value(), "how much the allocator held and did not use"},
      {f.driver_free.has_value() || f.limit_reached, "how much the driver had free"},
      {f.timeline != nullptr,
       f.vendor == Vendor::kGoogle ? "what the program holds (a memory profile of JAX's)"
       : f.vendor == Vendor::kNvidia
           ? "the history before the failure (a trace, or nofrag's own report)"
           : "the history before the failure (a snapshot of PyTorch's)"},
  };
  for (const auto& [known, what] : wanted) {
    if (!known) {
      d->missing.emplace_back(what);
    }
  }
}

// What the driver had is not known.
void tell_without_free_memory(const Failure& f, Diagnosis* d) {
  if (f.limit_reached && f.limit) {
    say_limit(f, d);
  } else {
    guess_from_moment(f, d);
  }
}

// What is settled before any number is compared.
bool decide_by_text(const Failure& f, Diagnosis* d) {
  if (f.host_memory) {
    d->cause = Cause::kHostMemory;
    d->confidence = f.host.confidence;
    d->evidence = f.host.evidence;
    d->missing = f.host.missing;
    const bool of_gpu_too =
        std::any_of(f.notes.begin(), f.notes.end(), [](const std::string& note) {
          return note.starts_with("the text also tells of GPU memory");
        });
    if (d->missing.empty() && !of_gpu_too) {
      d->evidence.emplace_back("the text tells of memory of the machine, not of a GPU");
    }
    return true;
  }
  if (const std::vector<std::string> contradictions = impossible(f); !contradictions.empty()) {
    d->evidence = contradictions;
    d->missing.emplace_back("numbers that agree: the message whole, as it was printed");
    return true;
  }
  if (f.limit_reached && !f.limit && !f.limit_name.empty()) {
    conclude(
        d, Cause::kLimit, kLimitWithoutSize, f.limit_name + " refused it; its size is not said");
    return true;
  }
  if (!f.requested) {
    guess_from_moment(f, d);
    return true;
  }
  return false;
}

void decide(const Failure& f, Diagnosis* d) {
  if (decide_by_text(f, d)) {
    return;
  }
  const std::optional<Bytes> obtainable_bytes = obtainable(f);
  const std::optional<Bytes> free_here = f.remapping ? f.reachable : f.cached;
  if (obtainable_bytes) {
    d->short_by = minus(*f.requested, *obtainable_bytes + free_here.value_or(Bytes(0)));
  }
  // With a history see blame_limit. What the limit has room for, in pieces, is not its fault.
  if (f.timeline == nullptr && f.limit_is_why() && (!f.reserved() || d->short_by > Bytes(0))) {
    say_limit(f, d);
    return;
  }
  if (larger_than_the_card(f, d) || refused_below(f, d)) {
    // What the driver refuses with memory free it refuses to every allocator.
    d->recoverable_by_remapping =
        obtainable_bytes && d->short_by.is_zero() && d->cause != Cause::kRefusedBelow;
    return;
  }
  if (!obtainable_bytes) {
    tell_without_free_memory(f, d);
    return;
  }
  if (in_pieces(f, *obtainable_bytes, d)) {
    d->recoverable_by_remapping = true;
    return;
  }
  if (!free_here) {
    conclude(d,
             Cause::kUnknown,
             0.2,
             "the driver had " + human_bytes(*obtainable_bytes) + " free for a request of " +
                 human_bytes(*f.requested) +
                 ", but how much the allocator held free is not said: it may have been in pieces, "
                 "or gone");
    guess_from_moment(f, d);
    return;
  }
  if (!others_have_it(f, d)) {
    name_shortage(f, d);
  }
  if (d->short_by > Bytes(0)) {
    d->evidence.push_back("all free memory together falls " + human_bytes(d->short_by) +
                          " short of the request: no allocator could have served it");
  }
}

}  // namespace

std::string_view to_string(Cause cause) {
  return kCauses[static_cast<std::size_t>(cause)].word;
}

std::string_view describe(Cause cause) {
  return kCauses[static_cast<std::size_t>(cause)].sentence;
}

Diagnosis classify(const Failure& failure) {
  Diagnosis d;
  decide(failure, &d);
  say_what_is_pinned(failure, &d);
  say_who_holds(failure, &d);
  note_missing(failure, &d);
  d.missing.insert(d.missing.begin(), failure.wanted.begin(), failure.wanted.end());
  d.evidence.insert(d.evidence.end(), failure.notes.begin(), failure.notes.end());
  if (failure.limit_reached && failure.limit && d.cause != Cause::kLimit) {
    d.evidence.push_back("the process's own limit of " + human_bytes(*failure.limit) +
                         " refused it, not the driver" +
                         (failure.driver_free
                              ? ", which had " + human_bytes(*failure.driver_free) + " free"
                              : std::string()));
  }
  d.advice = advise(failure, d);
  return d;
}

void blame_limit(const Failure& failure, Diagnosis* diagnosis) {
  const bool grows = diagnosis->cause == Cause::kLeak || diagnosis->cause == Cause::kKvCacheGrowth;
  if (!failure.limit_is_why() || grows || diagnosis->cause == Cause::kFragmentation) {
    return;
  }
  // What ran into the limit would have met the card's end on a smaller card: its cause stays known.
  const bool known = diagnosis->cause != Cause::kUnknown && diagnosis->cause != Cause::kLimit;
  std::string behind;
  if (known) {
    behind = "what ran into it: " + std::string(to_string(diagnosis->cause)) +
             (diagnosis->evidence.empty() ? "" : ", " + diagnosis->evidence.front());
  }
  diagnosis->evidence.clear();
  say_limit(failure, diagnosis);
  if (known) {
    diagnosis->evidence.push_back(behind);
  }
  diagnosis->advice = advise(failure, *diagnosis);
}

}  // namespace nofrag
