#include "io/template/jinja_eval.h"

#include <algorithm>
#include <deque>
#include <optional>

#include "io/text/python_text.h"
#include "io/text/quote.h"

namespace lathe {
namespace {

// Most open tree nodes: stops recursive macros before the thread's stack overflows.
constexpr int kMaxOpenNodes = 1000;

}  // namespace

// Variables of a macro's, a loop's or the template's body. `if` opens no scope.
struct JinjaScope {
  std::shared_ptr<JinjaScope> parent;  // the enclosing scope; null for the variables
  std::vector<std::pair<std::string, JinjaValue>> names;

  const JinjaValue* find(const std::string& name) const {
    for (const JinjaScope* s = this; s != nullptr; s = s->parent.get()) {
      for (auto it = s->names.rbegin(); it != s->names.rend(); ++it) {
        if (it->first == name) return &it->second;
      }
    }
    return nullptr;
  }
  void set(const std::string& name, JinjaValue v) {
    for (auto& [key, value] : names) {
      if (key != name) continue;
      value = std::move(v);
      return;
    }
    names.emplace_back(name, std::move(v));
  }
};
using ScopePtr = std::shared_ptr<JinjaScope>;

struct JinjaMacro {
  const JinjaNode* node;
  ScopePtr scope;  // where it was defined
};

namespace {

enum class Flow { next, break_loop, continue_loop };

class Renderer {
 public:
  Renderer(const JinjaLimits& limits, const std::tm& now) : rt_(limits, now) {}

  std::string run(const JinjaBody& body,
                  const std::vector<std::pair<std::string, JinjaValue>>& variables) {
    auto globals = std::make_shared<JinjaScope>();
    globals->names = variables;
    const JinjaValue* messages = globals->find("messages");
    messages_ = messages != nullptr ? messages->as_list() : nullptr;
    scope_ = std::make_shared<JinjaScope>();
    scope_->parent = std::move(globals);
    std::string out;
    run_body(body, out);
    return out;
  }

 private:
  // Counts an open node during its lifetime and restores the line afterwards, so that errors name
  // the right one.
  class Open {
   public:
    Open(Renderer& r, int line) : renderer_(r), line_(std::exchange(r.rt_.line, line)) {
      r.rt_.charge(1);
      if (++r.open_ > kMaxOpenNodes) {
        --r.open_;
        r.rt_.unsupported("macros that end", "calls nested too deep");
      }
    }
    ~Open() {
      --renderer_.open_;
      renderer_.rt_.line = line_;
    }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    Renderer& renderer_;
    int line_;
  };
  // Switches to another scope during its lifetime.
  class Inside {
   public:
    Inside(Renderer& r, ScopePtr parent) : renderer_(r), outer_(r.scope_) {
      r.scope_ = std::make_shared<JinjaScope>();
      r.scope_->parent = std::move(parent);
    }
    ~Inside() { renderer_.scope_ = outer_; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    Renderer& renderer_;
    ScopePtr outer_;
  };

  // --- statements ---
  Flow run_body(const JinjaBody& body, std::string& out) {
    for (const JinjaNode& node : body) {
      const Flow flow = run_node(node, out);
      if (flow != Flow::next) return flow;
    }
    return Flow::next;
  }

  Flow run_node(const JinjaNode& node, std::string& out) {
    const Open open(*this, node.line);
    switch (node.kind) {
      case JinjaNodeKind::data:
        rt_.charge_bytes(node.text.size());
        rt_.check_text(out.size() + node.text.size());
        out += node.text;
        return Flow::next;
      case JinjaNodeKind::output:
        append_text(rt_, out, eval(*node.exprs[0]));
        return Flow::next;
      case JinjaNodeKind::branch:
        for (std::size_t i = 0; i < node.exprs.size(); ++i) {
          if (truthy(eval(*node.exprs[i]))) return run_body(node.bodies[i], out);
        }
        return node.bodies.size() > node.exprs.size() ? run_body(node.bodies.back(), out)
                                                      : Flow::next;
      case JinjaNodeKind::loop:
        return run_loop(node, out);
      case JinjaNodeKind::assign:
        assign(node.target, eval(*node.exprs[0]));
        return Flow::next;
      case JinjaNodeKind::capture:
        assign(node.target, captured(node));
        return Flow::next;
      case JinjaNodeKind::filtered:
        run_filtered(node, out);
        return Flow::next;
      case JinjaNodeKind::macro:
        scope_->set(node.text, JinjaValue(new_macro(node)));
        return Flow::next;
      case JinjaNodeKind::call_block: {
        const JinjaValue caller(new_macro(node));
        append_text(rt_, out, call(*node.exprs[0], &caller));
        return Flow::next;
      }
      case JinjaNodeKind::with: {
        std::vector<JinjaValue> values;
        for (const JinjaParameter& p : node.parameters) values.push_back(eval(*p.value));
        const Inside inside(*this, scope_);
        for (std::size_t i = 0; i < values.size(); ++i) {
          scope_->set(node.parameters[i].name, std::move(values[i]));
        }
        return run_body(node.bodies[0], out);
      }
      case JinjaNodeKind::scope: {
        const Inside inside(*this, scope_);
        return run_body(node.bodies[0], out);
      }
      case JinjaNodeKind::break_loop:
        return Flow::break_loop;
      case JinjaNodeKind::continue_loop:
        return Flow::continue_loop;
    }
    return Flow::next;
  }

  const JinjaMacro* new_macro(const JinjaNode& node) {
    rt_.charge(8);
    macros_.push_back({&node, scope_});
    return &macros_.back();
  }

  Flow run_loop(const JinjaNode& node, std::string& out) {
    std::vector<JinjaValue> items = iterate(rt_, eval(*node.exprs[0]));
    if (node.exprs[1]) {
      std::vector<JinjaValue> kept;
      for (JinjaValue& item : items) {
        const Inside inside(*this, scope_);
        assign(node.target, item);
        if (truthy(eval(*node.exprs[1]))) kept.push_back(std::move(item));
      }
      items = std::move(kept);
    }
    const JinjaValue list = rt_.list(std::move(items));
    auto loop = std::make_shared<JinjaLoop>();
    loop->items = list.shared_list();
    const JinjaValue loop_value(loop);
    bool reached_end = false;  // some iteration did; else `else` follows, as in Jinja2
    for (std::size_t i = 0; i < loop->items->items.size(); ++i) {
      loop->index = i;
      const Inside inside(*this, scope_);
      scope_->set("loop", loop_value);
      assign(node.target, loop->items->items[i]);
      const Flow flow = run_for(loop->items->items[i], node.bodies[0], out);
      if (flow == Flow::break_loop) break;
      reached_end |= flow == Flow::next;
    }
    return reached_end || node.bodies.size() < 2 ? Flow::next : run_body(node.bodies[1], out);
  }

  // A loop's body. Errors name the item if it is a message, and so what the client can mend.
  Flow run_for(const JinjaValue& item, const JinjaBody& body, std::string& out) {
    try {
      return run_body(body, out);
    } catch (JinjaFailure& f) {
      const bool of_conversation =
          f.error.code == ErrorCode::invalid_argument || f.error.code == ErrorCode::malformed;
      const bool named = f.error.field.starts_with("messages[");  // by a loop within
      if (const auto i = message_of(item); i && of_conversation && !named) {
        f.error.field = "messages[" + std::to_string(*i) + "], " + f.error.field;
      }
      throw;
    }
  }

  // The index of the request's message that is `item`: lists that a template makes of messages
  // share them.
  std::optional<std::size_t> message_of(const JinjaValue& item) const {
    if (messages_ == nullptr || item.as_dict() == nullptr) return std::nullopt;
    for (std::size_t i = 0; i < messages_->items.size(); ++i) {
      if (messages_->items[i].as_dict() == item.as_dict()) return i;
    }
    return std::nullopt;
  }

  void assign(const JinjaTarget& target, JinjaValue v) {
    if (!target.attribute.empty()) {
      const JinjaValue* owner = scope_->find(target.names[0]);
      JinjaNamespace* n = owner != nullptr ? owner->as_namespace() : nullptr;
      if (n == nullptr) rt_.fail("a namespace to set an attribute of", quote(target.names[0]));
      rt_.charge(n->attributes.size() / 8);
      for (auto& [key, value] : n->attributes) {
        if (key != target.attribute) continue;
        value = std::move(v);
        return;
      }
      n->attributes.emplace_back(target.attribute, std::move(v));
      return;
    }
    if (!target.unpack) {
      scope_->set(target.names[0], std::move(v));
      return;
    }
    if (v.is_undefined()) rt_.fail_type("", v);
    std::vector<JinjaValue> parts = iterate(rt_, v);
    if (parts.size() != target.names.size()) {
      rt_.fail(std::to_string(target.names.size()) + " values to unpack",
               std::to_string(parts.size()));
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      scope_->set(target.names[i], std::move(parts[i]));
    }
  }

  void run_filtered(const JinjaNode& node, std::string& out) {
    const JinjaValue v = captured(node);
    if (!v.is_text()) rt_.fail_type("filters that give a text", v);
    append_text(rt_, out, v);
  }
  // The text of a body, filtered.
  JinjaValue captured(const JinjaNode& node) {
    std::string text;
    {
      const Inside inside(*this, scope_);
      run_body(node.bodies[0], text);
    }
    const JinjaValue v = rt_.text(std::move(text));
    return node.exprs[0] ? eval_filter(*node.exprs[0], &v) : v;
  }

  JinjaValue call_macro(const JinjaMacro& macro, const JinjaArgs& args, const JinjaValue* caller) {
    const JinjaNode& node = *macro.node;
    const std::string name = node.text.empty() ? "caller" : node.text;
    if (args.positional.size() > node.parameters.size()) {
      rt_.fail(name + " with at most " + std::to_string(node.parameters.size()) + " arguments",
               std::to_string(args.positional.size()));
    }
    const Inside inside(*this, macro.scope);
    for (const auto& [key, value] : args.named) {
      const auto it = std::ranges::find(node.parameters, key, &JinjaParameter::name);
      if (it == node.parameters.end()) {
        rt_.fail("an argument that " + name + " knows", quote(key));
      }
      if (static_cast<std::size_t>(it - node.parameters.begin()) < args.positional.size()) {
        rt_.fail(name + " with each argument once", quote(key) + " twice");
      }
      scope_->set(key, value);
    }
    for (std::size_t i = 0; i < args.positional.size(); ++i) {
      scope_->set(node.parameters[i].name, args.positional[i]);
    }
    // Defaults may use earlier parameters.
    for (std::size_t i = args.positional.size(); i < node.parameters.size(); ++i) {
      const JinjaParameter& p = node.parameters[i];
      const bool given =
          std::ranges::any_of(args.named, [&](const auto& named) { return named.first == p.name; });
      if (given) continue;
      scope_->set(p.name, p.value ? eval(*p.value)
                                  : JinjaValue::undefined("parameter " + repr_text(p.name) +
                                                          " was not provided"));
    }
    if (caller != nullptr) scope_->set("caller", *caller);
    std::string out;
    run_body(node.bodies[0], out);
    return rt_.text(std::move(out));
  }

  // --- expressions --- One function per kind: a single function would need the stack of all kinds
  // at every level.
  JinjaValue eval(const JinjaExpr& e) {
    const Open open(*this, e.line);
    switch (e.kind) {
      case JinjaExprKind::constant:
        return e.constant;
      case JinjaExprKind::name:
        return eval_name(e);
      case JinjaExprKind::list:
      case JinjaExprKind::tuple:
        return eval_list(e);
      case JinjaExprKind::dict:
        return eval_dict(e);
      case JinjaExprKind::attribute:
        return get_attribute(rt_, eval(*e.items[0]), e.text);
      case JinjaExprKind::item:
        return eval_item(e);
      case JinjaExprKind::slice:
        return eval_slice(e);
      case JinjaExprKind::call:
        return call(e, nullptr);
      case JinjaExprKind::filter:
        return eval_filter(e, nullptr);
      case JinjaExprKind::test:
        return eval_test(e);
      case JinjaExprKind::unary:
        return eval_unary(e);
      case JinjaExprKind::binary:
        return eval_binary(e);
      case JinjaExprKind::compare:
        return eval_compare(e);
      case JinjaExprKind::choice:
        return eval_choice(e);
    }
    return {};
  }

  JinjaValue eval_name(const JinjaExpr& e) {
    if (const JinjaValue* v = scope_->find(e.text)) return *v;
    if (is_global_function(e.text)) return JinjaValue::function(e.text);
    return JinjaValue::undefined(repr_text(e.text) + " is undefined");
  }
  JinjaValue eval_list(const JinjaExpr& e) {
    std::vector<JinjaValue> items;
    for (const auto& item : e.items) items.push_back(eval(*item));
    return rt_.list(std::move(items), e.kind == JinjaExprKind::tuple);
  }
  JinjaValue eval_dict(const JinjaExpr& e) {
    std::vector<std::pair<JinjaValue, JinjaValue>> items;
    for (std::size_t i = 0; i + 1 < e.items.size(); i += 2) {
      JinjaValue key = eval(*e.items[i]);
      if (key.as_dict() != nullptr || (key.as_list() != nullptr && !key.as_list()->tuple)) {
        rt_.fail_type("a key that cannot change", key);
      }
      JinjaValue value = eval(*e.items[i + 1]);
      const auto it = std::ranges::find_if(
          items, [&](const auto& item) { return equal(rt_, item.first, key); });
      if (it != items.end()) {
        it->second = std::move(value);
      } else {
        items.emplace_back(std::move(key), std::move(value));
      }
    }
    return rt_.dict(std::move(items));
  }
  JinjaValue eval_item(const JinjaExpr& e) {
    const JinjaValue v = eval(*e.items[0]);
    return get_item(rt_, v, eval(*e.items[1]));
  }
  JinjaValue eval_slice(const JinjaExpr& e) {
    JinjaValue parts[4];
    for (std::size_t i = 0; i < 4; ++i) {
      if (e.items[i]) parts[i] = eval(*e.items[i]);
    }
    const auto part = [&](std::size_t i) { return e.items[i] ? &parts[i] : nullptr; };
    return get_slice(rt_, parts[0], part(1), part(2), part(3));
  }
  JinjaArgs eval_args(const JinjaExpr& e) {
    JinjaArgs args;
    for (std::size_t i = 1; i < e.items.size(); ++i) args.positional.push_back(eval(*e.items[i]));
    for (const auto& [key, value] : e.keywords) args.named.emplace_back(key, eval(*value));
    return args;
  }
  JinjaValue call(const JinjaExpr& e, const JinjaValue* caller) {
    const JinjaValue callee = eval(*e.items[0]);
    const JinjaArgs args = eval_args(e);
    if (const JinjaMacro* m = callee.as_macro()) return call_macro(*m, args, caller);
    const JinjaFunction* f = callee.as_function();
    if (f == nullptr) rt_.fail_type("a macro, function or method", callee);
    if (caller != nullptr) rt_.fail("a macro after {% call %}", f->name);
    return call_function(rt_, *f, args);
  }
  // `input` stands in for the innermost filter's missing value in {% set x | filter %}.
  JinjaValue eval_filter(const JinjaExpr& e, const JinjaValue* input) {
    JinjaValue v;
    if (!e.items[0]) {
      v = *input;
    } else if (input != nullptr) {
      v = eval_filter(*e.items[0], input);
    } else {
      v = eval(*e.items[0]);
    }
    return apply_filter(rt_, e.text, v, eval_args(e));
  }
  JinjaValue eval_test(const JinjaExpr& e) {
    const JinjaValue v = eval(*e.items[0]);
    return JinjaValue(apply_test(rt_, e.text, v, eval_args(e)));
  }
  JinjaValue eval_unary(const JinjaExpr& e) {
    JinjaValue v = eval(*e.items[0]);
    if (e.text == "not") return JinjaValue(!truthy(v));
    if (e.text == "-") return negated(rt_, v);
    if (!v.is_number()) rt_.fail_type("a number after \"+\"", v);
    return v.is_integer() ? JinjaValue(v.as_integer()) : v;
  }
  JinjaValue eval_binary(const JinjaExpr& e) {
    JinjaValue a = eval(*e.items[0]);
    if (e.text == "and") return truthy(a) ? eval(*e.items[1]) : a;
    if (e.text == "or") return truthy(a) ? a : eval(*e.items[1]);
    return binary(rt_, e.text, a, eval(*e.items[1]));
  }
  JinjaValue eval_compare(const JinjaExpr& e) {
    JinjaValue left = eval(*e.items[0]);
    for (std::size_t i = 0; i < e.ops.size(); ++i) {
      JinjaValue right = eval(*e.items[i + 1]);
      if (!compare(rt_, e.ops[i], left, right)) return JinjaValue(false);
      left = std::move(right);
    }
    return JinjaValue(true);
  }
  JinjaValue eval_choice(const JinjaExpr& e) {
    if (truthy(eval(*e.items[1]))) return eval(*e.items[0]);
    if (e.items[2]) return eval(*e.items[2]);
    return JinjaValue::undefined("the inline if-expression without an else");
  }

  JinjaRuntime rt_;
  std::deque<JinjaMacro> macros_;
  ScopePtr scope_;
  const JinjaList* messages_ = nullptr;  // the variable; may be null
  int open_ = 0;
};

}  // namespace

std::string render_jinja(const JinjaBody& body,
                         const std::vector<std::pair<std::string, JinjaValue>>& variables,
                         const JinjaLimits& limits, const std::tm& now) {
  return Renderer(limits, now).run(body, variables);
}

}  // namespace lathe
