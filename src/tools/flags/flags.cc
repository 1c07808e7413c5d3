#include "tools/flags/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <type_traits>
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

// Whether a text is a number of type T. The parser's own conversion reads a number beyond 64 bits
// as the largest one.
template <class T>
bool is_number(const std::string& text) {
  T parsed{};
  if (std::is_unsigned_v<T> && text.starts_with('-')) return false;
  errno = 0;
  if constexpr (std::is_unsigned_v<T>) {
    std::strtoull(text.c_str(), nullptr, 0);
  } else if constexpr (std::is_integral_v<T>) {
    std::strtoll(text.c_str(), nullptr, 0);
  }
  return errno == 0 && CLI::detail::lexical_cast(text, parsed);
}

template <class T>
std::string number_problem(const std::string& text) {
  if (is_number<T>(text)) return {};
  if constexpr (std::is_floating_point_v<T>) {
    return fmt::format("wanted a number, got {}", text);
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
    if (is_number<std::int64_t>(text) && CLI::detail::lexical_cast(text, value) && value >= least &&
        value <= most) {
      return {};
    }
    return fmt::format("wanted a whole number from {} to {}, got {}", least, most, text);
  };
  option_->check(CLI::Validator(problem, fmt::format("{} to {}", least, most)));
  return *this;
}

Flag Flag::positive() {
  option_->check(CLI::Validator(
      [](const std::string& text) -> std::string {
        std::int64_t value = 0;
        if (CLI::detail::lexical_cast(text, value) && value > 0) return {};
        return fmt::format("wanted a whole number from 1 on, got {}", text);
      },
      "1 or more"));
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
  Flag flag(app_->add_option(names, value, help));
  if constexpr (std::is_arithmetic_v<Value>) flag.check(number_problem<Value>);
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
      v.origin = variable != nullptr && v.value == variable ? "environment" : "flag";
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
  try {
    app_->parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app_->exit(e);  // --help, --version
    // A refusal is one line, but the parser puts each unexpected word on a line of its own.
    std::string text = e.what();
    std::replace(text.begin(), text.end(), '\n', ' ');
    print_err(fmt::format("lathe: {}; --help lists the flags\n", text));
    return kExitRefused;
  }
}

}  // namespace lathe
