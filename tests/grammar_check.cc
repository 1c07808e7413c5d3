// Answers questions about grammars, a JSON object a line, for grammar_test.py.
//
//   {"regex": R | "schema": S, "texts": [...]}         -> [whether it allows each]
//   {"schema": S, "walks": N, "seed": K}               -> [N texts that its masks led to, or null]
//   either                                             -> {"error": "..."} where it does not
//   compile
#include <algorithm>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "server/grammar/grammar.h"
#include "server/grammar/matcher.h"

namespace {

using namespace lathe::grammar;
using Json = nlohmann::ordered_json;

constexpr int kMostTokens = 4000;
constexpr int kBeginsToEnd = 200;  // tokens; then those that close something go first

Vocabulary vocabulary() {
  std::vector<std::string> out;
  for (int b = 0; b < 256; ++b) out.emplace_back(1, static_cast<char>(b));
  for (const char* text :
       {"\": ", "\", \"", "\"}", "\"]",  "}]",   ", ",  "{\"", "[\"",     "\n    ", "true",
        "null", "10",     "-1",  "2024", "the ", "abc", "é",   "\\u00e9", "\\n",    "]}"}) {
    out.emplace_back(text);
  }
  return Vocabulary(std::move(out));
}

bool allows(Grammar& grammar, const std::string& text) {
  Walk walk(grammar.automaton());
  Place place = walk.start();
  for (const char c : text) place = walk.step(place, static_cast<std::uint8_t>(c));
  return walk.may_end(place);
}

Json walk(const std::shared_ptr<Grammar>& grammar, std::mt19937& rng) {
  Matcher matcher(grammar, {});
  const Vocabulary& words = grammar->vocabulary();
  std::string text;
  const bool newlines = rng() % 3 == 0;
  for (int n = 0; n < kMostTokens; ++n) {
    std::vector<std::uint32_t> bits(static_cast<std::size_t>((words.size() + 31) / 32));
    const auto may_end = matcher.allowed(bits);
    if (!may_end) return nullptr;
    std::vector<std::int32_t> allowed, closing;
    for (std::int32_t t = 0; t < words.size(); ++t) {
      if ((bits[static_cast<std::size_t>(t / 32)] >> (t % 32) & 1u) == 0) continue;
      allowed.push_back(t);
      if (words.text(t).find_first_of("]}\"") != std::string::npos) closing.push_back(t);
    }
    if (allowed.empty() || (*may_end && rng() % 4 == 0)) return *may_end ? Json(text) : Json();
    const auto& from = n > kBeginsToEnd && !closing.empty() ? closing : allowed;
    const bool newline =
        newlines && std::find(allowed.begin(), allowed.end(), '\n') != allowed.end();
    const std::int32_t token = newline ? '\n' : from[rng() % from.size()];
    if (!matcher.accept(token)) return "a token that is allowed and refused";
    text += words.text(token);
  }
  return nullptr;
}

Json answer(const Json& question, const Vocabulary& words) {
  Source source;
  source.path = "x";
  source.kind = question.contains("regex") ? Source::Kind::regex : Source::Kind::json_schema;
  if (question.contains("regex")) source.regex = question["regex"];
  if (question.contains("schema")) source.schema = question["schema"];
  const auto grammar = Grammar::compile(source, words);
  if (!grammar) return Json{{"error", grammar.error().message()}};
  Json out = Json::array();
  if (question.contains("texts")) {
    for (const Json& text : question["texts"]) out.push_back(allows(**grammar, text));
  } else {
    std::mt19937 rng(question["seed"].get<std::uint32_t>());
    for (int i = 0; i < question["walks"].get<int>(); ++i) out.push_back(walk(*grammar, rng));
  }
  return out;
}

}  // namespace

int main() {
  const Vocabulary words = vocabulary();
  std::string line;
  while (std::getline(std::cin, line)) {
    std::cout << answer(Json::parse(line), words).dump(-1, ' ', true) << std::endl;
  }
}
