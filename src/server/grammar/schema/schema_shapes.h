// Shapes: what a schema allows, as alternatives of one type each. Keywords that hold together are
// one shape, so a rule of an automaton can be made of it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/grammar/schema/number_rules.h"
#include "server/grammar/schema/schema_document.h"
#include "server/grammar/text/text_rules.h"

namespace lathe::grammar {

/// A schema that holds, or, if negated, does not.
struct SchemaTerm {
  const nlohmann::ordered_json* schema;
  bool negated = false;
  int scope = 0;        // SchemaDocument's: through which resources it was reached
  bool formats = true;  // `format` is followed; else it is an annotation
  auto operator<=>(const SchemaTerm&) const = default;
};
/// All hold. Sorted, each once; none: any value.
using SchemaTerms = std::vector<SchemaTerm>;

/// How one schema sees an object's members: a named one, else one with a name of a pattern, else
/// another.
struct ObjectPart {
  std::vector<std::pair<std::string, SchemaTerm>> properties;
  std::vector<std::pair<const Regex*, SchemaTerm>> patterns;
  std::optional<SchemaTerm> others;
  bool evaluates = true;  // for unevaluatedProperties
};

/// How one schema sees an array's items: the first ones, then others.
struct ArrayPart {
  std::vector<SchemaTerm> first;
  std::optional<SchemaTerm> others;
  std::vector<SchemaTerm> instead;  // one of these may hold in place of `others`
  bool evaluates = true;            // for unevaluatedItems
};

/// From `least` to `most` items match.
struct Contains {
  SchemaTerm item;
  std::int64_t least = 1;
  std::int64_t most = -1;
  bool evaluates = true;  // for unevaluatedItems
  bool operator==(const Contains&) const = default;
};

/// Pairs of shapes met and values checked, at most: some schemas would need exponentially many.
inline constexpr std::int64_t kMostShapeWork = 1'000'000;
inline constexpr std::int64_t kStepsOfShapeWork = 100;  // Limits' steps of one

/// Objects have a member with such a name and such a value. A rule follows kMostSomeMembers of
/// them.
struct SomeMember {
  std::vector<std::string> not_named;
  std::vector<TextRule> patterns;  // all hold for the name
  SchemaTerms names;               // as do these
  SchemaTerms value;
  bool operator==(const SomeMember&) const = default;
};
inline constexpr std::size_t kMostSomeMembers = 4;

struct Shape {
  enum class Type : std::uint8_t { null, boolean, number, string, array, object };
  using Json = nlohmann::ordered_json;

  Type type;
  std::optional<std::vector<const Json*>> values;  // it is one of these
  std::vector<const Json*> except;                 // and none of these; not for numbers
  Numbers numbers;
  // Characters of a string, items of an array, members of an object. -1: no bound.
  std::int64_t least = 0;
  std::int64_t most = -1;
  std::vector<TextRule> texts;
  std::vector<std::shared_ptr<const ArrayPart>> arrays;
  std::vector<Contains> contains;
  bool unique = false;
  std::vector<std::shared_ptr<const ObjectPart>> objects;
  std::vector<std::string> required;
  SchemaTerms names;             // of all members' names
  std::vector<SomeMember> some;  // for each of these there is a member

  /// Any value of the type.
  bool open() const;
};

/// Of the standard; numbers are equal by value, objects in any order.
bool same_value(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b);
bool has_value(const std::vector<const nlohmann::ordered_json*>& list,
               const nlohmann::ordered_json& value);
Shape::Type type_of(const nlohmann::ordered_json& value);

/// Thread-compatible. Errors are the document's.
class SchemaShapes {
 public:
  using Json = nlohmann::ordered_json;

  explicit SchemaShapes(SchemaDocument& document) : doc_(document) {}

  std::int64_t work() const { return work_; }  // done so far

  /// The shapes of a value for which all terms hold; empty also after an error.
  std::vector<Shape> shapes_of(const SchemaTerms& terms);
  /// Whether all terms hold for a value.
  bool allow(const SchemaTerms& terms, const Json& value);
  bool allows(const Shape& shape, const Json& value);
  /// allows() of a value in shape.values, which is not looked for there.
  bool allows_listed(const Shape& shape, const Json& value);
  /// All values, if they are few. nullopt: they are not.
  std::optional<std::vector<Json>> values_of(const SchemaTerms& terms, std::size_t most);
  /// No value is allowed, as the terms themselves show.
  static bool never(const SchemaTerms& terms);
  /// Whether two schemas of a list can hold for one value, as far as their shapes show.
  bool overlap(const Json& schemas, int scope, bool formats = true);

  /// The terms of a member's value, and of an item, as far as they always hold.
  SchemaTerms member_terms(const Shape& shape, const std::string& name);
  static SchemaTerms item_terms(const Shape& shape, std::size_t i);
  /// The terms of an item: one of these.
  static std::vector<SchemaTerms> item_choices(const Shape& shape, std::size_t i);
  /// Whether a member of that name can be the one.
  bool names_it(const SomeMember& some, const std::string& name);
  static void add_term(SchemaTerms& terms, const SchemaTerm& term);
  static bool is_annotation(std::string_view keyword);
  bool follows(const TextRule& rule, const std::string& text);

 private:
  using Shapes = std::vector<Shape>;

  // A schema inside the one that is being expanded.
  SchemaTerm term(const Json& schema, bool negated = false) const {
    return {&schema, negated, scope_, formats_};
  }
  // A schema of which it is told whether it holds. Both answers must be of one reading of `format`,
  // so it is an annotation there.
  SchemaTerm condition(const Json& schema, bool negated = false) const {
    return {&schema, negated, scope_, false};
  }
  Shapes expand(const Json& schema, bool negated = false) { return expand(term(schema, negated)); }
  Shapes expand(const SchemaTerm& term);
  Shapes expand_schema(const Json& schema);
  Shapes expand_keywords(const Json& schema);
  Shapes expand_negated(const Json& schema);
  // An attempt that failed has another way out, so it looks at what is inside, too.
  std::optional<Shapes> attempt(const SchemaTerm& term);
  bool can_be_negated(const Json& schema);
  Shapes meet(const Shapes& a, const Shapes& b);
  std::optional<Shape> meet(const Shape& a, const Shape& b);
  bool is_dead(const Shape& shape);
  bool contradict(const SchemaTerms& terms);
  void join(Shapes& out, Shapes more);
  // Counts comparisons as work. False: an error, as there were too many.
  bool may_compare(std::size_t values);
  // Whether a list's values are different; counted, and false after an error.
  bool all_differ(const nlohmann::ordered_json& list);
  // has_value(), counted; false after an error.
  bool finds(const std::vector<const Json*>& list, const Json& value);

  // Keywords, by what they are about. Each narrows `out`.
  void check_keywords(const Json& schema);
  void add_type(const Json& schema, Shapes& out);
  void add_values(const Json& schema, Shapes& out);
  void add_numbers(const Json& schema, Shapes& out);
  void add_texts(const Json& schema, Shapes& out);
  void add_arrays(const Json& schema, Shapes& out);
  void add_objects(const Json& schema, Shapes& out);
  void add_dependent(const Json& schema, Shapes& out);
  void add_branches(const Json& schema, Shapes& out);
  void add_conditions(const Json& schema, Shapes& out);
  void add_unevaluated(const Json& schema, Shapes& out);
  Shapes any_of(const Json& schemas);
  Shapes one_of(const Json& schemas, const std::string& path);
  Shapes none_or_several_of(const Json& schemas);
  Shapes without_annotations(Shapes shapes);

  // The shapes that a keyword of the schema does not allow.
  Shapes negate(const Json& schema, const std::string& word);
  Shapes negate_values(const Json& list);
  Shapes negate_number(const Json& schema, const std::string& word);
  std::optional<Shapes> negate_text_or_count(const Json& schema, const std::string& word);
  std::optional<Shapes> negate_members(const Json& schema, const std::string& word);
  std::optional<Shapes> negate_dependent(const Json& schema, const std::string& word);
  std::optional<Shapes> negate_names(const Json& schema, const std::string& word);
  std::optional<Shapes> negate_unevaluated(const Json& schema, const std::string& word);
  Shapes some_member(SomeMember some);
  std::optional<Shapes> negate_items(const Json& schema, const std::string& word);

  // Readers of keywords. Absent or wrong: nothing.
  const Json* list_in(const Json& schema, const char* word);
  const Json* object_in(const Json& schema, const char* word);
  const Json* schema_in(const Json& schema, const char* word);
  std::optional<std::vector<std::string>> strings_of(const Json& list, const std::string& path);
  std::optional<std::int64_t> count_of(const Json& schema, const char* word);
  std::optional<Decimal> number_of(const Json& schema, const char* word);
  // Whether null is a further `type`, as OpenAPI 3.0.3 says: without `type` it has no effect, and
  // other keywords must allow null, too.
  static bool is_nullable(const Json& schema);
  // Draft 4 has a boolean beside `minimum` and `maximum` that takes the bound itself away.
  static bool excludes_bound(const Json& schema, std::string_view bound);
  std::optional<TextRule> text_rule_of(const Json& schema, const char* word);

  SchemaDocument& doc_;
  std::vector<SchemaTerm> open_;  // being expanded
  int scope_ = 0;                 // of the last of them
  bool formats_ = true;           // of the last of them
  int attempts_ = 0;              // around this one
  int annotating_ = 0;            // schemas with unevaluated... around this one
  std::int64_t work_ = 0;
  std::int64_t compared_ = 0;  // values that are not yet a step of work
  std::map<std::pair<const Regex*, RegexMatch>, std::optional<TextDfa>> dfas_;
  std::deque<Json> kept_;  // values that shapes refer to
};

/// Holds for every value, as its schema shows.
bool is_true(const SchemaTerm& term);
/// Any value of a type.
Shape shape_of(Shape::Type type);
/// Objects that do not have the member.
Shape without_member(const std::string& name);
/// Each type with any value.
std::vector<Shape> all_shapes();
/// The shape, and any value of other types.
std::vector<Shape> with_other_types(Shape shape);

}  // namespace lathe::grammar
