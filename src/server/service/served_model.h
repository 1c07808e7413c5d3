// ServedModel: what requests need to know about the model. Built after loading, then read-only from
// any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/runtime.h"
#include "io/template/chat_template.h"
#include "io/tokenizer/tokenizer.h"
#include "server/grammar/cache.h"
#include "server/markup/reasoning_format.h"
#include "server/markup/tool_format.h"
#include "server/service/options.h"

namespace lathe {

struct ServedModel {
  /// `tokenizer` and `chat` outlive it. Keeps no reference to the runtime.
  ServedModel(Runtime& runtime, const Tokenizer& its_tokenizer, const ChatTemplateFile* its_chat,
              const ServerOptions& options);

  const Tokenizer& tokenizer;
  const ChatTemplateFile* chat;  // null: no template
  std::string architecture;
  std::string model_type;
  std::int32_t vocab = 0;
  std::vector<std::int32_t> eos;
  GenerationDefaults generation;
  std::int64_t capacity = 0;  // most tokens of one request, prompt and answer
  std::int64_t cache_tokens = 0;
  std::int64_t cache_bytes = 0;
  std::int64_t weight_bytes = 0;
  std::int64_t page_size = 0;
  std::int64_t max_running = 0;
  std::int32_t ranks = 1;
  std::string plan_line;
  std::string plan_labels;  // for metrics
  // {"summary", "plan", "groups": [{"name", "matrix"}], "notes"}
  nlohmann::ordered_json plan;
  std::string fingerprint;  // equal if equal requests and seeds give equal answers
  // The markup of answers.
  ReasoningFormat reasoning = ReasoningFormat::none;
  ToolFormat tools = ToolFormat::none;
  std::string markup;  // both and where they come from, as printed at start; one line each
  /// Answers are messages in channels.
  bool harmony() const {
    return tools == ToolFormat::harmony || reasoning == ReasoningFormat::harmony;
  }
  // Marks that are special tokens, which detokenising would skip.
  std::vector<std::pair<std::int32_t, std::string>> marks;
  nlohmann::json tokenizer_config;           // tokenizer_config.json, an object
  std::unique_ptr<grammar::Cache> grammars;  // null: --grammar-backend none
  // How calls are written, if a grammar can follow that.
  std::optional<grammar::CallForm> call_form;
  /// The grammars of text with calls, in which the marks of calls have text though they are special
  /// tokens. Made on first use. Precondition: grammars is set.
  grammar::Cache& call_grammars() const;

 private:
  grammar::Vocabulary token_texts(bool with_marks) const;

  mutable std::once_flag calls_once_;
  mutable std::unique_ptr<grammar::Cache> calls_;  // null: grammars has the same tokens
};

}  // namespace lathe
