// Compares every prompt with openai-harmony's (tools/fixtures/make_harmony_fixtures.py).
#include "io/template/harmony_chat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/json_digits.h"
#include "io/files/read_file.h"
#include "io/template/chat_template.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using ::testing::EndsWith;
using ::testing::HasSubstr;

Json asked(const std::string& text) { return {{"role", "user"}, {"content", text}}; }

Result<std::string> render(Json messages, Json variables = Json::object()) {
  variables["messages"] = std::move(messages);
  return ChatTemplate::harmony().render(variables);
}

TEST(HarmonyChat, WritesWhatOpenaiHarmonyWrites) {
  const Json data = Json::parse(*read_file(fs::path(LATHE_TEST_DATA) / "templates/harmony.json"));
  ASSERT_GT(data["cases"].size(), 20u);
  for (const Json& c : data["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>() + c["variables"].dump());
    Json variables = c["variables"];
    variables["conversation_start_date"] = data["date"];
    if (!c["tools"].empty()) variables["tools"] = c["tools"];
    const auto text = render(c["messages"], variables);
    ASSERT_TRUE(text.ok()) << text.error().message();
    EXPECT_EQ(*text, c["prompt"].get<std::string>());
    // Arguments as the server passes them on, parsed.
    Json messages = c["messages"];
    for (Json& m : messages) {
      if (!m.contains("tool_calls")) continue;
      for (Json& call : m["tool_calls"]) {
        Json& arguments = call["function"]["arguments"];
        arguments = read_json_digits(arguments.get<std::string>());
      }
    }
    EXPECT_EQ(*render(messages, variables), c["prompt"].get<std::string>());
  }
}

TEST(HarmonyChat, TheDateIsTheDay) {
  RenderOptions options;
  options.now = std::tm{};
  options.now->tm_year = 126;
  options.now->tm_mon = 2;
  options.now->tm_mday = 9;
  const auto text =
      ChatTemplate::harmony().render({{"messages", Json::array({asked("a")})}}, options);
  EXPECT_THAT(*text, HasSubstr("\nCurrent date: 2026-03-09\n"));
}

TEST(HarmonyChat, RefusesByName) {
  const auto error = [](Json messages, Json variables = Json::object()) {
    return render(std::move(messages), std::move(variables)).error().message();
  };
  const Json one = Json::array({asked("a")});
  EXPECT_THAT(error(one, {{"builtin_tools", Json::array({"browser", "python"})}}),
              HasSubstr(R"(["browser","python"])"));
  EXPECT_THAT(error(one, {{"reasoning_effort", "none"}}),
              HasSubstr("reasoning_effort: wanted low, medium or high, got none"));
  EXPECT_THAT(error(Json::array({{{"role", "tool"}, {"content", "x"}}})),
              HasSubstr("messages[0].tool_call_id"));
  EXPECT_THAT(error(Json::array({{{"role", "critic"}, {"content", "x"}}})),
              HasSubstr("messages[0].role"));
  EXPECT_THAT(error(Json::array()), HasSubstr("messages"));
  EXPECT_THAT(error(one, {{"tools", Json::array({1})}}), HasSubstr("tools"));
}

TEST(HarmonyChat, GptOssFoldersUseIt) {
  const fs::path dir = fs::path(testing::TempDir()) / "gpt_oss_chat";
  fs::create_directories(dir);
  std::ofstream(dir / "config.json") << R"({"model_type": "gpt_oss"})";
  const auto text = [&] {
    const auto file = load_chat_template(dir);
    EXPECT_TRUE(file.ok());
    return *file->chat_template.render({{"messages", Json::array({asked("a")})}});
  };
  EXPECT_THAT(text(), EndsWith("<|start|>user<|message|>a<|end|><|start|>assistant"));
  std::ofstream(dir / "chat_template.jinja") << "{{ '<|channel|>' }}";
  EXPECT_THAT(text(), EndsWith("<|start|>assistant"));
  // A template without channels is another model's.
  std::ofstream(dir / "chat_template.jinja") << "{{ messages[0].content }}";
  EXPECT_EQ(text(), "a");
  fs::remove_all(dir);
}

}  // namespace
}  // namespace lathe
