#include "server/service/served_model.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>

#include "base/json.h"
#include "io/files/read_file.h"
#include "io/text/json_text.h"
#include "kernels/devices/all.h"
#include "plan/explain.h"
#include "plan/matrix.h"
#include "plan/plan_json.h"
#include "server/markup/answer_markup.h"
#include "server/markup/harmony_parts.h"
#include "server/service/call_form.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

nlohmann::json read_object(const std::filesystem::path& path) {
  const auto text = read_file(path.string());
  if (!text) return nlohmann::json::object();
  auto json = parse_json(*text, path.filename().string());
  return json && json->is_object() ? std::move(*json) : nlohmann::json::object();
}

// A layout's parts, for drawings to scale.
Json describe_layout(const CachePlan& cache, bool chosen) {
  const CacheLayout& l = cache.layout;
  Json parts = Json::array();
  for (int i = 0; i < l.part_count(); ++i) {
    const Part& p = l.part(i);
    parts.push_back({{"role", name(p.role)},
                     {"dtype", name(p.dtype)},
                     {"elems", p.elems},
                     {"plane", p.plane},
                     {"bytes", p.bytes()}});
  }
  return {{"name", l.name()},
          {"chosen", chosen},
          {"bytes_per_token", l.bytes_per_token()},
          {"page_size", cache.page_size},
          {"page_bytes", cache.page_bytes()},
          {"parts", std::move(parts)}};
}

// The layouts in use, then the main ones of other legal plans.
Json describe_layouts(const Plan& plan, const std::vector<MatrixCell>& matrix) {
  Json out = Json::array();
  for (const CachePlan& c : plan.caches) out.push_back(describe_layout(c, true));
  for (const MatrixCell& cell : matrix) {
    if (!cell.result) continue;
    const Json other = describe_layout(cell.result->main(), false);
    const bool known = std::any_of(out.begin(), out.end(),
                                   [&](const Json& l) { return l["name"] == other["name"]; });
    if (!known) out.push_back(other);
  }
  return out;
}

// The matrix, with the planner's estimated time of each legal pair for a layer of a nominal step.
Json describe_matrix(const std::vector<MatrixCell>& matrix) {
  Json out = matrix_json(matrix);
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    if (!matrix[i].result) continue;
    for (const Phase phase : {Phase::extend, Phase::decode}) {
      out[i]["seconds"][std::string(name(phase))] =
          matrix[i].result->phase(phase).routes.back().seconds;
    }
  }
  return out;
}

Json describe_plan(const Runtime& runtime) {
  const Registry registry = model_kernels(runtime.machine().device);
  Json groups = Json::array();
  Json notes = Json::array();
  for (const GroupPlan& g : runtime.plan().groups) {
    PlanRequest request;
    request.context_length = runtime.plan().context_length();
    request.max_running_requests = runtime.plan().max_requests();
    request.chunked_prefill_size = runtime.plan().max_rows();
    request.layers = g.plan.layers;
    const auto matrix = make_matrix(g.plan.problem, runtime.machine(), request, registry);
    groups.push_back({{"name", g.group.name},
                      {"layers", layers_text(g.group.layers)},
                      {"layouts", describe_layouts(g.plan, matrix)},
                      {"matrix", describe_matrix(matrix)}});
    for (const std::string& note : g.plan.notes) notes.push_back(note);
  }
  return {{"summary", summary(runtime.plan())},
          {"explained", explain(runtime.plan())},
          {"bytes_per_token", runtime.plan().bytes_per_token()},
          {"plan", to_json(runtime.plan())},
          {"groups", std::move(groups)},
          {"notes", std::move(notes)}};
}

// Hashes what determines an answer's numbers: weights (by file size), plan and precision.
std::string fingerprint_of(const Runtime& runtime, const std::string& folder) {
  std::string text = json_text(to_json(runtime.plan())) + std::string(name(runtime.precision()));
  std::error_code ignored;
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (!entry.is_regular_file(ignored)) continue;
    files.push_back(
        fmt::format("{} {}", entry.path().filename().string(), entry.file_size(ignored)));
  }
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) text += "\n" + file;
  return fmt::format("lathe-{}-{:08x}", LATHE_VERSION,
                     static_cast<std::uint32_t>(XXH3_64bits(text.data(), text.size())));
}

bool is_reasoning_mark(ReasoningFormat format, std::string_view text) {
  const ReasoningMarks marks = reasoning_marks(format);
  return format != ReasoningFormat::harmony &&
         (text == marks.begin || text == marks.end || text == marks.token);
}

std::string describe_markup(const ServedModel& model, const ServerOptions& options,
                            std::string_view source) {
  const auto why = [](bool automatic, std::string_view flag, std::string_view mark,
                      std::string_view marks) {
    if (!automatic) return std::string(flag);
    return mark.empty() ? fmt::format("the chat template has no {}", marks)
                        : fmt::format("the chat template has {}", mark);
  };
  const ReasoningMarks think = reasoning_marks(model.reasoning);
  std::string out = fmt::format(
      "reasoning {}: {}\n", name(model.reasoning),
      why(options.reasoning_parser == "auto", "--reasoning-parser",
          model.reasoning == ReasoningFormat::harmony ? "<|channel|>" : think.end, "</think>"));
  const ToolFormat written = find_tool_format(source);
  out += fmt::format("tools     {}: {}\n", name(model.tools),
                     why(options.tool_call_parser == "auto", "--tool-call-parser",
                         template_mark(written, source), "marks of calls"));
  if (written != ToolFormat::none && model.tools != written) {
    out += fmt::format(
        "warning   --tool-call-parser {}, but the chat template asks for {}: calls may stay text\n",
        options.tool_call_parser, name(written));
  }
  return out;
}

}  // namespace

ServedModel::ServedModel(Runtime& runtime, const Tokenizer& its_tokenizer,
                         const ChatTemplateFile* its_chat, const ServerOptions& options)
    : tokenizer(its_tokenizer), chat(its_chat) {
  const ModelConfig& config = runtime.config();
  architecture = config.architecture;
  vocab = config.vocab;
  eos = config.eos;
  generation = config.generation;
  capacity = runtime.engine().capacity();
  cache_tokens = runtime.cache().tokens();
  cache_bytes = runtime.cache().bytes();
  weight_bytes = runtime.weight_bytes();
  page_size = runtime.cache().page_size();
  max_running = runtime.plan().max_requests();
  ranks = runtime.plan().ranks.parallel.tp;
  plan_line = summary(runtime.plan());
  plan = describe_plan(runtime);
  const Plan& first = runtime.plan().groups.front().plan;
  plan_labels =
      fmt::format("prefill=\"{}\",decode=\"{}\",layout=\"{}\"", kinds(first, Phase::extend),
                  kinds(first, Phase::decode), name(first.main().layout.kind()));
  fingerprint = fingerprint_of(runtime, options.model);
  const std::filesystem::path path(options.model);
  const nlohmann::json described = read_object(path / "config.json");
  if (const auto type = described.find("model_type");
      type != described.end() && type->is_string()) {
    model_type = type->get<std::string>();
  }
  tokenizer_config = read_object(path / "tokenizer_config.json");
  const std::string_view source = chat != nullptr ? chat->chat_template.source() : "";
  const auto thinks = find_named_reasoning_format(options.reasoning_parser);
  const auto named = find_named_tool_format(options.tool_call_parser);
  AnswerMarkup found = find_answer_markup(source, tokenizer, thinks, named);
  reasoning = found.reasoning;
  tools = found.tools;
  marks = std::move(found.marks);
  // A tokenizer may have more tokens than the model's logits; those marks come as text at most.
  std::erase_if(marks, [&](const auto& mark) { return mark.first >= vocab; });
  call_form = find_call_form(tools, source);
  markup = describe_markup(*this, options, source);
  if (options.grammar_backend != "none") {
    grammars = std::make_unique<grammar::Cache>(token_texts(false));
  }
}

grammar::Cache& ServedModel::call_grammars() const {
  std::call_once(calls_once_, [&] {
    const bool any = std::ranges::any_of(
        marks, [&](const auto& mark) { return !is_reasoning_mark(reasoning, mark.second); });
    if (any) calls_ = std::make_unique<grammar::Cache>(token_texts(true));
  });
  return calls_ != nullptr ? *calls_ : *grammars;
}

// Special tokens have no text, as they are not part of an answer's text; but marks of calls may
// have.
grammar::Vocabulary ServedModel::token_texts(bool with_marks) const {
  std::vector<std::string> out(static_cast<std::size_t>(vocab));
  const bool by_id = harmony() && has_channel_marks(marks);
  for (std::int32_t t = 0; t < std::min(vocab, tokenizer.vocab_size()); ++t) {
    if (!tokenizer.has(t) || tokenizer.is_special(t)) continue;
    std::string text = tokenizer.bytes_of(t);
    // A token of that byte would let text pass for a mark. It is no part of UTF-8.
    const bool like_mark = with_marks && by_id && text.find(kMarkByte) != std::string::npos;
    if (!like_mark) out[static_cast<std::size_t>(t)] = std::move(text);
  }
  for (const auto& mark : marks) {
    if (!with_marks || is_reasoning_mark(reasoning, mark.second)) continue;
    std::string& text = out[static_cast<std::size_t>(mark.first)];
    text = by_id ? kMarkByte + mark.second : mark.second;
  }
  return grammar::Vocabulary(std::move(out));
}

}  // namespace lathe
