#include "tools/flags.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <vector>

#include "tools/command.h"

namespace lathe {

Flag Flag::range(std::int64_t least, std::int64_t most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

Flag Flag::positive() {
  option_->check(CLI::PositiveNumber);
  return *this;
}

Flag Flag::one_of(std::initializer_list<std::string> values) {
  option_->check(CLI::IsMember(values));
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
  return Flag(app_->add_option(names, value, help));
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

void Command::callback(const std::function<void()>& run) { app_->callback(run); }

CommandLine::CommandLine(const std::string& help, const std::string& name)
    : app_(std::make_unique<CLI::App>(help, name)) {}
CommandLine::~CommandLine() = default;

std::optional<int> CommandLine::parse(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app_->exit(e);  // --help
    fmt::print(stderr, "lathe: {}\nRun with --help for the flags.\n", e.what());
    return kExitRefused;
  }
}

}  // namespace lathe
