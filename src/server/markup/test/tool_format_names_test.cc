// Which format of calls or of reasoning a template or a name means.
#include <gtest/gtest.h>

#include "server/markup/reasoning_format.h"
#include "server/markup/tool_format.h"

namespace lathe {
namespace {

TEST(ToolFormat, IsFoundInTemplates) {
  EXPECT_EQ(find_tool_format("{{ '<tool_call>' }}"), ToolFormat::tag);
  EXPECT_EQ(find_tool_format("<｜tool▁call▁begin｜>...<｜tool▁sep｜>"), ToolFormat::deepseek);
  EXPECT_EQ(find_tool_format("<｜DSML｜invoke"), ToolFormat::dsml);
  EXPECT_EQ(find_tool_format("{{ '<|channel|>analysis' }}"), ToolFormat::harmony);
  EXPECT_EQ(find_tool_format("{{ '<|python_tag|>' + name }}"), ToolFormat::llama);
  EXPECT_EQ(find_tool_format("{{ '[TOOL_CALLS]' + name + '[ARGS]' }}"), ToolFormat::mistral);
  EXPECT_EQ(find_tool_format("{{ '<|tool_call>call:' }}"), ToolFormat::gemma);
  EXPECT_EQ(find_tool_format("<|tool_call_begin|>"), ToolFormat::kimi);
  EXPECT_EQ(find_tool_format("<minimax:tool_call>"), ToolFormat::minimax);
  EXPECT_EQ(find_tool_format("{{ messages }}"), ToolFormat::none);
}

TEST(ToolFormat, HasOtherServersNames) {
  for (const auto& [name, format] :
       {std::pair{"hermes", ToolFormat::tag}, std::pair{"qwen3_coder", ToolFormat::tag},
        std::pair{"glm47", ToolFormat::tag}, std::pair{"deepseek_v31", ToolFormat::deepseek},
        std::pair{"deepseekv32", ToolFormat::dsml}, std::pair{"deepseek_v4", ToolFormat::dsml},
        std::pair{"openai", ToolFormat::harmony}, std::pair{"gpt-oss", ToolFormat::harmony},
        std::pair{"llama3_json", ToolFormat::llama}, std::pair{"llama3", ToolFormat::llama},
        std::pair{"pythonic", ToolFormat::pythonic}, std::pair{"mistral", ToolFormat::mistral},
        std::pair{"gemma4", ToolFormat::gemma}, std::pair{"kimi_k2", ToolFormat::kimi},
        std::pair{"minimax_m2", ToolFormat::minimax}, std::pair{"minimax-m2", ToolFormat::minimax},
        std::pair{"none", ToolFormat::none}}) {
    EXPECT_EQ(find_named_tool_format(name), format) << name;
  }
  EXPECT_FALSE(find_named_tool_format("auto"));
  for (const auto& [name, format] : {std::pair{"deepseek_r1", ReasoningFormat::think},
                                     std::pair{"qwen3", ReasoningFormat::think},
                                     std::pair{"openai_gptoss", ReasoningFormat::harmony},
                                     std::pair{"gpt-oss", ReasoningFormat::harmony},
                                     std::pair{"mistral", ReasoningFormat::mistral}}) {
    EXPECT_EQ(find_named_reasoning_format(name), format) << name;
  }
}

}  // namespace
}  // namespace lathe
