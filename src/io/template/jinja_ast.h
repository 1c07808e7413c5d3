// The syntax tree of a Jinja template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/template/jinja_value.h"

namespace lathe {

enum class JinjaExprKind {
  constant,   // constant
  name,       // text
  list,       // items
  tuple,      // items
  dict,       // items: key, value, key, value, ...
  attribute,  // items[0] . text
  item,       // items[0] [ items[1] ]
  slice,      // items[0] [ items[1] : items[2] : items[3] ], each but the first may be null
  call,       // items[0] ( items[1..], keywords )
  filter,     // items[0] | text ( items[1..], keywords ); items[0] is null for a block's text
  test,       // items[0] is text ( items[1..], keywords )
  unary,      // text: -, +, not
  binary,     // items[0] text items[1], text: + - * / // % ** ~ and or
  compare,    // items[0] ops[0] items[1] ops[1] items[2] ...
  choice,     // items[0] if items[1] else items[2], which may be null
};

struct JinjaExpr {
  JinjaExprKind kind = JinjaExprKind::constant;
  int line = 0;
  int depth = 1;  // of this tree, bounded to limit recursion
  std::string text;
  JinjaValue constant;
  std::vector<std::unique_ptr<JinjaExpr>> items;
  std::vector<std::pair<std::string, std::unique_ptr<JinjaExpr>>> keywords;
  std::vector<std::string> ops;
};

enum class JinjaNodeKind {
  data,        // text
  output,      // exprs[0]
  branch,      // if exprs[i] then bodies[i]; one more body is the else
  loop,        // for target in exprs[0] (if exprs[1], may be null): bodies[0] else bodies[1]
  assign,      // set target = exprs[0]
  capture,     // set target (exprs[0]: filters, may be null): bodies[0]
  filtered,    // filter exprs[0]: bodies[0]
  macro,       // text, parameters, bodies[0]
  call_block,  // call (parameters) exprs[0]: bodies[0]
  with,        // parameters with their values: bodies[0]
  scope,       // bodies[0] in a new scope (the generation tag)
  break_loop,
  continue_loop,
};

struct JinjaTarget {
  std::vector<std::string> names;  // several: the value is unpacked
  std::string attribute;           // set names[0].attribute if not empty
  bool unpack = false;
};

struct JinjaParameter {
  std::string name;
  std::unique_ptr<JinjaExpr> value;  // default; may be null
};

struct JinjaNode {
  JinjaNodeKind kind = JinjaNodeKind::data;
  int line = 0;
  std::string text;
  JinjaTarget target;
  std::vector<std::unique_ptr<JinjaExpr>> exprs;
  std::vector<JinjaParameter> parameters;
  std::vector<std::vector<JinjaNode>> bodies;
};

using JinjaBody = std::vector<JinjaNode>;

}  // namespace lathe
