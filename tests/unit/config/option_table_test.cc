#include "config/option_table.h"

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "config/parser.h"

namespace nofrag {
namespace {

TEST(OptionTable, DefaultsAreWhatTheParserReads) {
  const Options defaults;
  const std::vector<OptionRow> table = option_table();
  ASSERT_EQ(table.size(), kOptionCount);
  for (std::size_t i = 0; i < kOptionCount; ++i) {
    const OptionRow& row = table[i];
    EXPECT_EQ(row.key, option_key(static_cast<OptionId>(i)));
    EXPECT_EQ(row.default_value, option_value(defaults, static_cast<OptionId>(i))) << row.key;
    Options options;
    std::vector<std::string> problems;
    EXPECT_TRUE(parse_option(row.key, row.default_value, &options, &problems)) << row.key;
    EXPECT_FALSE(row.doc.empty());
    EXPECT_FALSE(row.since.empty());
  }
}

// A number that means "as the policy says" names the policies' numbers in its text.
TEST(OptionTable, NumbersOfAPolicyAreDocumented) {
  for (const OptionRow& row : option_table()) {
    if (row.key == "handle_size" || row.key == "reserve_slack" || row.key == "max_cuts") {
      for (const char* word : {"as the policy says", "balanced", "lean", "fast"}) {
        EXPECT_NE(row.doc.find(word), std::string_view::npos) << row.key << ": " << word;
      }
    }
    if (row.key == "policy") {
      EXPECT_EQ(row.accepted, "balanced, lean, fast");
    }
  }
}

TEST(OptionTable, FormatBytesUsesTheLargestWholeUnit) {
  EXPECT_EQ(format_bytes(Bytes(0)), "0B");
  EXPECT_EQ(format_bytes(Bytes(1000)), "1000B");
  EXPECT_EQ(format_bytes(3 * kKiB), "3KiB");
  EXPECT_EQ(format_bytes(8 * kMiB), "8MiB");
  EXPECT_EQ(format_bytes(1024 * kMiB), "1GiB");
  EXPECT_EQ(format_bytes(1536 * kGiB), "1536GiB");
  EXPECT_EQ(format_bytes(2048 * kGiB), "2TiB");
  EXPECT_EQ(format_bytes(kNoLimit), "none");
}

TEST(DumpOptions, StrongestSourceIsNamed) {
  Options options;
  std::vector<std::string> problems;
  OptionSet environment;
  OptionSet call;
  ASSERT_TRUE(parse_options("limit:1GiB,log:info", &options, &problems, &environment));
  ASSERT_TRUE(parse_options("limit:2GiB", &options, &problems, &call));
  const std::string dump =
      dump_options(options, {{"NOFRAG_CONF", environment}, {"nofrag_init", call}});
  EXPECT_NE(dump.find("limit:2GiB (nofrag_init)\n"), std::string::npos) << dump;
  EXPECT_NE(dump.find("log:info (NOFRAG_CONF)\n"), std::string::npos) << dump;
  EXPECT_NE(dump.find("backend:auto (default)\n"), std::string::npos) << dump;
}

TEST(ConfText, SaysWhatIsSetAndReadsBackTheSame) {
  const std::string text =
      "driver:sim:h100-80g,policy:lean,reserve_slack:0.25,rdma:false,metrics:file:m.prom";
  Options options;
  std::vector<std::string> problems;
  OptionSet set;
  ASSERT_TRUE(parse_options("limit:9GiB,limit:1536MiB," + text, &options, &problems, &set));
  EXPECT_EQ(conf_text(options, set),
            "driver:sim:h100-80g,policy:lean,reserve_slack:0.25,limit:1536MiB,rdma:false,"
            "metrics:file:m.prom");
  EXPECT_EQ(conf_text(options, {}), "");
}

TEST(OptionsPage, CommittedPageIsCurrent) {
  std::ifstream file(std::string(NOFRAG_SOURCE_DIR) + "/docs/options.md");
  std::ostringstream committed;
  committed << file.rdbuf();
  EXPECT_EQ(committed.str(), options_page())
      << "docs/options.md is stale: run `ninja options-page` in the build folder and commit it";
}

}  // namespace
}  // namespace nofrag
