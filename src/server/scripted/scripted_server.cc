#include "server/scripted/scripted_server.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/json.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

std::string utf8(std::int32_t code) {  // below 0x800
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

// Names of bytes in byte-level vocabularies: printable Latin-1 characters are themselves, others
// are numbered from U+0100.
std::string byte_name(std::int32_t byte, std::int32_t& others) {
  const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
  return utf8(printable ? byte : 0x100 + others++);
}

std::string tokenizer_json(bool special_marks) {
  Json vocab = Json::object();
  std::int32_t others = 0;
  for (std::int32_t b = 0; b < kFirstWord; ++b) vocab[byte_name(b, others)] = b;
  for (std::int32_t w = 0; w < kScriptWords; ++w) vocab[fmt::format("Ġw{}", w)] = kFirstWord + w;
  Json added = Json::array();
  std::int32_t id = kScriptEos;
  for (const char* name : {"<eos>", "<think>", "</think>", "<tool_call>", "</tool_call>"}) {
    added.push_back({{"id", id++},
                     {"content", name},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special_marks || std::string_view(name) == "<eos>"}});
  }
  const Json byte_level{{"type", "ByteLevel"},
                        {"add_prefix_space", false},
                        {"trim_offsets", true},
                        {"use_regex", true}};
  return json_text(Json{{"version", "1.0"},
                        {"added_tokens", added},
                        {"normalizer", nullptr},
                        {"pre_tokenizer", byte_level},
                        {"post_processor", nullptr},
                        {"decoder", byte_level},
                        {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}});
}

std::int32_t next_word(std::int32_t token, std::int32_t) {
  const std::int32_t word = token < kFirstWord ? token : token - kFirstWord + 1;
  return kFirstWord + word % kScriptWords;
}

std::string template_text(const std::string& prefix) {
  return prefix +
         "{% for m in messages %}{{ m.content or '' }}{% endfor %}"
         "{% if tools %}{% endif %}";  // reads them, so that requests may have some
}

}  // namespace

ScriptedOptions::ScriptedOptions() {
  server.port = 0;
  server.names = {"scripted"};
  server.log_requests = 0;
  server.http.max_connections = 512;
}

ScriptedServer::ScriptedServer(ScriptedOptions options, bool load) : options_(std::move(options)) {
  auto tokenizer = Tokenizer::parse(tokenizer_json(options_.special_marks));
  LATHE_CHECK(tokenizer, tokenizer ? "" : tokenizer.error().message());
  tokenizer_.emplace(std::move(*tokenizer));
  auto chat = ChatTemplate::parse(template_text(options_.template_prefix));
  LATHE_CHECK(chat, chat ? "" : chat.error().message());
  chat_.emplace(ChatTemplateFile{std::move(*chat), "", "<eos>"});
  auto server = Server::start(options_.server, *tokenizer_, &*chat_);
  LATHE_CHECK(server, server ? "" : server.error().message());
  server_ = std::move(*server);
  if (load) serve();
}

void ScriptedServer::serve() {
  RuntimeOptions o;
  o.threads = 1;
  o.draft = options_.draft;
  o.engine.prefix_cache = options_.prefix_cache;
  o.engine.priorities = options_.server.fields.priorities;
  o.plan_request.context_length = options_.context;
  o.plan_request.max_running_requests = options_.max_running_requests;
  o.plan_request.max_total_tokens = options_.max_total_tokens;
  o.plan_request.chunked_prefill_size = options_.chunked_prefill_size;
  o.make_model = [this] {
    return std::make_unique<ScriptedModel>(Script{kScriptVocab,
                                                  options_.context,
                                                  {kScriptEos},
                                                  options_.next ? options_.next : next_word,
                                                  options_.on_forward});
  };
  auto runtime = Runtime::create(o);
  if (!runtime) {
    const auto* error = std::get_if<Error>(&runtime.error());
    LATHE_CHECK(false, error ? error->message() : std::get<Refusal>(runtime.error()).headline);
  }
  runtime_ = std::move(*runtime);
  const auto ok = server_->serve(*runtime_);
  LATHE_CHECK(ok, ok ? "" : ok.error().message());
}

std::string scripted_text(std::string_view prompt, std::int64_t tokens) {
  std::string out;
  std::int32_t token = static_cast<unsigned char>(prompt.back());
  for (std::int64_t i = 0; i < tokens; ++i) {
    token = next_word(token, 0);
    out += fmt::format(" w{}", token - kFirstWord);
  }
  return out;
}

}  // namespace lathe
