#include "tools/flags/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/edit_distance.h"
#include "tools/flags/command.h"

namespace lathe {
namespace {

std::string environment_name(const std::string& flag) {
  std::string out = "LATHE_";
  for (char c : flag) out += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  return out;
}

template <class T>
struct ValueOf {
  using type = T;
};
template <class T>
struct ValueOf<std::optional<T>> {
  using type = T;
};
template <class T>
struct ValueOf<std::vector<T>> {
  using type = T;
};

// A sign and decimal digits.
bool is_decimal(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Without leading zeros, with which the parser would read an octal number.
std::string without_leading_zeros(std::string text) {
  if (!is_decimal(text)) return text;
  const std::size_t sign = text[0] == '-' || text[0] == '+' ? 1 : 0;
  const std::size_t digit = text.find_first_not_of('0', sign);
  text.erase(sign, std::min(digit, text.size() - 1) - sign);
  return text;
}

// Whether a text is a decimal number of type T. The parser's own conversion also reads 0x10, 1'000
// and "true", and a number beyond 64 bits as the largest one.
template <class T>
bool is_number(const std::string& text) {
  T parsed{};
  if constexpr (std::is_integral_v<T>) {
    if (!is_decimal(text) || (std::is_unsigned_v<T> && text.starts_with('-'))) return false;
    errno = 0;
    if constexpr (std::is_unsigned_v<T>) {
      std::strtoull(text.c_str(), nullptr, 10);
    } else {
      std::strtoll(text.c_str(), nullptr, 10);
    }
    if (errno != 0) return false;
  } else if (text.find_first_of("xX") != std::string::npos) {
    return false;
  }
  return CLI::detail::lexical_cast(without_leading_zeros(text), parsed);
}

template <class T>
std::string number_problem(const std::string& text) {
  if constexpr (std::is_floating_point_v<T>) {
    T value{};
    if (!is_number<T>(text)) return fmt::format("wanted a number, got {}", text);
    CLI::detail::lexical_cast(text, value);
    const bool has_digits = text.find_first_of("0123456789") != std::string::npos;
    if (std::isinf(value) && has_digits) {
      return fmt::format("wanted a number of at most {}, got {}", std::numeric_limits<T>::max(),
                         text);
    }
    return value == 0 && text.find_first_of("123456789") < text.find_first_of("eE")
               ? fmt::format("wanted 0 or a number of at least {}, got {}",
                             std::numeric_limits<T>::denorm_min(), text)
               : std::string();
  } else if (is_number<T>(text)) {
    return {};
  } else if (text.empty() || text.find_first_not_of("-0123456789") != std::string::npos) {
    return fmt::format("wanted a whole number, got {}", text.empty() ? "nothing" : text);
  } else {
    return fmt::format("wanted a whole number from {} to {}, got {}", std::numeric_limits<T>::min(),
                       std::numeric_limits<T>::max(), text);
  }
}

}  // namespace

Flag Flag::range(std::int64_t least, std::int64_t most) {
  const auto problem = [=](const std::string& text) -> std::string {
    std::int64_t value = 0;
    const std::string plain = without_leading_zeros(text);
    if (is_number<std::int64_t>(text) && CLI::detail::lexical_cast(plain, value) &&
        value >= least && value <= most) {
      return {};
    }
    return fmt::format("wanted a whole number from {} to {}, got {}", least, most, text);
  };
  option_->check(CLI::Validator(problem, fmt::format("{} to {}", least, most)));
  return *this;
}

Flag Flag::numbers(double least, double most) {
  const auto problem = [=](const std::string& text) -> std::string {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    const bool fits = end != text.c_str() && *end == 0 && value >= least && value <= most;
    return fits ? "" : fmt::format("wanted a number from {} to {}, got {}", least, most, text);
  };
  option_->check(CLI::Validator(problem, fmt::format("{} to {}", least, most)));
  return *this;
}

Flag Flag::positive() {
  option_->check(CLI::Validator(
      [](const std::string& text) -> std::string {
        std::int64_t value = 0;
        const std::string plain = without_leading_zeros(text);
        if (is_number<std::int64_t>(text) && CLI::detail::lexical_cast(plain, value) && value > 0) {
          return {};
        }
        return fmt::format("wanted a whole number from 1 on, got {}", text);
      },
      "1 or more"));
  return *this;
}

Flag Flag::not_empty() {
  option_->check(CLI::Validator(
      [](const std::string& text) {
        return text.empty() ? std::string("wanted a text, got an empty one; leave the flag out")
                            : std::string();
      },
      ""));
  return *this;
}

Flag Flag::one_of(std::initializer_list<std::string> values) {
  const std::vector<std::string> known(values);
  const auto problem = [known](const std::string& text) -> std::string {
    if (std::find(known.begin(), known.end(), text) != known.end()) return {};
    return fmt::format("wanted one of {}, got {}", fmt::join(known, ", "), text);
  };
  option_->check(CLI::Validator(problem, fmt::format("{{{}}}", fmt::join(known, ","))));
  return *this;
}

Flag Flag::check(const std::function<std::string(const std::string&)>& problem) {
  option_->check(problem);
  return *this;
}

Flag Flag::delimiter(char c) {
  option_->delimiter(c);
  return *this;
}

Flag Flag::repeated() {
  option_->allow_extra_args(false);
  return *this;
}

Flag Flag::needs(Flag other) {
  option_->needs(other.option_);
  return *this;
}

Flag Flag::excludes(Flag other) {
  option_->excludes(other.option_);
  return *this;
}

Flag Flag::required() {
  option_->required();
  return *this;
}

Command Command::add_subcommand(const std::string& name, const std::string& help) {
  return Command(app_->add_subcommand(name, help));
}

void Command::require_subcommand() { app_->require_subcommand(1); }

template <class T>
Flag Command::add_option(const std::string& names, T& value, const std::string& help) {
  using Value = typename ValueOf<T>::type;
  CLI::Option* const option = app_->add_option(names, value, help);
  Flag flag(option);
  if constexpr (std::is_arithmetic_v<Value>) flag.check(number_problem<Value>);
  if constexpr (std::is_integral_v<Value>) option->transform(without_leading_zeros, "");
  return flag;
}

#define LATHE_FLAG_TYPE(...) \
  template Flag Command::add_option(const std::string&, __VA_ARGS__&, const std::string&);
LATHE_FLAG_TYPE(std::string)
LATHE_FLAG_TYPE(std::int32_t)
LATHE_FLAG_TYPE(std::int64_t)
LATHE_FLAG_TYPE(std::uint64_t)
LATHE_FLAG_TYPE(std::optional<std::string>)
LATHE_FLAG_TYPE(std::optional<std::int32_t>)
LATHE_FLAG_TYPE(std::optional<std::uint64_t>)
LATHE_FLAG_TYPE(std::optional<float>)
LATHE_FLAG_TYPE(float)
LATHE_FLAG_TYPE(std::vector<std::string>)
LATHE_FLAG_TYPE(std::vector<std::int32_t>)
LATHE_FLAG_TYPE(std::vector<std::int64_t>)
#undef LATHE_FLAG_TYPE

Flag Command::add_flag(const std::string& names, bool& value, const std::string& help) {
  return Flag(app_->add_flag(names, value, help));
}

bool Command::given(const std::string& name) const { return app_->count(name) > 0; }

void Command::read_environment() {
  for (CLI::Option* option : app_->get_options()) {
    if (option->get_lnames().empty() || option->get_lnames()[0] == "help") continue;
    option->capture_default_str();
    option->envname(environment_name(option->get_lnames()[0]));
  }
}

std::vector<FlagValue> Command::values() const {
  std::vector<FlagValue> out;
  for (const CLI::Option* option : app_->get_options()) {
    if (option->get_lnames().empty() || option->get_lnames()[0] == "help") continue;
    FlagValue v{option->get_lnames()[0], option->get_default_str(), "default"};
    if (v.value == "[]") v.value.clear();
    if (option->get_expected_max() == 0) v.value = "false";
    const char* variable = std::getenv(environment_name(v.name).c_str());
    v.empty = option->count() == 0 && variable != nullptr && *variable == '\0';
    if (option->count() > 0) {
      v.value =
          option->get_expected_max() == 0 ? "true" : CLI::detail::join(option->results(), " ");
      v.empty = v.value.empty();
      const bool same =
          variable != nullptr && without_leading_zeros(v.value) == without_leading_zeros(variable);
      v.origin = same ? "environment" : "flag";
    }
    out.push_back(std::move(v));
  }
  return out;
}

void Command::callback(const std::function<void()>& run) { app_->callback(run); }

namespace {

// The error of a command without a subcommand or with an unknown one; empty if the parser decides.
std::optional<std::string> missing_subcommand(const CLI::App& app, int argc, char** argv, int at) {
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  if (commands.empty()) return std::nullopt;
  std::string known, nearest;
  std::size_t least = 3;  // words with more changes are not suggested
  const std::string_view word = at < argc ? argv[at] : "";
  if (word.starts_with('-')) return std::nullopt;
  for (const CLI::App* c : commands) {
    if (c->get_name() == word) return missing_subcommand(*c, argc, argv, at + 1);
    known += (known.empty() ? "" : ", ") + c->get_name();
    const std::size_t changes = edit_distance(word, c->get_name());
    if (changes < least) {
      least = changes;
      nearest = c->get_name();
    }
  }
  std::string path = app.get_name();
  for (const CLI::App* p = app.get_parent(); p != nullptr; p = p->get_parent()) {
    path = p->get_name() + " " + path;
  }
  return fmt::format("{}: wanted one of {}, got {}{}", path, known,
                     word.empty() ? "nothing" : fmt::format("\"{}\"", word),
                     nearest.empty() ? "" : fmt::format("; did you mean {} {}?", path, nearest));
}

// The option of `name`, such as --batch or -b; null if the command has none.
const CLI::Option* option_of(const CLI::App& app, const std::string& name) {
  for (const CLI::Option* option : app.get_options()) {
    if (name.starts_with('-') && option->check_name(name)) return option;
  }
  return nullptr;
}

// Whether a switch may have the value after '='. The parser also reads the digits that begin a
// word.
bool is_switch_value(std::string_view value) {
  constexpr std::array<std::string_view, 11> kValues = {
      "", "true", "false", "on", "off", "yes", "no", "enable", "disable", "1", "0"};
  return std::ranges::find(kValues, value) != kValues.end();
}

// The error of what the parser would leave out: nothing between two commas of a list, or letters
// after the digits of a switch's value. Empty lists are the parser's to judge.
std::optional<std::string> unread_value(const CLI::App& root, int argc, char** argv) {
  const CLI::App* app = &root;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    for (const CLI::App* c : app->get_subcommands([](const CLI::App*) { return true; })) {
      if (c->get_name() == word) app = c;
    }
    const std::size_t equal = word.find('=');
    const std::string name(word.substr(0, equal));
    const CLI::Option* const option = option_of(*app, name);
    if (option == nullptr) continue;
    if (option->get_expected_max() == 0 && equal != std::string_view::npos &&
        !is_switch_value(word.substr(equal + 1))) {
      return fmt::format("{}: wanted no value, got {}", name, word.substr(equal + 1));
    }
    if (option->get_delimiter() == '\0') continue;
    const char delimiter = option->get_delimiter();
    std::string_view value = i + 1 < argc ? argv[i + 1] : "";
    if (equal != std::string_view::npos) value = word.substr(equal + 1);
    const bool gap = value.starts_with(delimiter) || value.ends_with(delimiter) ||
                     value.find(std::string(2, delimiter)) != std::string_view::npos;
    if (!gap) continue;
    return fmt::format("{}: wanted a value before and after each '{}', got {}", name, delimiter,
                       value);
  }
  return std::nullopt;
}

// "--a", "--b" of the parser's "--a excludes --b".
std::pair<std::string, std::string> both_sides(const std::string& text, std::string_view word) {
  const std::size_t at = text.find(word);
  if (at == std::string::npos) return {text, "another flag"};
  return {text.substr(0, at), text.substr(at + word.size())};
}

// The parser's words in the form of other refusals.
std::string refusal_of(const CLI::ParseError& e) {
  std::string text = e.what();
  std::replace(text.begin(), text.end(), '\n', ' ');  // each unexpected word has a line of its own
  const std::string flag = text.substr(0, text.find(": "));
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&e) != nullptr) {
    const std::size_t received = text.find("received ");
    return received == std::string::npos
               ? flag + ": wanted a value, got nothing"
               : fmt::format("{}: wanted one value, got {}; give the flag once", flag,
                             text.substr(received + 9));
  }
  if (dynamic_cast<const CLI::ExcludesError*>(&e) != nullptr) {
    const auto [one, other] = both_sides(text, " excludes ");
    return fmt::format("{}: wanted no {} with it, got both", one, other);
  }
  if (dynamic_cast<const CLI::RequiresError*>(&e) != nullptr) {
    const auto [one, other] = both_sides(text, " requires ");
    return fmt::format("{}: wanted {} with it, got {} alone", one, other, one);
  }
  if (dynamic_cast<const CLI::RequiredError*>(&e) != nullptr && text.ends_with(" is required")) {
    return text.substr(0, text.rfind(" is required")) + ": wanted a value, got nothing";
  }
  constexpr std::string_view kConvert = "Could not convert: ";
  if (text.starts_with(kConvert)) {
    const auto [one, value] = both_sides(text.substr(kConvert.size()), " = ");
    return fmt::format("{}: wanted no value, got {}", one, value);
  }
  return text;
}

}  // namespace

CommandLine::CommandLine(const std::string& help, const std::string& name,
                         const std::string& version)
    : app_(std::make_unique<CLI::App>(help, name)) {
  app_->set_version_flag("--version", name + " " + version);
}
CommandLine::~CommandLine() = default;

std::optional<int> CommandLine::parse(int argc, char** argv) {
  if (const auto problem = missing_subcommand(*app_, argc, argv, 1)) {
    print_err(fmt::format("{}; --help says what they do\n", *problem));
    return kExitRefused;
  }
  if (const auto problem = unread_value(*app_, argc, argv)) {
    print_err(fmt::format("lathe: {}; --help lists the flags\n", *problem));
    return kExitRefused;
  }
  try {
    app_->parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) {  // --help, --version
      std::ostringstream text;
      app_->exit(e, text, text);
      print_out(text.str());
      return kExitOk;
    }
    print_err(fmt::format("lathe: {}; --help lists the flags\n", refusal_of(e)));
    return kExitRefused;
  }
}

}  // namespace lathe
