#include "server/markup/tool_format.h"

#include <algorithm>
#include <array>

namespace lathe {
namespace {

struct Row {
  ToolFormat format;
  // Marks in chat templates, the surest first.
  std::vector<std::string_view> shown_by;
  std::vector<std::string_view> names;
  ToolMarks marks;
};

// In order of ToolFormat.
const std::array<Row, enum_count<ToolFormat>>& rows() {
  static const std::array<Row, enum_count<ToolFormat>> out = {{
      {ToolFormat::none, {}, {}, {}},
      {ToolFormat::tag,
       {"<tool_call>", "<function="},
       {"hermes", "qwen", "qwen25", "qwen3_coder", "qwen3_xml", "glm", "glm45", "glm47", "mimo",
        "step3p5", "granite4", "nemotron_json"},
       {.calls = {{"<tool_call>", "</tool_call>", CallBody::tagged},
                  {"<function=", "</function>", CallBody::function}},
        .bare_json = true}},
      {ToolFormat::deepseek,
       {"<｜tool▁sep｜>"},
       {"deepseek_v3", "deepseek_v31", "deepseekv3", "deepseekv31"},
       {.calls = {{"<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", CallBody::deepseek}},
        .around = {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"},
        .inner = {"<｜tool▁sep｜>"}}},
      {ToolFormat::dsml,
       {"｜DSML｜"},
       {"deepseek_v32", "deepseek_v4", "deepseekv32", "deepseekv4"},
       {.calls = {{"<｜DSML｜invoke name=\"", "</｜DSML｜invoke>", CallBody::dsml}},
        .around = {"<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "<｜DSML｜tool_calls>",
                   "</｜DSML｜tool_calls>",
                   // V4's misspellings seen in practice.
                   "<｜DSML｜toolcalls>", "</｜DSML｜toolcalls>", "<｜DSML｜tool>",
                   "</｜DSML｜tool>"},
        .inner = {"｜DSML｜"}}},
      {ToolFormat::harmony,
       {"<|channel|>"},
       {"openai", "gpt-oss", "gpt_oss", "gptoss"},
       {.inner = {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>",
                  "<|return|>", "<|call|>"}}},
      {ToolFormat::llama,
       {"<|python_tag|>", "Respond in the format {\"name\": function name, \"parameters\":"},
       {"llama3", "llama3_json", "llama4_json", "xlam"},
       {.calls = {{"<|python_tag|>", "", CallBody::python_tag}}, .bare_json = true}},
      {ToolFormat::pythonic,
       {"<|tool_call_start|>", "<|python_start|>", "[func_name1(params_name1="},
       {"llama4_pythonic", "olmo3", "lfm2", "gemma3"},
       {.calls = {{"<|python_start|>", "<|python_end|>", CallBody::python},
                  {"<|tool_call_start|>", "<|tool_call_end|>", CallBody::python},
                  {"```tool_code\n", "```", CallBody::python}},
        .bare_json = true,
        .bare_python = true}},
      {ToolFormat::mistral,
       {"[TOOL_CALLS]"},
       {},
       {.calls = {{"[TOOL_CALLS]", "", CallBody::mistral}},
        .inner = {"[ARGS]", "[CALL_ID]"},
        .bare_json = true}},
      {ToolFormat::gemma,
       {"<|tool_call>", "<start_function_call>"},
       {"gemma4", "functiongemma"},
       {.calls = {{"<|tool_call>", "<tool_call|>", CallBody::gemma},
                  {"<start_function_call>", "<end_function_call>", CallBody::gemma}},
        .inner = {"<|\"|>", "<escape>"}}},
      {ToolFormat::kimi,
       {"<|tool_call_begin|>"},
       {"kimi_k2", "kimi_k25"},
       {.calls = {{"<|tool_call_begin|>", "<|tool_call_end|>", CallBody::kimi}},
        .around = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
                   // The singular, which the model writes now and then.
                   "<|tool_call_section_begin|>", "<|tool_call_section_end|>"},
        .inner = {"<|tool_call_argument_begin|>"}}},
      {ToolFormat::minimax,
       {"<minimax:tool_call>", "<tool_calls>"},
       {"minimax_m1", "minimax_m2", "minimax-m2", "hunyuan_a13b", "hunyuan", "jamba"},
       {.calls = {{"<invoke name=\"", "</invoke>", CallBody::invoke},
                  {"<tool_calls>", "</tool_calls>", CallBody::json}},
        .around = {"<minimax:tool_call>", "</minimax:tool_call>"}}},
  }};
  return out;
}

const Row& row_of(ToolFormat format) { return rows()[static_cast<std::size_t>(format)]; }

// The surest marks first: a template may name another format's mark in a comment or an example.
constexpr ToolFormat kSearched[] = {ToolFormat::dsml,     ToolFormat::deepseek, ToolFormat::harmony,
                                    ToolFormat::kimi,     ToolFormat::mistral,  ToolFormat::gemma,
                                    ToolFormat::pythonic, ToolFormat::llama,    ToolFormat::tag,
                                    ToolFormat::minimax};

}  // namespace

const ToolMarks& tool_marks(ToolFormat format) { return row_of(format).marks; }

std::string_view template_mark(ToolFormat format, std::string_view chat_template) {
  for (const std::string_view mark : row_of(format).shown_by) {
    if (chat_template.find(mark) != std::string_view::npos) return mark;
  }
  return "";
}

ToolFormat find_tool_format(std::string_view chat_template) {
  for (const ToolFormat format : kSearched) {
    if (!template_mark(format, chat_template).empty()) return format;
  }
  return ToolFormat::none;
}

const std::vector<std::string_view>& other_names(ToolFormat format) { return row_of(format).names; }

std::optional<ToolFormat> find_named_tool_format(std::string_view name) {
  if (const auto own = parse_enum<ToolFormat>(name)) return own;
  for (const Row& row : rows()) {
    if (std::ranges::find(row.names, name) != row.names.end()) return row.format;
  }
  return std::nullopt;
}

}  // namespace lathe
