// Enums from one list of values. Names, parser, count and sets come from that list, so a new value
// cannot be missing in one of them.
//
//   #define LATHE_PHASES(X) X(extend) X(decode)
//   LATHE_ENUM(Phase, LATHE_PHASES)
//
//   name(Phase::decode) == "decode";  parse_enum<Phase>("decode") == Phase::decode;
//   known_names<Phase>() == "extend, decode"
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace lathe {

/// Names of the values of E in declaration order. LATHE_ENUM specialises it.
template <class E>
inline constexpr auto enum_names = nullptr;

/// Descriptions of the values of E in declaration order. LATHE_ENUM_WITH_TEXT specialises it.
template <class E>
inline constexpr auto enum_texts = nullptr;

#define LATHE_ENUM_VALUE_(v) v,
#define LATHE_ENUM_NAME_(v) std::string_view(#v),
#define LATHE_ENUM(Type, LIST)                                \
  enum class Type : std::uint8_t { LIST(LATHE_ENUM_VALUE_) }; \
  template <>                                                 \
  inline constexpr auto enum_names<Type> = std::array{LIST(LATHE_ENUM_NAME_)};

// LATHE_ENUM from a list of X(value, "description"), for enums that `lathe` or documents print.
#define LATHE_ENUM_VALUE2_(v, text) v,
#define LATHE_ENUM_NAME2_(v, text) std::string_view(#v),
#define LATHE_ENUM_TEXT2_(v, text) std::string_view(text),
#define LATHE_ENUM_WITH_TEXT(Type, LIST)                                        \
  enum class Type : std::uint8_t { LIST(LATHE_ENUM_VALUE2_) };                  \
  template <>                                                                   \
  inline constexpr auto enum_names<Type> = std::array{LIST(LATHE_ENUM_NAME2_)}; \
  template <>                                                                   \
  inline constexpr auto enum_texts<Type> = std::array{LIST(LATHE_ENUM_TEXT2_)};

template <class E>
inline constexpr std::size_t enum_count = enum_names<E>.size();

template <class E>
constexpr std::string_view name(E e) {
  return enum_names<E>[static_cast<std::size_t>(e)];
}

/// Description of a value of a LATHE_ENUM_WITH_TEXT enum.
template <class E>
constexpr std::string_view meaning(E e) {
  return enum_texts<E>[static_cast<std::size_t>(e)];
}

template <class E>
constexpr auto enum_values() {
  std::array<E, enum_count<E>> all{};
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<E>(i);
  return all;
}

template <class E>
constexpr std::optional<E> parse_enum(std::string_view text) {
  for (E e : enum_values<E>()) {
    if (name(e) == text) return e;
  }
  return std::nullopt;
}

/// All names as "a, b, c", for error messages.
template <class E>
std::string known_names() {
  std::string out;
  for (std::string_view n : enum_names<E>) {
    if (!out.empty()) out += ", ";
    out += n;
  }
  return out;
}

/// A set of values of an enum that has at most 32.
template <class E>
class EnumSet {
 public:
  constexpr EnumSet() = default;
  constexpr EnumSet(std::initializer_list<E> values) {
    for (E e : values) insert(e);
  }
  static constexpr EnumSet all() {
    EnumSet s;
    for (E e : enum_values<E>()) s.insert(e);
    return s;
  }
  constexpr void insert(E e) { bits_ |= bit(e); }
  constexpr bool contains(E e) const { return (bits_ & bit(e)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr int size() const { return std::popcount(bits_); }
  constexpr EnumSet operator&(EnumSet o) const { return EnumSet(bits_ & o.bits_); }
  constexpr EnumSet operator|(EnumSet o) const { return EnumSet(bits_ | o.bits_); }
  constexpr bool operator==(const EnumSet&) const = default;
  std::string names() const {
    std::string out;
    for (E e : enum_values<E>()) {
      if (!contains(e)) continue;
      if (!out.empty()) out += ", ";
      out += name(e);
    }
    return out;
  }

 private:
  static_assert(enum_count<E> <= 32);
  constexpr explicit EnumSet(std::uint32_t bits) : bits_(bits) {}
  static constexpr std::uint32_t bit(E e) { return 1u << static_cast<unsigned>(e); }
  std::uint32_t bits_ = 0;
};

}  // namespace lathe
