#include "server/grammar/text/unicode_classes.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>

namespace lathe::grammar {
namespace {

constexpr std::uint32_t bit(int category) { return std::uint32_t{1} << category; }

constexpr std::uint32_t kLu = bit(UTF8PROC_CATEGORY_LU), kLl = bit(UTF8PROC_CATEGORY_LL),
                        kLt = bit(UTF8PROC_CATEGORY_LT), kLm = bit(UTF8PROC_CATEGORY_LM),
                        kLo = bit(UTF8PROC_CATEGORY_LO), kMn = bit(UTF8PROC_CATEGORY_MN),
                        kMc = bit(UTF8PROC_CATEGORY_MC), kMe = bit(UTF8PROC_CATEGORY_ME),
                        kNd = bit(UTF8PROC_CATEGORY_ND), kNl = bit(UTF8PROC_CATEGORY_NL),
                        kNo = bit(UTF8PROC_CATEGORY_NO), kPc = bit(UTF8PROC_CATEGORY_PC),
                        kPd = bit(UTF8PROC_CATEGORY_PD), kPs = bit(UTF8PROC_CATEGORY_PS),
                        kPe = bit(UTF8PROC_CATEGORY_PE), kPi = bit(UTF8PROC_CATEGORY_PI),
                        kPf = bit(UTF8PROC_CATEGORY_PF), kPo = bit(UTF8PROC_CATEGORY_PO),
                        kSm = bit(UTF8PROC_CATEGORY_SM), kSc = bit(UTF8PROC_CATEGORY_SC),
                        kSk = bit(UTF8PROC_CATEGORY_SK), kSo = bit(UTF8PROC_CATEGORY_SO),
                        kZs = bit(UTF8PROC_CATEGORY_ZS), kZl = bit(UTF8PROC_CATEGORY_ZL),
                        kZp = bit(UTF8PROC_CATEGORY_ZP), kCc = bit(UTF8PROC_CATEGORY_CC),
                        kCf = bit(UTF8PROC_CATEGORY_CF), kCo = bit(UTF8PROC_CATEGORY_CO),
                        kCn = bit(UTF8PROC_CATEGORY_CN);
constexpr std::uint32_t kCased = kLu | kLl | kLt;

struct Class {
  std::string_view name, long_name;
  std::uint32_t categories;
};

// Of PropertyValueAliases.txt. Surrogates (Cs) are no characters of a text.
constexpr Class kClasses[] = {
    {"L", "Letter", kCased | kLm | kLo},
    {"LC", "Cased_Letter", kCased},
    {"Lu", "Uppercase_Letter", kLu},
    {"Ll", "Lowercase_Letter", kLl},
    {"Lt", "Titlecase_Letter", kLt},
    {"Lm", "Modifier_Letter", kLm},
    {"Lo", "Other_Letter", kLo},
    {"M", "Mark", kMn | kMc | kMe},
    {"M", "Combining_Mark", kMn | kMc | kMe},
    {"Mn", "Nonspacing_Mark", kMn},
    {"Mc", "Spacing_Mark", kMc},
    {"Me", "Enclosing_Mark", kMe},
    {"N", "Number", kNd | kNl | kNo},
    {"Nd", "Decimal_Number", kNd},
    {"Nd", "digit", kNd},
    {"Nl", "Letter_Number", kNl},
    {"No", "Other_Number", kNo},
    {"P", "Punctuation", kPc | kPd | kPs | kPe | kPi | kPf | kPo},
    {"P", "punct", kPc | kPd | kPs | kPe | kPi | kPf | kPo},
    {"Pc", "Connector_Punctuation", kPc},
    {"Pd", "Dash_Punctuation", kPd},
    {"Ps", "Open_Punctuation", kPs},
    {"Pe", "Close_Punctuation", kPe},
    {"Pi", "Initial_Punctuation", kPi},
    {"Pf", "Final_Punctuation", kPf},
    {"Po", "Other_Punctuation", kPo},
    {"S", "Symbol", kSm | kSc | kSk | kSo},
    {"Sm", "Math_Symbol", kSm},
    {"Sc", "Currency_Symbol", kSc},
    {"Sk", "Modifier_Symbol", kSk},
    {"So", "Other_Symbol", kSo},
    {"Z", "Separator", kZs | kZl | kZp},
    {"Zs", "Space_Separator", kZs},
    {"Zl", "Line_Separator", kZl},
    {"Zp", "Paragraph_Separator", kZp},
    {"C", "Other", kCc | kCf | kCo | kCn},
    {"Cc", "Control", kCc},
    {"Cc", "cntrl", kCc},
    {"Cf", "Format", kCf},
    {"Co", "Private_Use", kCo},
    {"Cn", "Unassigned", kCn},
};

struct Run {
  CharRange chars;
  std::uint32_t category;
};

// All characters by category, in order. Made once, as 1.1 million look-ups need milliseconds.
const std::vector<Run>& runs() {
  static const std::vector<Run> all = [] {
    std::vector<Run> out;
    for (char32_t c = 0; c <= 0x10FFFF; ++c) {
      const std::uint32_t category = bit(utf8proc_category(static_cast<utf8proc_int32_t>(c)));
      if (out.empty() || out.back().category != category) out.push_back({{c, c}, category});
      out.back().chars.last = c;
    }
    return out;
  }();
  return all;
}

}  // namespace

std::optional<CharSet> unicode_class(std::string_view name) {
  if (name == "Any") return CharSet::all();
  if (name == "ASCII") return CharSet{{0, 0x7F}};
  for (const std::string_view property : {"gc=", "General_Category="}) {
    if (name.starts_with(property)) name.remove_prefix(property.size());
  }
  const auto at = std::find_if(std::begin(kClasses), std::end(kClasses), [&](const Class& c) {
    return c.name == name || c.long_name == name;
  });
  if (at == std::end(kClasses)) return std::nullopt;
  std::vector<CharRange> ranges;
  for (const Run& run : runs()) {
    if ((run.category & at->categories) != 0) ranges.push_back(run.chars);
  }
  return CharSet(std::move(ranges));
}

}  // namespace lathe::grammar
