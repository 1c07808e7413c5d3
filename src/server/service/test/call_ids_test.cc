#include "server/service/call_ids.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lathe {
namespace {

using ::testing::MatchesRegex;
using Json = nlohmann::ordered_json;

const Json kHistory = Json::parse(R"([{"role": "user", "content": "a", "tool_calls": 3},
    {"role": "assistant", "tool_calls": null}, {"role": "assistant", "tool_calls": [
      {"id": "functions.f:0"}, {"id": "abcdefghi"}, {"id": null}, {}]}])");

// The ids of an answer's calls, whose names are all "f", by the model's own ids.
std::vector<std::string> ids_of(ToolFormat format, const std::vector<std::string>& own) {
  CallIds ids(format, earlier_call_ids(format, kHistory));
  std::set<std::string> given;
  std::vector<std::string> out;
  for (const std::string& id : own) out.push_back(ids.add({"f", "{}", id}, given));
  EXPECT_EQ(given.size(), own.size());
  return out;
}

TEST(CallIds, KimisCountOn) {
  EXPECT_THAT(ids_of(ToolFormat::kimi, {"functions.f:1", "functions.f:1", "functions.f:0"}),
              testing::ElementsAre("functions.f:1", "functions.f:2", "functions.f:3"));
}

TEST(CallIds, MistralsAreNineLettersAndDigits) {
  const auto ids = ids_of(ToolFormat::mistral, {"123456789", "", "x", "abcdefghi", "a-cdefghi",
                                                "123456789", "1234567890"});
  EXPECT_EQ(ids[0], "123456789");
  for (std::size_t i = 1; i < ids.size(); ++i) EXPECT_THAT(ids[i], MatchesRegex("[0-9a-f]+")) << i;
  for (const std::string& id : ids) EXPECT_EQ(id.size(), 9u) << id;
}

// Templates of other formats show no ids.
TEST(CallIds, OthersAreTheServers) {
  for (const ToolFormat format : {ToolFormat::tag, ToolFormat::llama, ToolFormat::none}) {
    for (const std::string& id : ids_of(format, {"x", "x", ""})) {
      EXPECT_THAT(id, MatchesRegex("call_[0-9a-f]+")) << name(format);
    }
  }
}

}  // namespace
}  // namespace lathe
