#include "tools/bench/server/serve_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>

#include "base/json.h"
#include "io/files/read_file.h"
#include "io/text/quote.h"
#include "io/tokenizer/tokenizer.h"
#include "tools/bench/bench_memory.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;
using Tokens = std::vector<std::int32_t>;

class Maker {
 public:
  explicit Maker(const ServePromptOptions& options) : options_(options), random_(options.seed) {
    for (std::int64_t i = 0; options.prefix_len > 0 && i < options.prefixes; ++i) {
      prefixes_.push_back(tokens(options.prefix_len));
    }
  }

  Result<ServeLoad> make() {
    if (options_.dataset == "tasks") return from_tasks();
    if (auto ok = load_tokenizer(); !ok) return ok.error();
    if (options_.dataset == "custom") return from_file();
    const double each = static_cast<double>(options_.input_len + options_.prefix_len);
    if (auto ok = check_tokens(each * static_cast<double>(options_.prompts)); !ok) {
      return ok.error();
    }
    ServeLoad out;
    for (std::int64_t i = 0; i < options_.prompts; ++i) {
      out.requests.push_back(of_lengths(length(options_.input_len), length(options_.output_len)));
    }
    return out;
  }

 private:
  Result<void> load_tokenizer() {
    if (!options_.tokenizer.empty()) {
      auto loaded = Tokenizer::load(options_.tokenizer);
      if (!loaded) return loaded.error();
      tokenizer_.emplace(std::move(*loaded));
    }
    if (options_.chat && options_.dataset == "random" && !tokenizer_) {
      return Error{ErrorCode::invalid_argument, "--tokenizer",
                   "a model's folder, to write random tokens as text for openai-chat", "none",
                   "--backend openai sends tokens"};
    }
    return {};
  }

  // The error if the texts of all prompts are more than the machine has memory for.
  Result<void> check_tokens(double tokens) const {
    const double each = std::log10(static_cast<double>(options_.vocab)) + 1;  // digits and a comma
    return check_bench_memory(
        Device::cpu, tokens * each, "--num-prompts",
        fmt::format("{} prompts of {:.0f} tokens in all", options_.prompts, tokens),
        "fewer or shorter ones");
  }

  std::int64_t length(std::int64_t middle) {
    const auto m = static_cast<double>(middle);
    const double ratio = options_.range_ratio;
    const auto least = static_cast<std::int64_t>(std::floor(m * (1 - ratio)));
    const auto most = static_cast<std::int64_t>(std::ceil(m * (1 + ratio)));
    return std::max<std::int64_t>(
        1, std::uniform_int_distribution<std::int64_t>(least, most)(random_));
  }

  Tokens tokens(std::int64_t n) {
    // The first ids of many vocabularies are special tokens.
    const std::int64_t least = std::min<std::int64_t>(options_.vocab / 2, 256);
    std::uniform_int_distribution<std::int32_t> any(static_cast<std::int32_t>(least),
                                                    static_cast<std::int32_t>(options_.vocab - 1));
    Tokens out;
    for (std::int64_t i = 0; i < n; ++i) out.push_back(any(random_));
    return out;
  }

  Json body(Json prompt, std::int64_t output, bool ignore_eos) {
    Json out{{"model", options_.model}};
    if (!options_.chat) {
      out["prompt"] = std::move(prompt);
    } else if (prompt.is_string()) {
      out["messages"] = {{{"role", "user"}, {"content", std::move(prompt)}}};
    } else {
      out["messages"] = std::move(prompt);
    }
    out["max_tokens"] = output;
    out["temperature"] = options_.temperature;
    out["stream"] = true;
    out["stream_options"] = {{"include_usage", true}};
    if (ignore_eos) out["ignore_eos"] = true;
    for (const auto& [name, value] : options_.extra.items()) out[name] = value;
    return out;
  }

  ServeRequest of_lengths(std::int64_t input, std::int64_t output) {
    Tokens prompt;
    if (!prefixes_.empty()) prompt = prefixes_[made_++ % prefixes_.size()];
    const Tokens own = tokens(input);
    prompt.insert(prompt.end(), own.begin(), own.end());
    Json text = tokenizer_ ? Json(tokenizer_->decode(prompt, false)) : Json(prompt);
    return {json_text(body(std::move(text), output, true)), 0};
  }

  Result<ServeLoad> from_tasks() {
    std::vector<EvalTask> tasks;
    for (const std::string& task : options_.tasks) {
      const auto kind = parse_enum<EvalTaskKind>(task);
      if (!kind) {
        return Error{ErrorCode::invalid_argument, "--task", "copy, retrieval, arithmetic or chains",
                     quote(task), ""};
      }
      auto read = read_eval_task(*kind, options_.task_dir, options_.prompts);
      if (!read) return read.error();
      tasks.push_back(std::move(*read));
    }
    ServeLoad out;
    for (std::int64_t i = 0; i < options_.prompts; ++i) {
      const auto n = static_cast<std::size_t>(i);
      const EvalTask& task = tasks[n % tasks.size()];
      const EvalItem& item = task.items[n / tasks.size() % task.items.size()];
      out.requests.push_back({json_text(body(item.prompt, options_.output_len, false)), 0});
      out.items.emplace_back(task.kind, item);
    }
    return out;
  }

  // The first of these members of a line that is a whole number; 0: none is.
  static std::int64_t count(const Json& line, std::initializer_list<const char*> names) {
    for (const char* name : names) {
      const auto at = line.find(name);
      if (at != line.end() && at->is_number_integer()) return at->get<std::int64_t>();
    }
    return 0;
  }
  static std::int64_t input_of(const Json& line) {
    return count(line, {"input_length", "input_tokens"});
  }
  static bool has_prompt(const Json& line) {
    return line.contains("prompt") || line.contains("messages");
  }

  Result<ServeRequest> of_line(const Json& line, const std::string& place) {
    const std::int64_t asked = count(line, {"output_tokens", "output_length", "max_tokens"});
    const std::int64_t output = asked > 0 ? asked : options_.output_len;
    for (const char* name : {"prompt", "messages"}) {
      const auto at = line.find(name);
      if (at == line.end()) continue;
      if (*at == nullptr || (!options_.chat && !at->is_string()) || at->is_number()) break;
      return ServeRequest{json_text(body(*at, output, asked > 0)), 0};
    }
    const std::int64_t input = input_of(line);
    const bool fits = input > 0 && (!options_.chat || tokenizer_);
    if (fits) return of_lengths(input, output);
    return Error{
        ErrorCode::malformed, place,
        R"({"prompt": TEXT, "output_tokens": N} or {"input_length": N, "output_length": N})",
        json_excerpt(line), ""};
  }

  static Result<Json> read_line(const std::string& line, const std::string& place) {
    const auto wrong = [&](const std::string& got) {
      return Error{ErrorCode::malformed, place, "a JSON object", got, ""};
    };
    try {
      auto read = read_watched_json<Json>(line, {}, /*exact=*/true);
      if (read.too_deep) {
        return wrong(fmt::format("more than {} levels at {}", kMostLevels, *read.too_deep));
      }
      if (read.too_large) return wrong(read.too_large->digits + ", which no double holds");
      if (read.twice) return wrong(quote(*read.twice) + " twice");
      if (read.value.is_object()) return std::move(read.value);
    } catch (const Json::exception&) {
    }
    return wrong(quote(line.substr(0, 80)));
  }

  // Flags of random tokens need a line that gives lengths alone.
  Result<void> need_lengths(const std::vector<std::pair<Json, std::string>>& lines) const {
    const char* const flag = options_.prefix_len > 0                        ? "--random-prefix-len"
                             : !options_.tokenizer.empty()                  ? "--tokenizer"
                             : options_.vocab != ServePromptOptions().vocab ? "--vocab-size"
                                                                            : nullptr;
    const auto prompts = [](const auto& line) { return has_prompt(line.first); };
    if (flag == nullptr || !std::ranges::all_of(lines, prompts)) return {};
    return Error{ErrorCode::invalid_argument, flag, "a line without a prompt, for random tokens",
                 "prompts in all lines of " + options_.path, "leave it out"};
  }

  Result<ServeLoad> from_file() {
    const auto text = read_file(options_.path);
    if (!text) {
      Error e = text.error();
      e.field = "--dataset-path";
      return e;
    }
    std::vector<std::pair<Json, std::string>> lines;  // and their places
    std::int64_t number = 0;
    for (std::size_t at = 0; at < text->size();) {
      const std::size_t end = std::min(text->find('\n', at), text->size());
      const std::string line = text->substr(at, end - at);
      at = end + 1;
      ++number;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      std::string place = fmt::format("{}:{}", options_.path, number);
      auto read = read_line(line, place);
      if (!read) return read.error();
      lines.emplace_back(std::move(*read), std::move(place));
    }
    if (lines.empty()) {
      return Error{ErrorCode::malformed, options_.path, "at least one line", "none", ""};
    }
    if (auto ok = need_lengths(lines); !ok) return ok.error();
    double tokens = 0;
    for (std::int64_t i = 0; i < options_.prompts; ++i) {
      const Json& line = lines[static_cast<std::size_t>(i) % lines.size()].first;
      if (has_prompt(line)) continue;
      tokens += static_cast<double>(input_of(line)) + static_cast<double>(options_.prefix_len);
    }
    if (auto ok = check_tokens(tokens); !ok) return ok.error();
    ServeLoad out;
    for (std::int64_t i = 0; i < options_.prompts; ++i) {
      const std::size_t n = static_cast<std::size_t>(i) % lines.size();
      auto request = of_line(lines[n].first, lines[n].second);
      if (!request) return request.error();
      out.requests.push_back(std::move(*request));
    }
    return out;
  }

  const ServePromptOptions& options_;
  std::mt19937_64 random_;
  std::optional<Tokenizer> tokenizer_;
  std::vector<Tokens> prefixes_;
  std::size_t made_ = 0;
};

}  // namespace

Result<ServeLoad> make_serve_load(const ServePromptOptions& options) {
  return Maker(options).make();
}

void set_due_times(std::vector<ServeRequest>& requests, double rate, double burstiness,
                   std::uint64_t seed) {
  if (rate <= 0) return;
  std::mt19937_64 random(seed + 1);
  std::gamma_distribution<double> interval(burstiness, 1 / (rate * burstiness));
  double at = 0;
  for (ServeRequest& r : requests) {
    r.due = at;
    at += interval(random);
  }
}

}  // namespace lathe
