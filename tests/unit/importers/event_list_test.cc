#include "trace/importers/event_list.h"

#include <gtest/gtest.h>

#include "samples.h"

namespace nofrag {
namespace {

EventList::Event at(std::uint64_t time, std::uint64_t address, std::uint64_t size, std::uint64_t stream = 0) {
  EventList::Event event;
  event.time_us = time;
  event.address = address;
  event.size = size;
  event.stream = stream;
  return event;
}

Trace built(EventList& events, const EventList::Rules& rules = {}) {
  std::vector<Trace> traces;
  EXPECT_TRUE(events.build(TraceFormat::kRmm, rules, &traces)) << events.problem().found;
  EXPECT_EQ(traces.size(), 1U);
  return traces.empty() ? Trace() : traces[0];
}

TEST(EventList, AMissingFreeIsPutBeforeTheReuseAndSaid) {
  EventList events;
  events.device(0);
  ASSERT_TRUE(events.add_allocation(at(0, 0x10, 100)));
  ASSERT_TRUE(events.add_allocation(at(5, 0x10, 200, 3)));
  ASSERT_TRUE(events.add_free(at(6, 0x10, 200)));
  const Trace trace = built(events);
  EXPECT_EQ(lines_of(trace), "0,a,0,100,0\n5,f,0,100,0\n5,a,1,200,3\n6,f,1,200,0\n");
  EXPECT_TRUE(has_note(trace, "1 free is missing"));
}

TEST(EventList, AFreeOfNothingKnownIsLeftOutAndSaid) {
  EventList events;
  events.device(0);
  ASSERT_TRUE(events.add_allocation(at(0, 0x10, 100)));
  ASSERT_TRUE(events.add_free(at(6, 0x99, EventList::kUnknownSize)));
  const Trace trace = built(events);
  EXPECT_EQ(lines_of(trace), "0,a,0,100,0\n");
  EXPECT_TRUE(has_note(trace, "neither allocation nor size is known"));
}

TEST(EventList, ALateFreeBelongsToTheBlockBefore) {
  EventList events;
  events.device(0);
  ASSERT_TRUE(events.add_allocation(at(0, 0x10, 100)));
  ASSERT_TRUE(events.add_allocation(at(5, 0x10, 100)));
  ASSERT_TRUE(events.add_free(at(6, 0x10, 100)));
  EventList::Rules rules;
  rules.late_frees = true;
  const Trace trace = built(events, rules);
  EXPECT_EQ(lines_of(trace), "0,a,0,100,0\n5,f,0,100,0\n5,a,1,100,0\n");
  EXPECT_TRUE(has_note(trace, "recorded after the allocation"));
  EXPECT_FALSE(has_note(trace, "missing"));
}

TEST(EventList, ALateFreeThatNeverComesIsMissing) {
  EventList events;
  events.device(0);
  ASSERT_TRUE(events.add_allocation(at(0, 0x10, 100)));
  ASSERT_TRUE(events.add_allocation(at(5, 0x10, 200)));
  ASSERT_TRUE(events.add_free(at(6, 0x10, 200)));
  EventList::Rules rules;
  rules.late_frees = true;
  const Trace trace = built(events, rules);
  EXPECT_EQ(trace.live_at_end, Bytes(0));
  EXPECT_TRUE(has_note(trace, "1 free is missing"));
}

TEST(EventList, TimesNeverGoBack) {
  EventList events;
  events.device(0);
  ASSERT_TRUE(events.add_allocation(at(10, 0x10, 100)));
  ASSERT_TRUE(events.add_allocation(at(8, 0x20, 100)));
  const Trace trace = built(events);
  EXPECT_EQ(trace.events[1].time_us, 10U);
  EXPECT_TRUE(has_note(trace, "1 time goes back"));
}

TEST(EventList, MarksStayBetweenTheirEvents) {
  EventList events;
  events.device(0);
  ASSERT_TRUE(events.add_existing(at(0, 0x50, 512)));
  ASSERT_TRUE(events.add_allocation(at(10, 0x10, 100)));
  events.add_mark(0, {TraceMark::Kind::kOutOfMemory, 0, 11, 777, 5});
  ASSERT_TRUE(events.add_free(at(12, 0x10, 100)));
  events.add_mark(0, {TraceMark::Kind::kOutOfMemory, 0, 13, 778, {}});
  const Trace trace = built(events);
  ASSERT_EQ(trace.marks.size(), 2U);
  EXPECT_EQ(trace.marks[0].event, 2U);
  EXPECT_EQ(trace.marks[1].event, 3U);
}

TEST(EventList, RefusesWhatNoTraceHolds) {
  EventList events;
  events.device(0);
  EXPECT_FALSE(events.add_allocation(at(0, 1, (1ULL << 60) + 1)));
  EXPECT_FALSE(events.add_allocation(at((1ULL << 53) + 1, 1, 1)));
  EventList::Event lost = at(0, 1, 1);
  lost.device = EventList::kNoDevice;
  EXPECT_FALSE(events.add_free(lost));
  EXPECT_TRUE(events.empty());
}

}  // namespace
}  // namespace nofrag
