// ServedModel: what requests need to know of the model. Made once it is loaded, then only read,
// from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/runtime.h"
#include "io/chat_template.h"
#include "io/tokenizer.h"
#include "server/grammar/cache.h"
#include "server/markup/tool_format.h"
#include "server/service/options.h"

namespace lathe {

struct ServedModel {
  /// `tokenizer` and `chat` outlive it. The runtime is read and not kept.
  ServedModel(Runtime& runtime, const Tokenizer& its_tokenizer, const ChatTemplateFile* its_chat,
              const ServerOptions& options);

  const Tokenizer& tokenizer;
  const ChatTemplateFile* chat;  // null: the model has none
  std::string architecture;
  std::string model_type;
  std::int32_t vocab = 0;
  std::vector<std::int32_t> eos;
  GenerationDefaults generation;
  std::int64_t capacity = 0;  // tokens of prompt and answer of one request
  std::int64_t cache_tokens = 0;
  std::int64_t cache_bytes = 0;
  std::int64_t weight_bytes = 0;
  std::int64_t page_size = 0;
  std::int64_t max_running = 0;
  std::string plan_line;
  std::string plan_labels;  // of metrics
  // {"summary", "plan", "groups": [{"name", "matrix"}], "notes"}
  nlohmann::ordered_json plan;
  std::string fingerprint;  // equal where equal requests and seeds give equal answers
  // How its answers are marked up.
  bool reasoning = false;  // <think> and </think>
  ToolFormat tools = ToolFormat::none;
  std::string markup;  // both and why, for people; a line each
  // Marks that are special tokens: detokenising would skip them.
  std::vector<std::pair<std::int32_t, std::string>> marks;
  nlohmann::json tokenizer_config;           // tokenizer_config.json, an object
  std::unique_ptr<grammar::Cache> grammars;  // null: --grammar-backend none

 private:
  void find_marks();
  grammar::Vocabulary token_texts() const;
};

}  // namespace lathe
