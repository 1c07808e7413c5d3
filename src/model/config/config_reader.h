// ConfigReader: reads typed values from a config.json object, for the architectures' parsers.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace lathe {

/// Values of a number with which a model computes finite results.
struct ConfigRange {
  double min = 0, max = 0;
  bool or_zero = false;  // 0 is allowed, too: the file says that there is none

  bool contains(double value) const {
    return (or_zero && value == 0) || (value >= min && value <= max);
  }
  std::string text() const;  // "a finite number from 1 to 2"
};

/// Products of several such factors and of states stay far from the ends of bf16 and f32.
inline constexpr ConfigRange kFactorRange = {1e-6, 1e6};
inline constexpr ConfigRange kOptionalFactorRange = {1e-6, 1e6, true};
/// eps of norms: 0 would make NaN of a row of zeros.
inline constexpr ConfigRange kEpsRange = {1e-30, 1};
/// Bases of RoPE, which divides by powers of them up to 1.
inline constexpr ConfigRange kThetaRange = {1.01, 1e12};
/// How many times longer the context becomes.
inline constexpr ConfigRange kRopeFactorRange = {1, 4096};
inline constexpr ConfigRange kContextRange = {1, 1 << 28};  // tokens
inline constexpr ConfigRange kShareRange = {1e-6, 1};       // of a head's elements
/// Lower bounds of the log of a decay.
inline constexpr ConfigRange kDecayRange = {-1e4, -1e-6};
inline constexpr ConfigRange kOptionalDecayRange = {-1e4, -1e-6, true};

/// Keeps the first error and continues with defaults, so a parser is a plain list of reads that
/// checks error() once. A null value counts as absent, except in null().
class ConfigReader {
 public:
  using Keys = std::set<std::string, std::less<>>;
  using Flags = std::map<std::string, std::string, std::less<>>;

  /// `object` outlives the reader. `place` precedes keys in errors: "config.json". Keys that are
  /// looked up are added to `read`, unless it is null; those of nested objects as "object.key".
  /// `flags`, or null: the flags that gave keys, nested ones as "object.key", which errors name
  /// instead.
  ConfigReader(const nlohmann::json& object, std::string place, Keys* read = nullptr,
               const Flags* flags = nullptr);

  bool has(std::string_view key) const;
  /// Whether the key is there and its value is null: classes of transformers give some absent keys
  /// a default that null turns off.
  bool null(std::string_view key) const;
  bool is_list(std::string_view key) const;
  bool is_text(std::string_view key) const;
  /// Whether one of `flags` gave the key, or an object around it.
  bool from_flag(std::string_view key) const { return !flag_field(key).empty(); }
  std::vector<std::string> keys() const;
  /// The first of the keys that is present; keys[0] if none is.
  std::string_view first_of(std::initializer_list<std::string_view> keys) const;

  /// An integer in [min, max]; without a fallback the key is required. Errors give `min`.
  /// A fallback is the value that transformers' class of the architecture has for an absent key. It
  /// must be in the range, too.
  std::int32_t integer(std::string_view key, std::optional<std::int32_t> fallback = std::nullopt,
                       std::int32_t min = 1, std::int32_t max = kMaxCount);
  /// A number in `range`. Without a fallback the key is required.
  double number(std::string_view key, const ConfigRange& range,
                std::optional<double> fallback = std::nullopt);
  bool flag(std::string_view key, bool fallback);
  std::string text(std::string_view key, std::string_view fallback);
  std::vector<std::string> texts(std::string_view key);
  std::vector<std::int32_t> integers(std::string_view key);
  /// Token ids below `end`: a list, or one id without a list; at least one. Empty if the key is
  /// absent.
  std::vector<std::int32_t> token_ids(std::string_view key, std::int32_t end);
  /// Numbers in `range`; empty if the key is absent.
  std::vector<double> numbers(std::string_view key, const ConfigRange& range);
  /// A nested object; empty if the key is absent. The nested reader's errors count here only after
  /// adopt().
  std::optional<ConfigReader> object(std::string_view key);
  void adopt(const ConfigReader& nested);

  /// Records an error about a key. `hint` may be empty.
  void refuse(std::string_view key, std::string wanted, std::string offered,
              ErrorCode code = ErrorCode::unsupported, std::string hint = "");
  /// Rejects any value but `only` (texts), or an absent key.
  void only(std::string_view key, std::string_view only_value);
  /// Rejects true.
  void only_false(std::string_view key);
  /// Rejects any value: the key stands for an unsupported feature.
  void absent(std::string_view key, std::string wanted);

  const std::optional<Error>& error() const { return error_; }

  static constexpr std::int32_t kMaxCount = 1 << 28;
  static constexpr std::int32_t kMaxWidth = 1 << 24;  // of feed-forward layers

 private:
  const nlohmann::json* find(std::string_view key) const;
  void mistyped(std::string_view key, std::string_view wanted, std::string hint = "");
  std::string way_out(std::string_view key) const;
  std::string flag_field(std::string_view key) const;

  const nlohmann::json* object_;
  std::string place_;
  Keys* read_ = nullptr;
  const Flags* flags_ = nullptr;
  std::string prefix_;  // of keys in read_
  std::optional<Error> error_;
};

}  // namespace lathe
