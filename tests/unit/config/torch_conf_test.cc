#include "config/torch_conf.h"

#include <fstream>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "config/parser.h"

namespace nofrag {
namespace {

TorchConf native(std::string_view text) {
  return read_torch_conf(text, TorchDoor::kNative);
}

TEST(TorchConf, NothingSaysNothing) {
  for (const char* text : {"", " ", ",", "backend:native", " backend : native ,"}) {
    const TorchConf conf = native(text);
    EXPECT_TRUE(conf.notes.empty()) << text << ": " << conf.notes[0];
    EXPECT_EQ(conf.options, "") << text;
    EXPECT_EQ(conf.refusal, "") << text;
  }
}

TEST(TorchConf, FractionBecomesAnOption) {
  const TorchConf conf = native("per_process_memory_fraction:0.25");
  EXPECT_EQ(conf.options, "memory_fraction:0.25");
  EXPECT_TRUE(conf.notes.empty());
  Options options;
  std::vector<std::string> problems;
  EXPECT_TRUE(parse_options(conf.options, &options, &problems));
  EXPECT_DOUBLE_EQ(options.memory_fraction, 0.25);
  EXPECT_EQ(native("per_process_memory_fraction:0.25,per_process_memory_fraction:0.5").options,
            "memory_fraction:0.5");
}

TEST(TorchConf, BadFractionIsSaidAndNotUsed) {
  for (const char* value : {"1.5", "-0.1", "half", "", "[0.5]"}) {
    const TorchConf conf = native("per_process_memory_fraction:" + std::string(value));
    EXPECT_EQ(conf.options, "") << value;
    ASSERT_EQ(conf.notes.size(), 1U) << value;
    EXPECT_NE(conf.notes[0].find("is not a number from 0 to 1"), std::string::npos)
        << conf.notes[0];
  }
}

TEST(TorchConf, AnotherBackendIsRefused) {
  for (const TorchDoor door : {TorchDoor::kNative, TorchDoor::kHooks}) {
    const TorchConf conf =
        read_torch_conf("expandable_segments:True,backend:cudaMallocAsync", door);
    EXPECT_NE(conf.refusal.find("cudaMallocAsync"), std::string::npos) << conf.refusal;
  }
  const TorchConf conf = native("backend:own");
  EXPECT_EQ(conf.refusal, "");
  ASSERT_EQ(conf.notes.size(), 1U);
  EXPECT_NE(conf.notes[0].find("\"own\" is neither"), std::string::npos) << conf.notes[0];
}

TEST(TorchConf, KeysWithoutEffectAreOneNote) {
  EXPECT_EQ(native("expandable_segments:True").notes,
            std::vector<std::string>{"expandable_segments has no effect under nofrag"});
  EXPECT_EQ(native("max_split_size_mb:64,expandable_segments:True,max_split_size_mb:32").notes,
            std::vector<std::string>{
                "max_split_size_mb and expandable_segments have no effect under nofrag"});
  const TorchConf three =
      native("max_split_size_mb:64,expandable_segments:True,garbage_collection_threshold:0.8");
  ASSERT_EQ(three.notes.size(), 1U);
  EXPECT_EQ(three.notes[0].find("max_split_size_mb, expandable_segments and garbage_collection_"),
            0U);
}

TEST(TorchConf, ListsAreOneValue) {
  const std::string_view text = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]";
  EXPECT_TRUE(native(text).notes.empty());
  EXPECT_EQ(read_torch_conf(text, TorchDoor::kHooks).notes,
            std::vector<std::string>{"roundup_power2_divisions has no effect under nofrag"});
}

TEST(TorchConf, HostMemoryStaysPyTorchs) {
  EXPECT_TRUE(
      native("pinned_use_cuda_host_register:True,pinned_num_register_threads:8").notes.empty());
}

TEST(TorchConf, UnknownKeysAreNamedWithTheNearest) {
  const TorchConf conf = native("expandable_segment:True");
  ASSERT_EQ(conf.notes.size(), 1U);
  EXPECT_EQ(conf.notes[0], "unknown key \"expandable_segment\"; did you mean expandable_segments?");
  EXPECT_EQ(native("zebra:1").notes, std::vector<std::string>{"unknown key \"zebra\""});
  EXPECT_EQ(native("max_split_size_mb").notes,
            std::vector<std::string>{"\"max_split_size_mb\" has no value (write key:value)"});
}

TEST(TorchConf, EveryKeyIsKnownOnceAndHasItsEffect) {
  std::set<std::string_view> seen;
  for (const TorchKey& key : torch_keys()) {
    EXPECT_TRUE(seen.insert(key.key).second) << key.key;
    EXPECT_FALSE(key.doc.empty()) << key.key;
    for (const auto& [door, effect] :
         {std::pair(TorchDoor::kNative, key.native), std::pair(TorchDoor::kHooks, key.hooks)}) {
      const std::string value = key.key == "backend" ? "native" : "0.5";
      const TorchConf conf = read_torch_conf(std::string(key.key) + ":" + value, door);
      EXPECT_EQ(conf.notes.size(), effect == TorchEffect::kNone ? 1U : 0U) << key.key;
      EXPECT_EQ(conf.refusal, "") << key.key;
    }
  }
}

TEST(TorchConf, CommittedTableIsCurrent) {
  std::ifstream file(std::string(NOFRAG_SOURCE_DIR) + "/docs/pytorch.md");
  std::ostringstream committed;
  committed << file.rdbuf();
  const std::string wanted =
      std::string(kTorchTableBegin) + torch_conf_table() + std::string(kTorchTableEnd);
  EXPECT_NE(committed.str().find(wanted), std::string::npos)
      << "the table in docs/pytorch.md is stale: run `ninja options-page` in the build folder and "
         "commit it";
}

}  // namespace
}  // namespace nofrag
