#include "stats/emitter.h"

#include <cmath>

#include <gtest/gtest.h>

namespace nofrag {
namespace {

void emit_sample(Emitter* emitter) {
  emitter->text("name", "a \"quoted\"\\ name\n");
  emitter->open_list("devices");
  for (int i = 0; i < 2; ++i) {
    emitter->open_item("device " + std::to_string(i));
    emitter->number("bytes", 3ULL << 29, StatUnit::kBytes);
    emitter->number("count", 7, StatUnit::kCount);
    emitter->close_object();
  }
  emitter->close_list();
  emitter->open_object("empty");
  emitter->close_object();
  emitter->real("ratio", 1.23456, 3);
  emitter->real("nan", std::nan(""), 1);
  emitter->number("limit", UINT64_MAX, StatUnit::kBytes);
}

TEST(JsonEmitter, Sample) {
  JsonEmitter emitter;
  emit_sample(&emitter);
  EXPECT_EQ(emitter.take(),
            "{\"name\":\"a \\\"quoted\\\"\\\\ name\\u000a\",\"devices\":["
            "{\"bytes\":1610612736,\"count\":7},{\"bytes\":1610612736,\"count\":7}],"
            "\"empty\":{},\"ratio\":1.235,\"nan\":0.0,\"limit\":18446744073709551615}\n");
}

TEST(TextEmitter, Sample) {
  TextEmitter emitter;
  emit_sample(&emitter);
  const std::string text = emitter.take();
  EXPECT_NE(text.find("device 1:\n  bytes                           1610612736 (1.50 GiB)\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("limit                             none\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace nofrag
