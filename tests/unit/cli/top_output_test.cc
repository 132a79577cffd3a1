// What `nofrag top` says of processes whose names are not what one would expect.
#include <cstring>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "cli/top/top.h"

namespace nofrag {
namespace {

TEST(TopJson, ANameThatIsNoUtf8StaysJson) {
  SeenProcess process;
  process.status.pid = 17;
  constexpr char kName[] = "caf\xe9 \xff";
  std::memcpy(process.status.command.data(), kName, sizeof kName);
  const nlohmann::json told = parse_json(top_json({process}));
  ASSERT_TRUE(told.is_object());
  EXPECT_EQ(told.at("processes").at(0).at("pid"), 17);
  EXPECT_EQ(told.at("processes").at(0).at("command"), "caf\uFFFD \uFFFD");
}

}  // namespace
}  // namespace nofrag
