// Answers questions about grammars, a JSON object a line, for grammar_test.py and tools/: of
// its own vocabulary, or of a file's: the number of tokens (4 bytes), then each one's length (2
// bytes) and text.
//
//   {"regex": R | "schema": S | "grammar": G, "texts": [...]}  -> [whether it allows each]
//   {"schema": S, "walks": N, "seed": K}               -> [N texts that its masks led to, or null]
//   {"schema": S, "tokens": [ids]}                     -> {"compile": us, "masks": [us of each
//                                                         step], "again": [us in a second answer]}
//   any                                                -> {"error": "..."} where it does not
//   compile
#include <time.h>

#include <algorithm>
#include <fstream>
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

Vocabulary read_vocabulary(const char* path) {
  std::ifstream in(path, std::ios::binary);
  std::uint32_t count = 0;
  in.read(reinterpret_cast<char*>(&count), 4);
  std::vector<std::string> out(in ? count : 0);
  for (std::string& text : out) {
    std::uint16_t size = 0;
    in.read(reinterpret_cast<char*>(&size), 2);
    text.resize(size);
    in.read(text.data(), size);
  }
  return Vocabulary(std::move(out));
}

// The process's CPU time, which other processes do not change.
double microseconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

// Follows an answer, and times its masks.
Json time_masks(const std::shared_ptr<Grammar>& grammar, const Json& tokens) {
  Matcher matcher(grammar, {});
  std::vector<std::uint32_t> bits(
      static_cast<std::size_t>((grammar->vocabulary().size() + 31) / 32));
  Json out = Json::array();
  for (const Json& token : tokens) {
    const double start = microseconds();
    if (!matcher.allowed(bits)) return "a mask that failed";
    out.push_back(microseconds() - start);
    if (!matcher.accept(token.get<std::int32_t>())) return "a token that is refused";
  }
  return out;
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
  if (question.contains("grammar")) {
    source.kind = Source::Kind::grammar;
    source.grammar = question["grammar"];
  }
  const double start = microseconds();
  const auto grammar = Grammar::compile(source, words);
  const double compile = microseconds() - start;
  if (!grammar) return Json{{"error", grammar.error().message()}};
  if (question.contains("tokens")) {
    const Json masks = time_masks(*grammar, question["tokens"]);
    return {{"compile", compile},
            {"masks", masks},
            {"again", time_masks(*grammar, question["tokens"])}};
  }
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

int main(int argc, char** argv) {
  const Vocabulary words = argc > 1 ? read_vocabulary(argv[1]) : vocabulary();
  std::string line;
  while (std::getline(std::cin, line)) {
    std::cout << answer(Json::parse(line), words).dump(-1, ' ', true) << std::endl;
  }
}
