#include "io/tokenizer/regex.h"

#include <gtest/gtest.h>

#include <map>

#include "io/text/utf8.h"
#include "io/tokenizer/test/tokenizer_fixture.h"

namespace lathe {
namespace {

using Ranges = std::vector<char32_t>;  // first, last, first, last, ...

// Oniguruma's classes as seen by Hugging Face's tokenizers, over every code point assigned in
// Unicode 14 (classes.jsonl, first line).
TEST(Regex, ClassesHoldWhatOnigurumasHold) {
  const auto rows = fixture_rows("classes.jsonl");
  const auto assigned = rows[0]["ranges"].get<Ranges>();
  Regex::Match match;
  for (std::size_t r = 1; r < rows.size(); ++r) {
    const auto name = rows[r]["class"].get<std::string>();
    const auto regex = Regex::compile(name, "class");
    ASSERT_TRUE(regex.ok()) << regex.error().message();
    const auto wanted = rows[r]["ranges"].get<Ranges>();
    std::size_t differ = 0;
    for (std::size_t i = 0, w = 0; i < assigned.size(); i += 2) {
      for (char32_t c = assigned[i]; c <= assigned[i + 1]; ++c) {
        while (w < wanted.size() && wanted[w + 1] < c) w += 2;
        const bool want = w < wanted.size() && wanted[w] <= c;
        std::string text;
        append_utf8(text, c);
        if (regex->find(text, 0, match).has_value() == want) continue;
        if (++differ <= 5) ADD_FAILURE() << name << " and U+" << std::hex << std::uint32_t{c};
      }
    }
    EXPECT_EQ(differ, 0u) << name;
  }
}

TEST(Regex, TranslatesWhatDiffers) {
  const std::map<std::string, std::string> same = {
      {R"(\p{N}{1,3})", R"(\p{N}{1,3})"},
      {R"(\s+(?!\S))", R"([\t-\r\x{85}\p{Z}]+(?![^\t-\r\x{85}\p{Z}]))"},
      {R"([^\s\p{L}])", R"([^\t-\r\x{85}\p{Z}\p{L}])"},
      {R"(\p{Han}\P{^Greek})", R"(\p{sc:Han}\P{^sc:Greek})"},
      {R"(\v\u3042)", R"(\x0B\x{3042})"},
      {R"((?i:'s|'t)|(?<!a)b)", R"((?i:'s|'t)|(?<!a)b)"},
      {R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+)",
       R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+)"},
      {R"([a-z&&[^x]])", R"((?:(?=[^x])[a-z]))"},
      {R"([\p{Lu}\p{Lo}\p{M}&&[^\p{Han}]]*)",
       R"([^\p{Ll}\p{Lt}\p{Lm}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{sc:Han}]*)"},
  };
  for (const auto& [pattern, wanted] : same) {
    const auto translated = translate_regex(pattern, "pattern");
    ASSERT_TRUE(translated.ok()) << translated.error().message();
    EXPECT_EQ(*translated, wanted);
  }
}

TEST(Regex, RefusesWhatTheLibrariesReadDifferently) {
  const std::map<std::string, std::string> refused = {
      {R"([&&a])", "&& without a class"},
      {R"([a&&])", "&& without a class"},
      {R"([[:alpha:]])", "[: in a character class"},
      {R"([[[[[[[[[a]]]]]]]]])", "[ in too many character classes"},
      {R"(\h+)", R"(\h)"},
      {R"(\bword)", R"(\b)"},
      {R"((a)\1)", R"(\1)"},
      {R"((?m:.))", "(?m:"},
      {R"(a(?i)b|c)", "(?i)"},
      {R"((?<name>a))", "(?<name>a)"},
      {R"((*ACCEPT))", "(*ACCEPT)"},
      {R"(a{,3})", "{ not in {n,m}"},
      {R"(a{2}?)", "{2}?"},
      {R"(a{2,3}+)", "{2,3}+"},
      {R"(\xE9)", R"(\x other than \x00 to \x7F and \x{...})"},
      {R"(\p{Xan})", R"(\p{Xan})"},
      {R"(\p{NoSuchScript})", R"(\p{NoSuchScript})"},
      {R"(a\Kb)", R"(\K)"},
      {R"([\W])", R"(\W in a class)"},
      {R"([a)", "an unfinished character class"},
      {"a\\", "a backslash at the end"},
  };
  for (const auto& [pattern, offered] : refused) {
    const auto regex = Regex::compile(pattern, "pre_tokenizer.pattern.Regex");
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_EQ(regex.error().code, ErrorCode::unsupported) << pattern;
    EXPECT_EQ(regex.error().field, "pre_tokenizer.pattern.Regex");
    EXPECT_EQ(regex.error().offered, offered);
  }
  for (const char* pattern : {"(a", "a)", "*a", "(?<=a+)b", "a{9,1}", "[z-a]"}) {
    const auto regex = Regex::compile(pattern, "p");
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_EQ(regex.error().code, ErrorCode::malformed) << pattern;
  }
}

// Members by the rules of Oniguruma and of Rust's regex: union binds closer than &&, negation
// least.
TEST(Regex, IntersectsAndNestsClasses) {
  struct Case {
    const char* pattern;
    const char* members;  // of the text below
  };
  const std::string text = "abcdxyzAZ09_ \n\u6F22\u304B\u00E9";
  for (const Case& c :
       {Case{"[a-d&&[^bc]]", "ad"}, Case{"[a-d&&b-z]", "bcd"},
        Case{"[^a-z&&[^xyz]]", "xyzAZ09_ \n\u6F22\u304B\u00E9"}, Case{"[a-cx&&[b-z]&&[^x]]", "bc"},
        Case{"[a[0-9]]", "a09"}, Case{"[^a-z[0-9]]", "AZ_ \n\u6F22\u304B\u00E9"},
        Case{"[a[^\\p{L}]&&[^0_]]", "a9 \n"},
        Case{"[\\p{L}&&[^\\p{Han}x]]", "abcdyzAZ\u304B\u00E9"},
        Case{"[\\p{L}\\p{N}&&[^\\p{Lo}]&&[^a9]]", "bcdxyzAZ0\u00E9"},
        Case{"[\\p{Lu}\\d&&\\w]", "AZ09"}}) {
    const auto regex = Regex::compile(c.pattern, "pattern");
    ASSERT_TRUE(regex.ok()) << regex.error().message();
    Regex::Match match;
    std::string found;
    for_each_part(*regex, text, match, [&](std::size_t begin, std::size_t end, bool is_match) {
      if (is_match) found += text.substr(begin, end - begin);
    });
    EXPECT_EQ(found, c.members) << c.pattern;
  }
}

// The class at the end keeps PCRE2 from looking for a required character first.
TEST(Regex, GivesUpOnAPatternThatExplodes) {
  const auto regex = Regex::compile("(?:a+)+[bc]", "pattern");
  ASSERT_TRUE(regex.ok());
  Regex::Match match;
  EXPECT_FALSE(regex->find("aad", 0, match).has_value());
  EXPECT_FALSE(match.stopped());
  EXPECT_FALSE(regex->find(std::string(64, 'a'), 0, match).has_value());
  EXPECT_TRUE(match.stopped());
  EXPECT_TRUE(regex->find("aab", 0, match).has_value());
}

TEST(Regex, BacktracksFurtherThanTheJitsStack) {
  const auto regex = Regex::compile("(?:ab|a|b)*c", "pattern");
  ASSERT_TRUE(regex.ok());
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "ab";
  text += "c";
  Regex::Match match;
  const auto found = regex->find(text, 0, match);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->second, text.size());
}

}  // namespace
}  // namespace lathe
