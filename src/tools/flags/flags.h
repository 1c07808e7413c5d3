// The flags of subcommands. Hides CLI11, which parses them: its header compiles slower than any
// file of tools/.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace lathe {

/// An option or a flag of a command. Its checks run when the command line is parsed.
class Flag {
 public:
  explicit Flag(CLI::Option* option) : option_(option) {}

  Flag range(std::int64_t least, std::int64_t most);
  Flag positive();
  /// A number, in decimals or not.
  Flag numbers(double least, double most);
  /// A text that is given is not empty, as that of an unset shell variable would be.
  Flag not_empty();
  Flag one_of(std::initializer_list<std::string> values);
  /// Returns what is wrong with a value, or nothing.
  Flag check(const std::function<std::string(const std::string&)>& problem);
  /// A list: one value holds several.
  Flag delimiter(char c);
  /// A list: each value needs the flag before it.
  Flag repeated();
  Flag needs(Flag other);
  Flag excludes(Flag other);
  Flag required();

 private:
  CLI::Option* option_;
};

/// An option's value and where it came from.
struct FlagValue {
  std::string name;  // "page-size"
  std::string value;
  std::string origin;  // flag, environment or default
  bool empty = false;  // given as an empty text; an empty variable does not set a flag
};

/// A command on the command line. `names` are "--long,-s", or a bare word for an argument by
/// position.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  Command add_subcommand(const std::string& name, const std::string& help);
  void require_subcommand();
  /// `value` keeps its contents where the option is not given, and must live until the callback
  /// has run. T: the types that flags.cc lists.
  template <class T>
  Flag add_option(const std::string& names, T& value, const std::string& help);
  Flag add_flag(const std::string& names, bool& value, const std::string& help);
  /// Whether the command line has the option. Call it in the callback.
  bool given(const std::string& name) const;
  /// Options declared so far, --a-b, are also read from the environment, as LATHE_A_B; help shows
  /// their defaults.
  void read_environment();
  /// All options, in the order of declaration. Call it in the callback.
  std::vector<FlagValue> values() const;
  /// Sets the callback, which runs after the command line has been parsed.
  void callback(const std::function<void()>& run);

 private:
  CLI::App* app_;
};

class CommandLine {
 public:
  /// --version prints name and version.
  CommandLine(const std::string& help, const std::string& name, const std::string& version);
  ~CommandLine();

  Command root() { return Command(app_.get()); }
  /// Runs the callback of the command that the line names. An exit code where there is none: help
  /// was asked for, or the line was refused, and why is on stderr.
  std::optional<int> parse(int argc, char** argv);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace lathe
