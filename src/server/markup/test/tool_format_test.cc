// Calls in each format, as the models' cards and templates show them.
#include "server/markup/tool_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "server/markup/test/markup_test_util.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

const Json kWeatherTools = Json::parse(R"([
  {"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
   "properties": {"city": {"type": "string"}, "days": {"type": "integer"},
   "parts": {"type": "array"}}}}},
  {"type": "function", "function": {"name": "now", "parameters": {}}}])");

MarkupRules rules_of(ToolFormat format, bool one_call = false) {
  MarkupRules r;
  r.reasoning = true;
  r.tools = format;
  r.schemas = std::make_shared<const Json>(kWeatherTools);
  r.one_call = one_call;
  return r;
}

void reads(ToolFormat format, const std::string& text, const std::string& calls,
           const std::string& content = "", bool whole = true) {
  SCOPED_TRACE(name(format));
  expect_answer(rules_of(format), text, "reasoning: \ncontent: " + content + "\n" + calls, whole);
}
void stays_text(ToolFormat format, const std::string& text, bool whole = true) {
  reads(format, text, "", text, whole);
}

const std::string kOslo = "weather{\"city\":\"Oslo\"}\n";
const std::string kBoth = "weather{\"city\":\"Oslo\",\"days\":3}\nnow{}\n";

TEST(ToolFormat, Llama) {
  const auto f = ToolFormat::llama;
  const std::string call = R"({"name": "weather", "parameters": {"city": "Oslo"}})";
  reads(f, call, kOslo);
  reads(f, "<|python_tag|>" + call, kOslo);
  reads(f, R"({"type": "function", "name": "weather", "parameters": {"city": "Oslo"}})", kOslo);
  reads(f,
        R"({"type": "function", "function": {"name": "weather", "parameters": {"city": "Oslo"}}})",
        kOslo);
  reads(f,
        R"({"name": "weather", "parameters": {"city": "Oslo", "days": 3}}; )"
        R"({"name": "now", "parameters": {}})",
        kBoth);
  reads(f, "<|python_tag|>" + call + "; " + call, kOslo + kOslo);
  reads(f, "[" + call + ", " + call + "]", kOslo + kOslo);
  // Built-in tools are called by a method.
  reads(f, "<|python_tag|>weather.call(city=\"Oslo\")", kOslo);
  reads(f, "Let me see.\n" + call, kOslo, "Let me see.");
  reads(f, call + " Done.", kOslo, " Done.");
  // JSON that is no call, or that something follows.
  stays_text(f, "Like this:\n" + call + "\nand so on");
  stays_text(f, R"({"name": "someone", "parameters": {}})");
  stays_text(f, R"({"name": "weather", "age": 3})");
  stays_text(f, R"({"name": "weather", "parameters": {"city": "Os)");
  stays_text(f, "In a line " + call);
  stays_text(f, "<|python_tag|>import os\nos.listdir()");
  stays_text(f, "{ x: [1, {\"name\"");
}

TEST(ToolFormat, Pythonic) {
  const auto f = ToolFormat::pythonic;
  reads(f, "[weather(city=\"Oslo\")]", kOslo);
  reads(f, "[weather(city='Oslo', days=3), now()]", kBoth);
  reads(f, "<|python_start|>[weather(city='Oslo')]<|python_end|>", kOslo);
  reads(f, "<|tool_call_start|>[weather(city='Oslo', days=3), now()]<|tool_call_end|>", kBoth);
  reads(f, "```tool_code\nweather(city=\"Oslo\")\n```", kOslo);
  reads(f, "[weather(city='it\\'s \\\"Oslo\\\"\\n', parts=[1, -2.5, None, True, {'a': ('b',)}])]",
        R"(weather{"city":"it's \"Oslo\"\n","parts":[1,-2.5,null,true,{"a":["b"]}]})"
        "\n");
  reads(f, R"({"name": "weather", "parameters": {"city": "Oslo"}})", kOslo);
  stays_text(f, "[weather(\"Oslo\")]");
  stays_text(f, "[1, 2, 3]");
  stays_text(f, "[weather](https://a.example)");
}

// What ast.literal_eval makes of each value, as JSON; real numbers keep their digits.
TEST(ToolFormat, PythonLiterals) {
  for (const auto& [text, json] : std::initializer_list<std::pair<std::string, std::string>>{
           {"0x1F", "31"},
           {"-0X1f", "-31"},
           {"0b101", "5"},
           {"0o17", "15"},
           {"0x_ff", "255"},
           {"0xFFFFFFFFFFFFFFFFFFFF", "1208925819614629174706175"},
           {"1_000", "1000"},
           {"00", "0"},
           {"-0", "0"},
           {"1.", "1.0"},
           {"-.5", "-0.5"},
           {"00.5", "0.5"},
           {"1.e3", "1.0e3"},
           {"1E+05", "1E+05"},
           {"+7", "7"},
           {R"("a" "b")", R"("ab")"},
           {R"("a"'b')", R"("ab")"},
           {R"(r"\d+\n")", R"("\\d+\\n")"},
           {R"(R'a\'b')", R"("a\\'b")"},
           {R"(u"é")", R"("é")"},
           {R"("""a "q" ], b""")", R"("a \"q\" ], b")"},
           {"'''it's\n[1'''", R"("it's\n[1")"},
           {R"(r"""\"]""")", R"("\\\"]")"},
           {R"("")", R"("")"},
           {R"("" "a")", R"("a")"},
           {R"("""""")", R"("")"},
           {R"("\101\60\1018\477")", R"("A0A8Ŀ")"},
           {R"("\0z")", R"("\u0000z")"},
           {R"("\x41\u00e9\U0001F600\q")", R"("Aé😀\\q")"},
           {R"(("a"))", R"("a")"},
           {R"(("a",))", R"(["a"])"},
           {R"(("a" 'b', ))", R"(["ab"])"},
           {"()", "[]"},
           {R"([r"x", {"k": 0x10}])", R"(["x",{"k":16}])"}}) {
    reads(ToolFormat::pythonic, "[weather(a=" + text + ")]", "weather{\"a\":" + json + "}\n");
  }
  for (const auto& text : std::initializer_list<std::string>{
           R"("a\N{BULLET}3")", R"(b"a")", R"(f"a")", R"(ur"a")", "0x", "0b2", "0xg", "0x1F.5",
           "1__0", "_1", "1_", "007", "1e", ".", "1.5_", "--1", R"("\x4")", R"("a" 1)", "1j", "nan",
           // Numbers that no double holds, which no history may have.
           "1e400", std::string(310, '9'), "0x1" + std::string(256, '0')}) {
    stays_text(ToolFormat::pythonic, "[weather(a=" + text + ")]");
  }
}

TEST(ToolFormat, Mistral) {
  const auto f = ToolFormat::mistral;
  reads(f, R"([TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}}])", kOslo);
  reads(f,
        R"([TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo", "days": 3}, "id":)"
        R"( "abcdefghi"}, {"name": "now", "arguments": {}, "id": "abcdefghj"}])",
        kBoth);
  reads(f, R"([TOOL_CALLS]weather[ARGS]{"city": "Oslo"})", kOslo);
  reads(f, R"([TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{"city": "Oslo"})", kOslo);
  reads(f, R"([TOOL_CALLS]weather{"city": "Oslo", "days": 3}[TOOL_CALLS]now{})", kBoth);
  reads(f, R"(Wait.[TOOL_CALLS]weather[ARGS]{"city": "[TOOL_CALLS]}"})",
        "weather{\"city\":\"[TOOL_CALLS]}\"}\n", "Wait.");
  reads(f, R"([{"name": "weather", "arguments": {"city": "Oslo"}}])", kOslo);
  stays_text(f, "[TOOL_CALLS]weather[ARGS]{\"city\"");
  stays_text(f, "[TOOL_CALLS]we\nather{}");
  stays_text(f, "[TOOL_CALLS] [1, 2]");
  const auto ids = read_pieces(rules_of(f), {R"([TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{})"});
  EXPECT_EQ(ids.calls.at(0).id, "abcdefghi");
}

TEST(ToolFormat, Gemma) {
  const auto f = ToolFormat::gemma;
  reads(f, "<|tool_call>call:weather{city:<|\"|>Oslo<|\"|>}<tool_call|>", kOslo);
  reads(f,
        "ok<|tool_call>call:weather{city:<|\"|>Oslo<|\"|>,days:3}<tool_call|><|tool_call>call:now"
        "{}<tool_call|>",
        kBoth, "ok");
  reads(f, "<start_function_call>call:weather{city:<escape>Oslo<escape>}<end_function_call>",
        kOslo);
  reads(f, "<|tool_call>call:weather{city:<|\"|>a }<tool_call|> \"b\"<|\"|>}<tool_call|>",
        "weather{\"city\":\"a }<tool_call|> \\\"b\\\"\"}\n");
  reads(f, "<|tool_call>call:weather{parts:[1,<|\"|>a, b<|\"|>,{x:true,y:null}]}<tool_call|>",
        "weather{\"parts\":[1,\"a, b\",{\"x\":true,\"y\":null}]}\n");
  // A value without its quotes: the schema decides.
  reads(f, "<|tool_call>call:weather{city:12,days:12}<tool_call|>",
        "weather{\"city\":\"12\",\"days\":12}\n");
  stays_text(f, "<|tool_call>weather<tool_call|>");
  stays_text(f, "<|tool_call>call:weather{city:<|\"|>Oslo<|\"|>} and<tool_call|>");
}

TEST(ToolFormat, Kimi) {
  const auto f = ToolFormat::kimi;
  const std::string call =
      "<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"city\": \"Oslo\"}"
      "<|tool_call_end|>";
  const std::string begin = "<|tool_calls_section_begin|>", end = "<|tool_calls_section_end|>";
  reads(f, "I look.\n" + begin + call + end, kOslo, "I look.");
  reads(f,
        begin +
            "<|tool_call_begin|> functions.weather:0 <|tool_call_argument_begin|> {\"city\": "
            "\"Oslo\", \"days\": 3} <|tool_call_end|> <|tool_call_begin|>now:1"
            "<|tool_call_argument_begin|>{}<|tool_call_end|>" +
            end,
        kBoth);
  reads(f,
        begin +
            "<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"city\": "
            "\"<|tool_call_end|>\"}<|tool_call_end|>" +
            end,
        "weather{\"city\":\"<|tool_call_end|>\"}\n");
  EXPECT_EQ(read_pieces(rules_of(f), {call}).calls.at(0).id, "functions.weather:0");
  stays_text(f, "<|tool_call_begin|>functions.weather:0<|tool_call_end|>");
}

TEST(ToolFormat, MiniMax) {
  const auto f = ToolFormat::minimax;
  reads(f,
        "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Oslo</parameter>"
        "\n<parameter name=\"days\">3</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n"
        "</minimax:tool_call>",
        kBoth);
  reads(f, "<invoke name=\"weather\"><parameter name=\"city\"></invoke></parameter></invoke>",
        "weather{\"city\":\"</invoke>\"}\n");
  reads(f,
        "<tool_calls>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 3}}\n"
        "{\"name\": \"now\", \"arguments\": {}}\n</tool_calls>",
        kBoth);
  reads(f, "<tool_calls>[{\"name\": \"now\", \"arguments\": {}}]</tool_calls>", "now{}\n");
  stays_text(f, "<invoke name=\"weather\">words</invoke>");
  for (const char* text :
       {"Words.", " Words\n\n", "<invoke", "a <invoke name=\"", "a </invoke> b", "<minimax",
        "</minimax:tool_call>", "<tool_call", "[e~[", "]<]minimax["}) {
    stays_text(f, text);
  }
}

TEST(ToolFormat, HermesSlips) {
  const auto f = ToolFormat::tag;
  const std::string call = R"({"name": "weather", "arguments": {"city": "Oslo"}})";
  const std::string now = R"({"name": "now", "arguments": {}})";
  const std::string both = R"({"name": "weather", "arguments": {"city": "Oslo", "days": 3}})";
  // Several objects in a block, and a list of calls.
  reads(f, "<tool_call>\n" + both + "\n" + now + "\n</tool_call>", kBoth);
  reads(f, "<tool_call>[" + both + ", " + now + "]</tool_call>", kBoth);
  // The end mark inside of a string is an argument's.
  reads(f, R"(<tool_call>{"name": "weather", "arguments": {"city": "</tool_call>"}}</tool_call>)",
        "weather{\"city\":\"</tool_call>\"}\n");
  // Without the end mark, and without the begin mark.
  reads(f, "ok <tool_call>\n" + call, kOslo, "ok");
  reads(f, call + "\n</tool_call>", kOslo);
  reads(f, "I look.\n" + call + "\n</tool_call>", kOslo, "I look.");
  reads(f, "I look.\n" + call, kOslo, "I look.");
  reads(f, "<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>",
        kOslo);
  reads(f, "<tool_call><function=weather><parameter=city>Oslo</parameter></function>", kOslo);
  reads(f, "<tool_call>weather<arg_key>city</arg_key><arg_value>Oslo</arg_value>", kOslo);
  // A limit or a stop string may have cut more arguments.
  stays_text(f, "<tool_call>weather<arg_key>city</arg_key><arg_value>Oslo</arg_value>", false);
  stays_text(f, "<tool_call><function=weather><parameter=city>Oslo</parameter>", false);
  stays_text(f, "<tool_call>weather<arg_key>city</arg_key><arg_value>Os");
  stays_text(f, "<tool_call><function=weather><parameter=city>Os");
  stays_text(f, "<function=other></function>");
  // A quote that never ends does not hide the end mark.
  reads(f, "<tool_call>{\"name\": \"weather}</tool_call> <tool_call>" + now + "</tool_call>",
        "now{}\n", "<tool_call>{\"name\": \"weather}</tool_call>");
  stays_text(f, "stray </tool_call> here");
  reads(f, "<tool_call>" + now + "</tool_call></tool_call>", "now{}\n");
  reads(f, "<tool_call>" + now + "</tool_call> a </tool_call>", "now{}\n", " a </tool_call>");
}

TEST(ToolFormat, DeepSeekSlips) {
  const std::string begin = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>";
  reads(ToolFormat::deepseek, begin + "weather<｜tool▁sep｜>{\"city\": \"Oslo\"}", kOslo);
  stays_text(ToolFormat::deepseek, "<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": ");
  const std::string dsml =
      "<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" "
      "string=\"true\">Oslo</｜DSML｜parameter>\n";
  reads(ToolFormat::dsml, dsml, kOslo);
  stays_text(ToolFormat::dsml, dsml.substr(0, dsml.size() - 1), false);
}

// JSON's readers use the last value of a repeated name, and so do all formats.
TEST(ToolFormat, TheLastOfEqualArgumentsCounts) {
  const std::string twice = R"({"city": "Bergen", "city": "Oslo"})";
  reads(ToolFormat::tag,
        "<tool_call>{\"name\": \"weather\", \"arguments\": " + twice + "}</tool_call>", kOslo);
  reads(ToolFormat::tag,
        "<tool_call><function=weather><parameter=city>Bergen</parameter><parameter=city>Oslo"
        "</parameter></function></tool_call>",
        kOslo);
  reads(ToolFormat::tag,
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Bergen</arg_value><arg_key>city"
        "</arg_key><arg_value>Oslo</arg_value></tool_call>",
        kOslo);
  reads(ToolFormat::mistral, "[TOOL_CALLS]weather[ARGS]" + twice, kOslo);
  reads(ToolFormat::gemma,
        "<|tool_call>call:weather{city:<|\"|>Bergen<|\"|>,city:<|\"|>Oslo<|\"|>}"
        "<tool_call|>",
        kOslo);
  reads(ToolFormat::gemma, "<|tool_call>call:weather{parts:[{a:1,a:2}]}<tool_call|>",
        "weather{\"parts\":[{\"a\":2}]}\n");
  reads(ToolFormat::pythonic, "[weather(city='Bergen', city='Oslo')]", kOslo);
  reads(ToolFormat::minimax,
        "<invoke name=\"weather\"><parameter name=\"city\">Bergen</parameter><parameter "
        "name=\"city\">Oslo</parameter></invoke>",
        kOslo);
  reads(ToolFormat::dsml,
        "<｜DSML｜invoke name=\"weather\"><｜DSML｜parameter name=\"city\" string=\"true\">Bergen"
        "</｜DSML｜parameter><｜DSML｜parameter name=\"city\" string=\"true\">Oslo"
        "</｜DSML｜parameter></｜DSML｜invoke>",
        kOslo);
}

TEST(ToolFormat, CallsWithoutANameAreText) {
  for (const std::string name : {"", " "}) {
    const std::string json = "{\"name\": \"" + name + "\", \"arguments\": {\"a\": 30}}";
    stays_text(ToolFormat::tag, "<tool_call>" + json + "</tool_call>x");
    stays_text(ToolFormat::tag, "<tool_call><function=" + name +
                                    "><parameter=a>3</parameter></function></tool_call>");
    stays_text(ToolFormat::tag, "<tool_call><function=weather><parameter=" + name +
                                    ">2</parameter></function></tool_call>");
    stays_text(ToolFormat::tag,
               "<function=weather><parameter=" + name + ">2</parameter></function>");
    stays_text(ToolFormat::tag, "<tool_call>weather<arg_key>" + name +
                                    "</arg_key><arg_value>2</arg_value></tool_call>");
    stays_text(ToolFormat::mistral, "[TOOL_CALLS][" + json + "]9");
    stays_text(ToolFormat::llama, "<|python_tag|>" + json);
    stays_text(ToolFormat::llama, json);
    stays_text(ToolFormat::minimax, "<invoke name=\"" + name +
                                        "\"><parameter name=\"a\">1"
                                        "</parameter></invoke>");
    stays_text(ToolFormat::minimax,
               "<invoke name=\"weather\"><parameter name=\"" + name + "\">1</parameter></invoke>");
    stays_text(ToolFormat::minimax, "<tool_calls>" + json + "</tool_calls>");
    stays_text(ToolFormat::dsml, "<｜DSML｜invoke name=\"" + name + "\"></｜DSML｜invoke>1");
    stays_text(ToolFormat::dsml, "<｜DSML｜invoke name=\"weather\"><｜DSML｜parameter name=\"" +
                                     name +
                                     "\" string=\"true\">2</｜DSML｜parameter>"
                                     "</｜DSML｜invoke>");
    stays_text(ToolFormat::kimi, "<|tool_call_begin|>functions." + name +
                                     ":0<|tool_call_argument_begin|>{}<|tool_call_end|>");
    stays_text(ToolFormat::gemma, "<|tool_call>call:" + name + "{a:2}<tool_call|>");
  }
  stays_text(ToolFormat::deepseek, "<｜tool▁call▁begin｜><｜tool▁sep｜>{}<｜tool▁call▁end｜>y");
  stays_text(ToolFormat::pythonic, "<|python_start|>[(a=1)]<|python_end|>");
  stays_text(ToolFormat::pythonic, "[weather(=2)]");
}

// A section's marks are dropped with its calls; else they are text.
TEST(ToolFormat, MarksOfASectionWithoutCallsAreText) {
  struct Row {
    ToolFormat format;
    std::string begin, end, now;
  };
  const Row rows[] = {
      {ToolFormat::minimax, "<minimax:tool_call>", "</minimax:tool_call>",
       "<invoke name=\"now\"></invoke>"},
      {ToolFormat::kimi, "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
       "<|tool_call_begin|>now<|tool_call_argument_begin|>{}<|tool_call_end|>"},
      {ToolFormat::kimi, "<|tool_call_section_begin|>", "<|tool_call_section_end|>",
       "<|tool_call_begin|>now<|tool_call_argument_begin|>{}<|tool_call_end|>"},
      {ToolFormat::deepseek, "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
       "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>"},
      {ToolFormat::dsml, "<｜DSML｜function_calls>", "</｜DSML｜function_calls>",
       "<｜DSML｜invoke name=\"now\"></｜DSML｜invoke>"},
      {ToolFormat::dsml, "<｜DSML｜tool>", "</｜DSML｜tool>",
       "<｜DSML｜invoke name=\"now\"></｜DSML｜invoke>"}};
  for (const auto& [format, begin, end, now] : rows) {
    for (const std::string& text :
         {"see " + begin + " mark3", "see " + begin, begin, end, "a " + end + " b",
          "pre1" + begin + "junk1" + end + "post1", begin + end + "2", "a3" + begin + end + "b3",
          "a\n\n" + begin + "\n\n" + begin + "\nb\n", begin + "\n" + end + "\n",
          begin + "<think>a</think>"}) {
      stays_text(format, text);
    }
    reads(format, "see " + begin + "\n" + now + "\n" + end, "now{}\n", "see");
    reads(format, begin + now + end + end, "now{}\n");
    reads(format, begin + now + end + " x", "now{}\n", " x");
    reads(format, begin + now + end + begin + "x" + end, "now{}\n", begin + "x" + end);
    reads(format, begin + now + end + "x " + begin, "now{}\n", "x " + begin);
    reads(format, begin + now + end + begin + now + end, "now{}\nnow{}\n");
    reads(format, begin + "x" + now + end, "now{}\n", begin + "x");
    // Reasoning that does not end is over at a call; its mark begins the content.
    expect_answer(rules_of(format), "<think>So " + begin + " x",
                  "reasoning: So \ncontent: " + begin + " x\n");
    expect_answer(rules_of(format), "<think>So " + begin + "x</think>y",
                  "reasoning: So " + begin + "x\ncontent: y\n");
    expect_answer(rules_of(format), "<think>So</think>" + begin + now + end,
                  "reasoning: So\ncontent: \nnow{}\n");
  }
}

// The end mark of a section stands for that of its last call.
TEST(ToolFormat, TheEndOfASectionEndsItsLastCall) {
  struct Row {
    ToolFormat format;
    std::string begin, call, end;
  };
  const Row rows[] = {
      {ToolFormat::deepseek, "<｜tool▁calls▁begin｜>",
       "<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Oslo\"}", "<｜tool▁calls▁end｜>"},
      {ToolFormat::deepseek, "<｜tool▁calls▁begin｜>",
       "<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Oslo\"}\n```",
       "<｜tool▁calls▁end｜>"},
      {ToolFormat::dsml, "<｜DSML｜function_calls>",
       "<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Oslo"
       "</｜DSML｜parameter>",
       "</｜DSML｜function_calls>"},
      {ToolFormat::kimi, "<|tool_calls_section_begin|>",
       "<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"city\": \"Oslo\"}",
       "<|tool_calls_section_end|>"},
      {ToolFormat::minimax, "<minimax:tool_call>",
       "<invoke name=\"weather\">\n<parameter name=\"city\">Oslo</parameter>",
       "</minimax:tool_call>"}};
  for (const auto& [format, begin, call, end] : rows) {
    reads(format, begin + call + end, kOslo);
    reads(format, "I look.\n" + begin + "\n" + call + "\n" + end + "\n", kOslo, "I look.");
    stays_text(format, begin + call + end, /*whole=*/false);
    stays_text(format, begin + call + end + " x");
    stays_text(format, begin + call.substr(0, call.find("Oslo") + 2) + end);
  }
}

// Without a call every byte stays, but for marks of reasoning.
TEST(ToolFormat, TextWithoutACallStaysWhole) {
  std::mt19937 random(64);
  for (const ToolFormat format :
       {ToolFormat::deepseek, ToolFormat::dsml, ToolFormat::kimi, ToolFormat::minimax}) {
    std::vector<std::string> words = {"z", "\n", "\n\n", " ", "<"};
    for (const CallMarks& marks : tool_marks(format).calls) {
      words.emplace_back(marks.begin);
      words.emplace_back(marks.end);
    }
    const auto& around = tool_marks(format).around;
    words.insert(words.end(), around.begin(), around.end());
    for (int i = 0; i < 1500; ++i) {
      std::string text;
      for (auto n = random() % 10; n > 0; --n) text += words[random() % words.size()];
      std::vector<std::string> bytes;
      for (char c : text) bytes.emplace_back(1, c);
      for (const auto& pieces : {std::vector{text}, bytes}) {
        const TextParts parts = read_pieces(rules_of(format), pieces);
        ASSERT_TRUE(parts.calls.empty()) << text;
        ASSERT_EQ(parts.content, text) << name(format);
      }
    }
  }
}

// A call that the model broke off, in every form, hides no call after it.
TEST(ToolFormat, ABrokenCallHidesNoLaterOne) {
  const std::pair<ToolFormat, std::vector<std::string>> formats[] = {
      {ToolFormat::tag,
       {R"(<tool_call>{"name": "now"}</tool_call>)", "<function=now>\n</function>"}},
      {ToolFormat::deepseek, {"<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>"}},
      {ToolFormat::dsml, {"<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>"}},
      {ToolFormat::llama, {R"(<|python_tag|>{"name": "now", "parameters": {}})"}},
      {ToolFormat::pythonic,
       {"<|tool_call_start|>[now()]<|tool_call_end|>", "<|python_start|>[now()]<|python_end|>",
        "```tool_code\nnow()\n```"}},
      {ToolFormat::mistral, {"[TOOL_CALLS]now[ARGS]{}", R"([TOOL_CALLS][{"name": "now"}])"}},
      {ToolFormat::gemma,
       {"<|tool_call>call:now{}<tool_call|>",
        "<start_function_call>call:now{}<end_function_call>"}},
      {ToolFormat::kimi,
       {"<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>"}},
      {ToolFormat::minimax,
       {"<invoke name=\"now\">\n</invoke>", R"(<tool_calls>{"name": "now"}</tool_calls>)"}}};
  for (const auto& [format, calls] : formats) {
    for (const CallMarks& marks : tool_marks(format).calls) {
      for (const char* broken :
           {"", "{", "{\"a\": \"", "z\">{\"a\": \"", "[now(a='", "z a: 1", "{'z', (\"]"}) {
        const std::string text = std::string(marks.begin) + broken;
        const std::string content = text.ends_with('\n') ? text.substr(0, text.size() - 1) : text;
        for (const std::string& call : calls) {
          // The fence that ends a block of code also begins the next one, and a function may be in
          // the marks of a call.
          const bool one = (marks.begin.starts_with("```") && call.starts_with("```")) ||
                           (text == "<tool_call>" && call.starts_with("<function="));
          if (one) continue;
          reads(format, text + call, "now{}\n", content);
          reads(format, "Hi. " + text + " " + call + "\n" + call, "now{}\nnow{}\n",
                "Hi. " + content);
        }
      }
    }
  }
  // A call without marks, too.
  const std::string now = R"(<|python_tag|>{"name": "now", "parameters": {}})";
  for (const char* broken : {R"({"name": "weather", "parameters":)",
                             R"({"name": "weather", "parameters": {"city": "Os)"}) {
    reads(ToolFormat::llama, broken + now, "now{}\n", broken);
    reads(ToolFormat::llama, broken + now + "}", "now{}\n", broken + std::string("}"));
  }
  // A mark in quotes is none, if the quotes have an end or the answer was cut.
  const std::string quoted = R"(<tool_call>{"name": 3, "arguments": {"a": "<function=now>)"
                             "\n</function>";
  stays_text(ToolFormat::tag, quoted + "\"}}</tool_call>");
  stays_text(ToolFormat::tag, quoted, /*whole=*/false);
  stays_text(ToolFormat::llama,
             R"({"name": "weather", "parameters": {"city": ")" + now + "\"}, 3}");
  // Marks of a section of calls before the second one.
  const std::string open = "<｜DSML｜function_calls>\n", shut = "</｜DSML｜function_calls>";
  const std::string call = "<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n";
  reads(ToolFormat::dsml, open + "<｜DSML｜invoke name=\"no" + open + call + shut, "now{}\n",
        open + "<｜DSML｜invoke name=\"no");
  // Reading again has a bound, past which all is text.
  std::string many;
  for (int i = 0; i < 40; ++i) many += "<tool_call>z";
  stays_text(ToolFormat::tag, many + "<tool_call>{\"name\": \"now\"}</tool_call>");
}

TEST(ToolFormat, OtherReasoningMarks) {
  MarkupRules r = rules_of(ToolFormat::mistral);
  r.reasoning_format = ReasoningFormat::mistral;
  expect_answer(r, "[THINK]why[/THINK]It is.[TOOL_CALLS]now{}",
                "reasoning: why\ncontent: It is.\nnow{}\n");
  r = rules_of(ToolFormat::gemma);
  r.reasoning_format = ReasoningFormat::gemma;
  expect_answer(r, "<|channel>thought\nwhy\n<channel|>It is.",
                "reasoning: why\n\ncontent: It is.\n");
}

TEST(ToolFormat, OneCallEndsTheAnswer) {
  const std::pair<ToolFormat, std::string> two[] = {
      {ToolFormat::llama,
       R"({"name": "now", "parameters": {}}; {"name": "now", "parameters": {}})"},
      {ToolFormat::pythonic, "[now(), now()]"},
      {ToolFormat::mistral, "[TOOL_CALLS]now{}[TOOL_CALLS]now{}"},
      {ToolFormat::gemma, "<|tool_call>call:now{}<tool_call|><|tool_call>call:now{}<tool_call|>"},
      {ToolFormat::tag, R"(<tool_call>{"name": "now"}{"name": "now"}</tool_call>)"}};
  for (const auto& [format, text] : two) {
    expect_answer(rules_of(format, true), text, "reasoning: \ncontent: \nnow{}\n");
  }
}

// Marks and their pieces in random order: the parts do not depend on the cut, and no letter is
// lost.
TEST(ToolFormat, RandomTextIsNotLost) {
  std::mt19937 random(63);
  for (std::size_t f = 1; f < enum_count<ToolFormat>; ++f) {
    const auto format = static_cast<ToolFormat>(f);
    if (format == ToolFormat::harmony) continue;
    std::vector<std::string> words = {"z",
                                      "\n",
                                      " ",
                                      "{",
                                      "}",
                                      "[",
                                      "]",
                                      "\"",
                                      ",",
                                      "(",
                                      ")",
                                      "{\"name\": \"now\", ",
                                      "\"parameters\": {}}",
                                      "[now()]",
                                      "<think>",
                                      "</think>"};
    for (const CallMarks& marks : tool_marks(format).calls) {
      words.emplace_back(marks.begin);
      words.emplace_back(marks.end);
      words.emplace_back(marks.begin.substr(0, 3));
    }
    for (const auto& list : {tool_marks(format).around, tool_marks(format).inner}) {
      words.insert(words.end(), list.begin(), list.end());
    }
    for (int i = 0; i < 1500; ++i) {
      std::string text;
      for (auto n = random() % 14; n > 0; --n) text += words[random() % words.size()];
      const bool whole = random() % 2 == 0;
      const MarkupRules rules = rules_of(format);
      std::vector<std::string> bytes;
      for (char c : text) bytes.emplace_back(1, c);
      const TextParts at_once = read_pieces(rules, {text}, whole);
      ASSERT_EQ(text_of(at_once), text_of(read_pieces(rules, bytes, whole)))
          << name(format) << ": " << text;
      const auto letters = [](const std::string& s) { return std::count(s.begin(), s.end(), 'z'); };
      std::string all = at_once.reasoning + at_once.content;
      for (const ToolCall& c : at_once.calls) all += c.name + c.arguments + c.id;
      ASSERT_EQ(letters(all), letters(text)) << name(format) << ": " << text;
    }
  }
}

}  // namespace
}  // namespace lathe
