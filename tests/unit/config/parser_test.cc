#include "config/parser.h"

#include <gtest/gtest.h>

namespace nofrag {
namespace {

struct Parsed {
  Options options;
  std::vector<std::string> problems;
  OptionSet given;
  bool good = false;
};

Parsed parse(std::string_view text) {
  Parsed parsed;
  parsed.good = parse_options(text, &parsed.options, &parsed.problems, &parsed.given);
  return parsed;
}

TEST(ParseOptions, EmptyTextIsTheDefaults) {
  for (const char* text : {"", " ", ",", " , ,"}) {
    const Parsed parsed = parse(text);
    EXPECT_TRUE(parsed.good) << text;
    EXPECT_TRUE(parsed.given.none()) << text;
    EXPECT_EQ(parsed.options.driver, "cuda");
    EXPECT_EQ(parsed.options.handle_size, Options().handle_size);
  }
}

TEST(ParseOptions, EveryTypeIsRead) {
  const Parsed parsed = parse(
      " driver : sim:h100-80g , backend:vmm,handle_size:32MiB,reserve_slack:0.25,limit:24GiB,"
      "memory_fraction:0.5,shareable_handles:fd,rdma:False,log:info,stats:exit,abort_conf:1");
  EXPECT_TRUE(parsed.good) << parsed.problems[0];
  EXPECT_EQ(parsed.options.driver, "sim:h100-80g");
  EXPECT_EQ(parsed.options.backend, Backend::kVmm);
  EXPECT_EQ(parsed.options.handle_size, 32 * kMiB);
  EXPECT_DOUBLE_EQ(parsed.options.reserve_slack, 0.25);
  EXPECT_EQ(parsed.options.limit, 24 * kGiB);
  EXPECT_DOUBLE_EQ(parsed.options.memory_fraction, 0.5);
  EXPECT_EQ(parsed.options.shareable_handles, ShareableHandles::kFd);
  EXPECT_FALSE(parsed.options.rdma);
  EXPECT_EQ(parsed.options.log, LogLevel::kInfo);
  EXPECT_EQ(parsed.options.stats, StatsMode::kExit);
  EXPECT_TRUE(parsed.options.abort_conf);
  EXPECT_FALSE(parsed.options.confirm_conf);
  EXPECT_EQ(parsed.given.count(), 11U);
}

TEST(ParseOptions, ThePolicyAndItsSingleNumbers) {
  const Options defaults;
  EXPECT_EQ(defaults.policy, Policy::kBalanced);
  EXPECT_EQ(defaults.handle_size, Bytes(0)) << "as the policy says";
  EXPECT_LT(defaults.reserve_slack, 0) << "as the policy says";
  EXPECT_EQ(defaults.max_cuts, -1) << "as the policy says";
  EXPECT_EQ(parse("policy:lean").options.policy, Policy::kLean);
  EXPECT_EQ(parse("policy:balanced").options.policy, Policy::kBalanced);
  const Parsed parsed =
      parse("policy:fast,handle_size:0,reserve_slack:-1,max_aliases:1,max_cuts:1000000");
  EXPECT_TRUE(parsed.good) << parsed.problems[0];
  EXPECT_EQ(parsed.options.policy, Policy::kFast);
  EXPECT_EQ(parsed.options.handle_size, Bytes(0));
  EXPECT_DOUBLE_EQ(parsed.options.reserve_slack, -1);
  EXPECT_EQ(parsed.options.max_aliases, 1);
  EXPECT_EQ(parsed.options.max_cuts, 1000000);
  EXPECT_EQ(parsed.given.count(), 5U);
  EXPECT_EQ(parse("max_cuts:0").options.max_cuts, 0);
  EXPECT_EQ(parse("max_cuts:-1").options.max_cuts, -1);
  EXPECT_EQ(parse("max_aliases:64").options.max_aliases, 64);
}

TEST(ParseOptions, EveryPlaceOfMetricsIsTaken) {
  for (const char* place :
       {"off", "0", "1", "9400", "65535", "0.0.0.0:9400", "127.0.0.1:0", "file:m.prom"}) {
    const Parsed parsed = parse("metrics:" + std::string(place));
    EXPECT_TRUE(parsed.good) << place;
    EXPECT_EQ(parsed.options.metrics, place);
  }
}

TEST(ParseOptions, LastOfAKeyHolds) {
  EXPECT_EQ(parse("limit:1GiB,limit:2GiB").options.limit, 2 * kGiB);
}

TEST(ParseOptions, GoodItemsAroundABadOneHold) {
  const Parsed parsed = parse("limit:1GiB,handle_size:huge,rdma:false");
  EXPECT_FALSE(parsed.good);
  EXPECT_EQ(parsed.problems.size(), 1U);
  EXPECT_EQ(parsed.options.limit, kGiB);
  EXPECT_EQ(parsed.options.handle_size, Options().handle_size);
  EXPECT_FALSE(parsed.options.rdma);
}

TEST(ParseOptions, ProblemsNameTheKeyAndTheWayOut) {
  struct Case {
    const char* text;
    const char* problem;
  };
  const Case cases[] = {
      {"handel_size:2MiB", "unknown option \"handel_size\"; did you mean handle_size?"},
      {"limt:1GiB", "unknown option \"limt\"; did you mean limit?"},
      {"expandable_segments:True",
       "unknown option \"expandable_segments\" (docs/options.md has all)"},
      {":1GiB", "\":1GiB\" names no option (write key:value)"},
      {"limit", "\"limit\" has no value (write key:value)"},
      {",,:", "\":\" names no option (write key:value)"},
      {"limit:", "option limit: \"\" is not a size (write 4096B, 512KiB, 500MiB or 24GiB)"},
      {"limit:24GB",
       "option limit: \"24GB\" is not a size (write 24GiB, or 24000000000B for decimal units)"},
      {"limit:1.5g",
       "option limit: \"1.5g\" is not a size (write 1.5GiB, or 1500000000B for decimal units)"},
      {"limit:0.0001kb", "option limit: \"0.0001kb\" is not a size (write 0.0001KiB)"},
      {"limit:24GBs",
       "option limit: \"24GBs\" is not a size (write 4096B, 512KiB, 500MiB or 24GiB)"},
      {"limit:-1", "option limit: \"-1\" is not a size (write 4096B, 512KiB, 500MiB or 24GiB)"},
      {"handle_size:2GiB", "option handle_size: \"2GiB\" is outside 0B to 1GiB"},
      {"max_aliases:0", "option max_aliases: \"0\" is outside 1 to 64"},
      {"max_aliases:65", "option max_aliases: \"65\" is outside 1 to 64"},
      {"max_cuts:-2", "option max_cuts: \"-2\" is outside -1 to 1000000"},
      {"reserve_slack:-1.5", "option reserve_slack: \"-1.5\" is outside 0 to 10 (or -1)"},
      {"reserve_slack:-0.5", "option reserve_slack: \"-0.5\" is outside 0 to 10 (or -1)"},
      {"reserve_slack:10.1", "option reserve_slack: \"10.1\" is outside 0 to 10 (or -1)"},
      {"policy:leanest", "option policy: \"leanest\" is not one of balanced, lean, fast"},
      {"handle_size:none",
       "option handle_size: \"none\" is not a size (write 4096B, 512KiB, 500MiB or 24GiB)"},
      {"memory_fraction:1.5", "option memory_fraction: \"1.5\" is outside 0 to 1"},
      {"memory_fraction:nan", "option memory_fraction: \"nan\" is not a number"},
      {"memory_fraction:0.5x", "option memory_fraction: \"0.5x\" is not a number"},
      {"rdma:maybe", "option rdma: \"maybe\" is neither true nor false"},
      {"backend:cudaMallocAsync",
       "option backend: \"cudaMallocAsync\" is not one of auto, vmm, plain"},
      {"driver:", "option driver: the value is empty"},
      {"metrics:99999",
       "option metrics: \"99999\" is no port (1 to 65535), no ADDRESS:PORT, no file:PATH and not "
       "off"},
      {"metrics:-1",
       "option metrics: \"-1\" is no port (1 to 65535), no ADDRESS:PORT, no file:PATH and not off"},
      {"metrics:localhost:9400",
       "option metrics: \"localhost:9400\" is no port (1 to 65535), no ADDRESS:PORT, no file:PATH "
       "and not off"},
      {"metrics:a:b:c",
       "option metrics: \"a:b:c\" is no port (1 to 65535), no ADDRESS:PORT, no file:PATH and not "
       "off"},
      {"metrics:file:", "option metrics: \"file:\" names no file (write file:PATH)"},
      {"driver:[a,b]", "option driver: \"[a,b]\" is a list, and no option takes one"},
      {"x\ny:1", "unknown option \"x?y\" (docs/options.md has all)"},
  };
  for (const Case& bad : cases) {
    const Parsed parsed = parse(bad.text);
    EXPECT_FALSE(parsed.good) << bad.text;
    ASSERT_EQ(parsed.problems.size(), 1U) << bad.text;
    EXPECT_EQ(parsed.problems[0], bad.problem);
    EXPECT_TRUE(parsed.given.none()) << bad.text;
  }
}

TEST(ParseOptions, ADecimalCommaIsNamed) {
  const Parsed parsed = parse("rdma:false,limit:1,5GiB");
  EXPECT_FALSE(parsed.good);
  ASSERT_EQ(parsed.problems.size(), 1U);
  EXPECT_EQ(parsed.problems[0], "\"5GiB\" has no value (write limit:1.5GiB: a comma ends an item)");
  EXPECT_EQ(no_size("1,5GiB"), "\"1,5GiB\" is not a size (write 1.5GiB: a size takes no comma)");
  EXPECT_EQ(no_size("1,024MiB"),
            "\"1,024MiB\" is not a size (write 1024MiB or 1.024MiB: a size takes no comma)");
  for (const char* text : {"", ",", "1,2,3GiB", "1,GiBs", "-1GB", "GB", "x,5GiB"}) {
    EXPECT_NE(no_size(text).find("24GiB"), std::string::npos) << text;
  }
}

TEST(ParseOptions, LongInputIsQuotedShort) {
  const Parsed parsed = parse("backend:" + std::string(100000, 'x'));
  ASSERT_EQ(parsed.problems.size(), 1U);
  EXPECT_LT(parsed.problems[0].size(), 200U);
}

TEST(ParseBytes, Table) {
  struct Case {
    const char* text;
    std::uint64_t bytes;
  };
  const Case good[] = {{"0", 0},
                       {"4096", 4096},
                       {"4096B", 4096},
                       {"512KiB", 512ULL << 10},
                       {"500MiB", 500ULL << 20},
                       {"24GiB", 24ULL << 30},
                       {"24 gib", 24ULL << 30},
                       {"2TiB", 2ULL << 40},
                       {"1.5GiB", 3ULL << 29},
                       {"0.5KiB", 512},
                       {"79.18GiB", 85018877624},
                       {"1.9GiB", 2040109465},
                       {"0.001KiB", 1},
                       {"18446744073709551615", UINT64_MAX}};
  for (const Case& c : good) {
    Bytes bytes;
    EXPECT_TRUE(parse_bytes(c.text, &bytes)) << c.text;
    EXPECT_EQ(bytes.count(), c.bytes) << c.text;
  }
  for (const char* text : {"",
                           "GiB",
                           "-1",
                           "+1",
                           "1e9",
                           "1.1.1GiB",
                           "0.3B",
                           "0.0001KiB",
                           ".",
                           "1KB",
                           "1 Gi B",
                           "0x10",
                           "18446744073709551616",
                           "17179869185GiB",
                           "99999999999.5TiB"}) {
    Bytes bytes;
    EXPECT_FALSE(parse_bytes(text, &bytes)) << text;
  }
}

}  // namespace
}  // namespace nofrag
