// Schemas, regular expressions, rules and tools: an error, or a grammar whose masks lead on to an
// end or to more tokens, never to a place with neither.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json_digits.h"
#include "server/grammar/grammar.h"
#include "server/grammar/matcher.h"

namespace {

using namespace lathe::grammar;

const Vocabulary& vocabulary() {
  static const Vocabulary out = [] {
    std::vector<std::string> texts;
    for (int b = 0; b < 256; ++b) texts.emplace_back(1, static_cast<char>(b));
    for (const char* text : {"{\"", "\":", "\",\"", "\"}", "]}", "true", "12", "  ", "ab", "\\n"}) {
      texts.emplace_back(text);
    }
    return Vocabulary(std::move(texts));
  }();
  return out;
}

}  // namespace

// The first byte is the kind, the second how tokens are chosen.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  Source source;
  source.path = "x";
  const std::string text(reinterpret_cast<const char*>(data) + 2, size - 2);
  constexpr Source::Kind kKinds[] = {Source::Kind::json_schema, Source::Kind::regex,
                                     Source::Kind::grammar, Source::Kind::calls};
  source.kind = kKinds[data[0] % 4];
  source.regex = source.grammar = text;
  if (source.kind == Source::Kind::json_schema || source.kind == Source::Kind::calls) {
    auto schema = nlohmann::ordered_json::parse(text, nullptr, false);
    if (schema.is_discarded()) return 0;
    if (source.kind == Source::Kind::calls) source.tools = {{"f", schema, "x"}};
    source.schema = std::move(schema);
    source.lenient = true;
  }
  Limits limits;
  limits.states = 20'000;
  limits.edges = 60'000;
  const auto grammar = Grammar::compile(source, vocabulary(), limits);
  if (!grammar) return 0;
  Matcher matcher(*grammar, {});
  std::uint32_t choice = data[1];
  std::string text_so_far;
  for (int i = 0; i < 40; ++i) {
    std::vector<std::uint32_t> bits(static_cast<std::size_t>((vocabulary().size() + 31) / 32));
    const auto may_end = matcher.allowed(bits);
    if (!may_end) return 0;
    std::vector<std::int32_t> allowed;
    for (std::int32_t t = 0; t < vocabulary().size(); ++t) {
      if ((bits[static_cast<std::size_t>(t / 32)] >> (t % 32) & 1u) != 0) allowed.push_back(t);
    }
    LATHE_CHECK(*may_end || !allowed.empty(), "a place without a way on");
    if (*may_end && source.kind == Source::Kind::json_schema) {
      LATHE_CHECK(!lathe::read_json_exact(text_so_far).is_discarded(),
                  "an answer that is not JSON");
    }
    if (allowed.empty()) return 0;
    choice = choice * 1664525u + 1013904223u;
    const std::int32_t token = allowed[(choice >> 8) % allowed.size()];
    LATHE_CHECK(matcher.accept(token), "a token of the mask");
    text_so_far += vocabulary().text(token);
  }
  return 0;
}
