#include "diagnose/shortage.h"

#include <algorithm>
#include <cstdio>

#include "config/human_bytes.h"
#include "diagnose/signals.h"

namespace nofrag {
namespace {

// A rise of the lows counts as growth if it goes on (Kendall's tau) and is worth something against live.
constexpr double kSteadyRise = 0.6;
constexpr double kRiseWorth = 0.04;
// Strictly after every unit, less is enough.
constexpr double kStrictRise = 0.95;
constexpr double kStrictRiseWorth = 0.015;
// Requests that grow with it: a context. The same for what the largest request gained in all.
constexpr double kRequestsRise = 0.45;
constexpr double kRequestsGain = 0.15;
// Work that comes again the same has no growing context: what it leaves may differ in size, and a few such sizes rise
// by chance.
constexpr double kRequestsRiseOfSameWork = 0.8;
// Growth of which no more than this was kept since the middle of the work is made anew; growth this old stays.
constexpr double kKeptOfRemade = 0.3;
constexpr double kStays = 0.35;
// Work was done again and again if this many times as much was allocated as stayed.
constexpr double kTurnover = 40;
// Or if its units are complete rises and falls of live memory; or there were more allocations than one step has.
constexpr std::uint64_t kRepeated = 7;
// So few repetitions are no proof, but enough for a doubt that it was the first step.
constexpr std::uint64_t kDoubtful = 3;
// With fewer blocks that go, what comes again may be a weight and what it was cast from, or a part of a layer.
constexpr std::uint64_t kLeastTemporaries = 4;
constexpr std::uint64_t kMostLayers = 96;
// Experts, or a very deep model: rare enough that a leak is the better guess.
constexpr std::uint64_t kMostParts = 1024;
constexpr double kPartsOrSteps = 0.65;
constexpr std::uint64_t kLayerAllocations = 96;
constexpr std::uint64_t kManyAllocations = 20000;
// Less than this is one step's, or a load's.
constexpr std::uint64_t kStepsOrLayers = 200;
// Next to nothing was freed: no work was done yet.
constexpr double kNothingFreed = 0.02;
// A base smaller than this share of live had no model in it, unless nearly all was freed again.
constexpr double kNoBase = 0.25;
constexpr double kMostlyFreed = 0.75;
// The one before the first step, and one more.
constexpr std::uint64_t kPausesOfALoad = 2;
// A few layers of one step, or steps that leave something.
constexpr double kLayersOrSteps = 0.5;
// What had come is given back, and what came in its place meanwhile is less than this share of it: a rise and fall.
constexpr double kReplaced = 0.2;
constexpr double kRiseSeenWhole = 0.6;
// Held over many units of work while others come: contexts.
constexpr double kHeldForLong = 0.6;
// Layers, and what they save is given back.
constexpr double kStepSeenWhole = 0.8;
// A server's own word on why it does not start is no guess.
constexpr double kSaidByTheServer = 0.9;

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f %%", 100 * share);
  return text;
}

void settle_on(Diagnosis* d, Cause cause, double confidence, std::string evidence) {
  d->cause = cause;
  d->confidence = confidence;
  d->evidence.push_back(std::move(evidence));
}

Bytes bytes(double value) {
  return Bytes(value > 0 ? static_cast<std::uint64_t>(value) : 0);
}

bool grows(const Signals& s, Bytes live) {
  const double worth = s.floors.consistency >= kStrictRise ? kStrictRiseWorth : kRiseWorth;
  return s.units > 0 && s.goes_on && s.floors.consistency >= kSteadyRise && live > Bytes(0) &&
         s.rise >= worth * static_cast<double>(live.count());
}

// The same came again so often, and there was work in it.
bool same_work(const Failure& f, std::uint64_t least) {
  return f.repeats.times >= least && f.repeats.temporaries >= kLeastTemporaries;
}

// What grew, and whether it is made anew, larger, as contexts are.
struct Growth {
  bool requests_grow = false;
  bool same_blocks = false;
  bool larger = false;    // they are, and not only more
  bool replaced = false;  // beside what is made anew and does not grow, something stays
  bool stays = false;
  bool aged = false;  // it is known when it was allocated

  Growth(const Failure& f, const Signals& s) {
    const double largest = std::max(1.0, static_cast<double>(s.requests_largest));
    const double gain = s.requests.slope > 0 ? s.requests_rise / largest : 0;
    const double rise = same_work(f, kRepeated) ? kRequestsRiseOfSameWork : kRequestsRise;
    requests_grow = s.requests.consistency >= rise && gain >= kRequestsGain;
    aged = f.growth_age.has_value();
    // Who knows the blocks need not conclude from their number.
    same_blocks = f.growth_kept ? *f.growth_kept <= kKeptOfRemade : !aged && s.same_blocks;
    larger = !f.growth_kept || f.growth_larger;
    replaced = same_blocks && f.rise_kept && !larger;
    same_blocks = same_blocks && !replaced;
    stays = aged && *f.growth_age > kStays;
  }
  [[nodiscard]] int for_context() const {
    return (requests_grow ? 2 : 0) + (same_blocks ? 2 : 0) - (stays || !aged ? 1 : 0);
  }
};

// Are so many units of work the layers of one first step, each with its temporaries? They look like whole ones but for
// this: they are few, small, and nothing pauses between them.
bool like_parts(std::uint64_t units,
                std::uint64_t allocations,
                std::uint64_t pauses,
                std::uint64_t most) {
  return 2 * pauses < units && units <= most && allocations < kLayerAllocations * units;
}

bool like_layers(std::uint64_t units, std::uint64_t allocations, std::uint64_t pauses) {
  return like_parts(units, allocations, pauses, kMostLayers);
}

bool cycles_like_parts(const Failure& f, const Signals& s, std::uint64_t most) {
  const Since& since = s.since;
  return f.pauses && since.cycles <= most &&
         like_parts(since.later_cycles,
                    since.later_cycles * since.cycle_allocations,
                    since.later_paused,
                    most);
}

// The same allocations and frees came again, too often or with too many pauses for that.
bool steps_came_again(const Failure& f) {
  const Repeats& same = f.repeats;
  return same_work(f, kRepeated) &&
         !like_layers(same.times, same.times * same.allocations, same.waits);
}

// They came again so often, but one step of a model of many like parts would too.
bool steps_or_parts(const Failure& f, const Signals& s) {
  const Repeats& same = f.repeats;
  const std::uint64_t allocations = same.times * same.allocations;
  const bool units_are_steps =
      s.since.cycles >= kRepeated && f.pauses && !cycles_like_parts(f, s, kMostParts);
  return steps_came_again(f) && like_parts(same.times, allocations, same.waits, kMostParts) &&
         !units_are_steps;
}

// It may have been more than one step.
bool may_be_steps(const Failure& f) {
  return same_work(f, kDoubtful) || f.repeats.times > kMostLayers;
}

std::string came_again(const Failure& f) {
  const std::uint64_t stayed = f.repeats.allocations - f.repeats.temporaries;
  return std::to_string(f.repeats.temporaries) + " blocks of the same sizes came and went " +
         std::to_string(f.repeats.times) + " times" +
         (stayed > 0 ? ", and each time " + std::to_string(stayed) + " stayed" : "");
}

// Too little of it stays to be what the lows rose by: nothing is lost.
bool given_back(const Failure& f, const Signals& s) {
  return f.fate && 2 * static_cast<double>(f.fate->stay.count()) < s.rise &&
         2 * static_cast<double>(f.fate->given_back.count()) >= s.rise;
}

std::string what_is_given_back(const Failure& f) {
  return human_bytes(f.fate->given_back) +
         " of what had come by then are freed again where the trace goes on, before its work ends, "
         "and " +
         human_bytes(f.fate->stay) + " are not: nothing is lost";
}

void name_growth(const Failure& f, const Growth& growth, const Signals& s, Diagnosis* d) {
  const std::string rise = "the lows of live memory rose by " + human_bytes(bytes(s.rise)) +
                           " over " + std::to_string(s.rise_units) + " units of work";
  if (growth.for_context() > 0) {
    settle_on(d, Cause::kKvCacheGrowth, growth.for_context() >= 2 ? 0.85 : 0.65, rise);
    if (growth.requests_grow) {
      d->evidence.push_back("requests grew with it, up to " +
                            human_bytes(Bytes(s.requests_largest)));
    }
    if (growth.same_blocks) {
      d->evidence.emplace_back(
          growth.larger ? "what it grew by is made anew all the time, larger, and not added to"
                        : "most of what had come by the middle of the work has gone since, and "
                          "more came in its place");
    }
    return;
  }
  if (given_back(f, s)) {
    const bool whole = static_cast<double>(f.fate->fall.count()) >=
                       (1 - kReplaced) * static_cast<double>(f.fate->given_back.count());
    settle_on(d,
              whole ? Cause::kBatchTooLarge : Cause::kKvCacheGrowth,
              whole ? kRiseSeenWhole : kHeldForLong,
              rise);
    d->evidence.push_back(what_is_given_back(f));
    return;
  }
  const bool parts = steps_or_parts(f, s);
  settle_on(d,
            Cause::kLeak,
            parts          ? kPartsOrSteps
            : growth.stays ? 0.85
                           : 0.7,
            rise + ", while the requests did not grow");
  if (steps_came_again(f)) {
    d->evidence.push_back(came_again(f));
  }
  if (parts) {
    d->evidence.emplace_back(
        "one step of a model of so many like parts (layers, experts) would look the same");
  }
  if (growth.stays) {
    d->evidence.emplace_back(
        "what it grew by was allocated all along since the work began, and stays");
  }
  if (growth.replaced) {
    d->evidence.emplace_back(
        "it grew by what was never freed: what is replaced all the time did not grow");
  }
  d->evidence.emplace_back("(a cache that grows by equal pieces and never lets go looks the same)");
}

void say_of_few_steps(const Failure& f, Diagnosis* d) {
  if (may_be_steps(f)) {
    d->evidence.push_back(came_again(f) +
                          (f.repeats.times > kMostLayers ? "" : ": layers or steps"));
  }
  d->evidence.emplace_back(
      "it is a leak if many steps had been done by then: something keeps a part of each");
}

// The lows rose, and nothing shows that work was repeated: a first step keeps what its layers save, a leak what its
// steps leave.
void name_growth_of_few(const Failure& f, const Signals& s, Diagnosis* d) {
  const bool seen_whole = given_back(f, s);
  settle_on(d,
            Cause::kBatchTooLarge,
            seen_whole ? kStepSeenWhole : kLayersOrSteps,
            "the lows of live memory rose by " + human_bytes(bytes(s.rise)) + " over " +
                std::to_string(s.since.work) +
                " allocations: the layers of one step, and what they save, look so");
  if (seen_whole) {
    d->evidence.push_back(what_is_given_back(f));
    return;
  }
  say_of_few_steps(f, d);
}

// Before any work repeated: the load of the model, or its first step.
void name_start(const Failure& f, const Signals& s, Diagnosis* d) {
  const std::string live = human_bytes(f.live.value_or(Bytes(0)));
  const bool pure_growth = s.freed_share < kNothingFreed;
  const bool load_with_casts = !pure_growth && s.at_once && s.base_share < kNoBase;
  if (!s.stepped && (pure_growth || load_with_casts || s.few_frees)) {
    settle_on(d,
              Cause::kModelTooLarge,
              load_with_casts ? 0.6 : 0.8,
              "memory filled to " + live + " from the start, before any step was complete: " +
                  (pure_growth ? "nothing had been freed yet"
                               : "only what was copied on the way had been freed"));
    return;
  }
  if (may_be_steps(f)) {
    settle_on(d,
              Cause::kBatchTooLarge,
              kLayersOrSteps,
              "it failed in the first step, or in steps that gave back less than they kept: live "
              "memory never fell far again");
    say_of_few_steps(f, d);
    return;
  }
  settle_on(d,
            Cause::kBatchTooLarge,
            pure_growth ? 0.65 : 0.8,
            "it failed in the first step: " +
                (pure_growth ? "after a pause, which parts the load from it, "
                 : s.base_share > 1
                     ? "more than what is live now was there before the step, and "
                     : percent(s.base_share) + " of what is live was there before the step, and ") +
                "no fall of live memory tells of a complete step");
}

// A load with copies on the way, a pause, and one step that nothing parts: its growth is the load's and the step's.
bool load_and_one_step(const Failure& f, const Signals& s) {
  return s.at_once && s.base_share < kNoBase && s.stepped && s.cycles < 2 && f.pauses &&
         f.pauses->size() <= kPausesOfALoad;
}

void name_by_history(const Failure& f, const Signals& s, Diagnosis* d) {
  const Bytes live = f.live.value_or(Bytes(f.timeline->live()));
  bool may_be_growth = false;
  // Copies on the way are rises and falls too, but they begin with the load, and each leaves a block.
  const bool steps = steps_came_again(f) && f.repeats.allocations < 2 * f.repeats.temporaries;
  const bool from_nothing =
      s.at_once && s.base_share < kNoBase && s.freed_share < kMostlyFreed && !s.stepped && !steps;
  if (!from_nothing && !load_and_one_step(f, s) && grows(s, live)) {
    // One first step grows too, by what it saves; but it hardly allocates more than that.
    const Growth growth(f, s);
    const bool layers = cycles_like_parts(f, s, kMostLayers);
    const bool repeated = (s.since.cycles >= kRepeated && !layers) || steps_came_again(f);
    if (repeated || growth.for_context() > (layers ? 1 : 0) ||
        (!layers && s.since.turnover >= kTurnover) || s.since.work >= kManyAllocations) {
      name_growth(f, growth, s, d);
      return;
    }
    may_be_growth =
        s.cycles >= 2 || (s.floors.consistency >= kStrictRise && s.work >= kStepsOrLayers);
  }
  if (may_be_growth) {
    name_growth_of_few(f, s, d);
    return;
  }
  if (s.cycles < 2 || from_nothing) {
    name_start(f, s, d);
    return;
  }
  const bool larger = f.requested && f.requested->count() > s.largest_before;
  const bool higher = live.count() + f.requested.value_or(Bytes(0)).count() > s.highest_before;
  settle_on(d,
            Cause::kBatchTooLarge,
            larger || higher ? 0.8 : 0.6,
            std::to_string(s.cycles) +
                " rises and falls of live memory came before, with level lows: no growth");
  if (larger) {
    d->evidence.push_back("the request of " + human_bytes(*f.requested) +
                          " is larger than every one before (" +
                          human_bytes(Bytes(s.largest_before)) + ")");
  }
}

std::string cache_too_small(const Failure& f) {
  std::string text =
      "the server says at its start that its KV cache has no room for one request of the longest "
      "length";
  if (f.requested && f.limit) {
    text += ": that takes " + human_bytes(*f.requested) + ", and " + human_bytes(*f.limit) +
            " are left for it";
  }
  if (f.cache_tokens > 0) {
    text += "; it holds " + std::to_string(f.cache_tokens) + " tokens";
  }
  return text;
}

bool by_moment(const Failure& f, double confidence, Diagnosis* d) {
  switch (f.moment) {
    case Moment::kLoading:
      settle_on(
          d, Cause::kModelTooLarge, confidence, "the text says that a model was being loaded");
      return true;
    case Moment::kKvCache:
      settle_on(d,
                Cause::kKvCacheGrowth,
                confidence,
                "the text says that it was the KV cache that asked");
      return true;
    case Moment::kStep:
      settle_on(
          d, Cause::kBatchTooLarge, confidence, "the text says that a step was being computed");
      return true;
    case Moment::kNoRoomForCache:
      settle_on(d,
                Cause::kModelTooLarge,
                kSaidByTheServer,
                "the server says at its start that weights and activations left no room for a KV "
                "cache: nothing was served yet");
      return true;
    case Moment::kCacheTooSmall:
      settle_on(d, Cause::kKvCacheGrowth, kSaidByTheServer, cache_too_small(f));
      return true;
    case Moment::kOptimizerState:
      settle_on(d,
                Cause::kModelTooLarge,
                confidence,
                "the text says that an optimizer was making its state, whose size goes by the "
                "model, whatever the batch");
      return true;
    case Moment::kUnknown:
      return false;
  }
  return false;
}

}  // namespace

void guess_from_moment(const Failure& failure, Diagnosis* d) {
  if (by_moment(failure, 0.4, d)) {
    return;
  }
  if (d->evidence.empty()) {
    d->cause = Cause::kUnknown;
    d->confidence = 0;
  }
}

void name_shortage(const Failure& f, Diagnosis* d) {
  if (f.timeline != nullptr) {
    const Signals s = signals_of(*f.timeline, f.pauses.value_or(std::vector<std::uint64_t>()));
    if (s.history) {
      name_by_history(f, s, d);
      return;
    }
  }
  if (by_moment(f, 0.7, d)) {
    return;
  }
  // Numbers of one moment. Where a program has freed something its allocator holds more than it uses.
  const Bytes live = f.live.value_or(Bytes(0));
  const bool never_freed = f.cached && f.cached->count() < live.count() / 200;
  if (never_freed) {
    settle_on(d,
              Cause::kModelTooLarge,
              0.5,
              human_bytes(live) + " are in use and next to nothing (" + human_bytes(*f.cached) +
                  ") was ever freed, as while a model is loaded");
  } else {
    settle_on(d,
              Cause::kBatchTooLarge,
              0.45,
              human_bytes(live) + " are in use and memory had been freed before, as in a step");
  }
  d->evidence.emplace_back("one message cannot tell the causes of a shortage apart for certain");
}

}  // namespace nofrag
