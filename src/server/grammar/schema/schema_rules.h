// SchemaRules: makes rules of shapes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/grammar/schema/json_rules.h"
#include "server/grammar/schema/schema_shapes.h"

namespace lathe::grammar {

class SchemaRules {
 public:
  SchemaRules(Builder& b, JsonRules& json, SchemaDocument& document)
      : b_(b), json_(json), doc_(document), shapes_(document) {}

  /// The rule of a value for which all terms hold.
  Result<Rule> run(const SchemaTerms& terms);

 private:
  using Json = nlohmann::ordered_json;

  struct Todo {
    Rule rule;
    SchemaTerms terms;
    int level;
  };
  // Members that an object must have (Shape::some), as bits.
  using Found = std::uint32_t;
  // A member with a name that the schema does not list, and which of the members it is.
  struct OtherMember {
    Rule name;
    Rule value;
    Found found;
  };
  struct Property {
    std::string name;
    SchemaTerms terms;
    bool required;
  };

  Rule rule_of(SchemaTerms terms, int level);
  void add(const Todo& at);
  bool add_simple(const Todo& at);
  void add_shape(const Todo& at, const Shape& shape);
  void add_values(const Todo& at, const Shape& shape);
  void add_number(const Todo& at, const Shape& shape);
  void add_string(const Todo& at, const Shape& shape);
  State add_text(const Todo& at, State from, const Shape& shape);

  void add_array(const Todo& at, Shape shape);
  bool add_unique(const Todo& at, const Shape& shape);
  void add_unique_items(const Todo& at, const Shape& shape,
                        const std::vector<std::vector<Json>>& values);

  void add_object(const Todo& at, Shape shape);
  std::vector<Property> properties_of(const Shape& shape);
  std::vector<OtherMember> others_of(const Todo& at, const Shape& shape,
                                     const std::vector<Property>& known);
  std::vector<std::string> listed_names(const Shape& shape);
  std::vector<Shape> other_names(const Shape& shape, Found found,
                                 const std::vector<std::string>& known);
  SchemaTerms terms_of(const Shape& shape, const Property& property, Found found);
  Rule name_rule(const Todo& at, const Shape& name);

  // The path of a keyword of one of the terms.
  std::string path_of(const Todo& at, const char* keyword) const;
  void too_large(const std::string& path);

  Builder& b_;
  JsonRules& json_;
  SchemaDocument& doc_;
  SchemaShapes shapes_;
  std::map<SchemaTerms, Rule> rules_;
  std::vector<Todo> todo_;
};

}  // namespace lathe::grammar
