#include "plan/plan_json.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

// The integer fields of a problem. Writing and reading both use this list.
struct ProblemField {
  const char* key;
  std::int32_t AttentionProblem::*field;
};
constexpr std::array kProblemFields = {
    ProblemField{"heads", &AttentionProblem::heads},
    ProblemField{"nope", &AttentionProblem::nope},
    ProblemField{"rope", &AttentionProblem::rope},
    ProblemField{"qk_nope_head", &AttentionProblem::qk_nope_head},
    ProblemField{"v_head", &AttentionProblem::v_head},
    ProblemField{"top_k", &AttentionProblem::top_k},
    ProblemField{"index_heads", &AttentionProblem::index_heads},
    ProblemField{"index_dim", &AttentionProblem::index_dim},
    ProblemField{"window", &AttentionProblem::window},
    ProblemField{"compress_ratio", &AttentionProblem::compress_ratio},
    ProblemField{"index_pool", &AttentionProblem::index_pool},
    ProblemField{"kv_heads", &AttentionProblem::kv_heads},
    ProblemField{"head_dim", &AttentionProblem::head_dim},
    ProblemField{"v_head_dim", &AttentionProblem::v_head_dim},
};

Json problem_json(const AttentionProblem& p) {
  Json j = {{"kind", name(p.kind)}};
  for (const ProblemField& f : kProblemFields) j[f.key] = p.*f.field;
  j["chunked"] = p.chunked;
  j["sink"] = p.sink;
  j["scale"] = p.scale;
  return j;
}

Json route_json(const Route& r) {
  Json j = {{"kernel", r.kernel},
            {"kind", name(r.kind)},
            {"min_rows", r.min_rows},
            {"max_rows", r.max_rows},
            {"max_context", r.max_context},
            {"unit", name(r.unit)},
            {"arithmetic", name(r.arithmetic)},
            {"q_dtype", name(r.q_dtype)},
            {"table_tokens", r.table_tokens},
            {"split_kv", r.split_kv},
            {"split_bytes", r.split_bytes},
            {"worker_rows", r.worker_rows},
            {"expanded_bytes", r.expanded_bytes},
            {"seconds", r.seconds},
            {"adapter", nullptr}};
  if (r.adapter) {
    j["adapter"] = {{"name", r.adapter->name},
                    {"in_bytes", r.adapter->in_bytes},
                    {"out_bytes", r.adapter->out_bytes},
                    {"whole_pool", r.adapter->whole_pool},
                    {"exact", r.adapter->exact}};
  }
  return j;
}

Json budgets_json(const std::vector<Budget>& budgets) {
  Json j = Json::array();
  for (const Budget& b : budgets) {
    j.push_back({{"name", meaning(b.kind)}, {"bytes", b.bytes}, {"tile_rows", b.tile_rows}});
  }
  return j;
}

Json reason_json(const Reason& r) {
  return {{"rule", name(r.rule)}, {"subject", r.subject}, {"field", r.field},
          {"wanted", r.wanted},   {"offered", r.offered}, {"hint", r.hint}};
}

// Thrown by Reader, only within this file; plan_from_json() turns it into an Error.
struct Malformed {
  std::string field;
  std::string wanted;
  std::string offered;
};

// A JSON value with its path, for messages such as "phases.decode.routes[0].kind".
class Reader {
 public:
  Reader(const Json& json, std::string path) : json_(json), path_(std::move(path)) {}

  Reader at(const std::string& key) const {
    const std::string path = path_.empty() ? key : path_ + "." + key;
    if (!json_.is_object()) fail("an object", json_);
    const auto it = json_.find(key);
    if (it == json_.end()) throw Malformed{path, "a value", "nothing"};
    return Reader(*it, path);
  }
  // For keys that older plans do not have.
  bool has(const std::string& key) const { return json_.is_object() && json_.contains(key); }
  std::vector<Reader> items() const {
    if (!json_.is_array()) fail("an array", json_);
    std::vector<Reader> out;
    for (std::size_t i = 0; i < json_.size(); ++i) {
      out.emplace_back(json_[i], fmt::format("{}[{}]", path_, i));
    }
    return out;
  }
  bool is_null() const { return json_.is_null(); }

  std::int64_t integer(std::int64_t min, std::int64_t max) const {
    const std::string wanted = fmt::format("an integer from {} to {}", min, max);
    if (!json_.is_number_integer()) fail(wanted, json_);
    // An unsigned value beyond int64 would wrap when read as signed.
    if (json_.is_number_unsigned() &&
        json_.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
      fail(wanted, json_);
    }
    const auto v = json_.get<std::int64_t>();
    if (v < min || v > max) fail(wanted, json_);
    return v;
  }
  std::int32_t int32(std::int32_t min) const {
    return static_cast<std::int32_t>(integer(min, INT32_MAX));
  }
  std::int64_t size() const { return integer(0, std::int64_t{1} << 52); }
  double number() const {
    if (!json_.is_number()) fail("a number", json_);
    const double v = json_.get<double>();
    if (!std::isfinite(v) || v < 0) fail("a finite number of at least 0", json_);
    return v;
  }
  bool boolean() const {
    if (!json_.is_boolean()) fail("true or false", json_);
    return json_.get<bool>();
  }
  std::string text() const {
    if (!json_.is_string()) fail("a string", json_);
    return json_.get<std::string>();
  }
  template <class E>
  E one_of() const {
    const auto e = parse_enum<E>(text());
    if (!e) fail("one of " + known_names<E>(), json_);
    return *e;
  }
  [[noreturn]] void fail(std::string wanted, const Json& offered) const {
    throw Malformed{path_.empty() ? "plan" : path_, std::move(wanted), json_excerpt(offered)};
  }
  const Json& json() const { return json_; }

 private:
  const Json& json_;
  std::string path_;
};

AttentionProblem read_problem(const Reader& r) {
  AttentionProblem p;
  p.kind = r.at("kind").one_of<ProblemKind>();
  for (const ProblemField& f : kProblemFields) p.*f.field = r.at(f.key).int32(0);
  p.chunked = r.at("chunked").boolean();
  p.sink = r.at("sink").boolean();
  p.scale = static_cast<float>(std::min(r.at("scale").number(), 3e38));
  if (const auto ok = check_problem(p); !ok) {
    throw Malformed{"problem." + ok.error().field, ok.error().wanted, ok.error().offered};
  }
  return p;
}

CachePlan read_cache(const Reader& r) {
  CachePlan c;
  c.role = r.at("role").one_of<CacheRole>();
  const auto layout = CacheLayout::parse(r.at("layout").text());
  if (!layout) throw Malformed{layout.error().field, layout.error().wanted, layout.error().offered};
  c.layout = *layout;
  c.page_size = static_cast<std::int32_t>(r.at("page_size").integer(1, kMaxPageSize));
  c.tokens_per_entry = r.at("tokens_per_entry").int32(1);
  for (const auto& [key, value] :
       {std::pair<const char*, std::int64_t>{"bytes_per_token", c.layout.bytes_per_token()},
        {"page_bytes", c.page_bytes()}}) {
    if (r.at(key).size() != value) {
      r.at(key).fail(fmt::format("{}, which follows from the layout", value), r.at(key).json());
    }
  }
  return c;
}

Route read_route(const Reader& r) {
  Route out;
  out.kernel = r.at("kernel").text();
  out.kind = r.at("kind").one_of<KernelKind>();
  out.max_rows = r.at("max_rows").size();
  out.max_context = r.at("max_context").size();
  out.unit = r.at("unit").one_of<KeyUnit>();
  out.arithmetic = r.at("arithmetic").one_of<Arithmetic>();
  out.q_dtype = r.at("q_dtype").one_of<DType>();
  out.table_tokens = r.at("table_tokens").int32(1);
  out.split_kv = r.at("split_kv").boolean();
  out.split_bytes = r.at("split_bytes").size();
  out.worker_rows = r.at("worker_rows").size();
  // For GPU kernels that expand keys. Older plans do not have these keys.
  if (r.has("min_rows")) out.min_rows = r.at("min_rows").size();
  if (r.has("expanded_bytes")) out.expanded_bytes = r.at("expanded_bytes").size();
  out.seconds = r.at("seconds").number();
  const Reader a = r.at("adapter");
  if (!a.is_null()) {
    out.adapter = AdapterUse{a.at("name").text(), a.at("in_bytes").size(), a.at("out_bytes").size(),
                             a.at("whole_pool").boolean(), a.at("exact").boolean()};
  }
  return out;
}

BudgetKind read_budget_kind(const Reader& r) {
  const std::string text = r.text();
  std::string known;
  for (const BudgetKind kind : enum_values<BudgetKind>()) {
    if (meaning(kind) == text) return kind;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", meaning(kind));
  }
  r.fail("one of " + known, r.json());
}

Plan read_plan(const Reader& r) {
  Plan plan;
  if (!r.at("legal").boolean()) r.at("legal").fail("true, a plan", r.at("legal").json());
  plan.problem = read_problem(r.at("problem"));
  plan.device = r.at("device").one_of<Device>();
  for (const Reader& c : r.at("caches").items()) plan.caches.push_back(read_cache(c));
  if (plan.caches.empty() || plan.main().role != CacheRole::main) {
    r.at("caches").fail("a main cache first", r.at("caches").json());
  }
  for (Phase phase : enum_values<Phase>()) {
    const Reader p = r.at("phases").at(std::string(name(phase)));
    plan.phase(phase).phase = phase;
    plan.phase(phase).requested = p.at("requested").text();
    for (const Reader& route : p.at("routes").items()) {
      plan.phase(phase).routes.push_back(read_route(route));
    }
  }
  plan.table_multiple = r.at("table_multiple").int32(1);
  plan.max_rows = r.at("max_rows").size();
  plan.max_requests = r.at("max_requests").size();
  // For shared prefixes. Older plans do not have this key.
  if (r.has("shared_prefixes")) {
    const Reader s = r.at("shared_prefixes");
    plan.prefixes = {true,
                     s.at("key_ps").size(),
                     s.at("row_key_ps").size(),
                     s.at("row_ps").size(),
                     s.at("launch_ps").size(),
                     s.at("row_heads").int32(1)};
  }
  if (r.has("draft_tokens")) plan.draft_tokens = r.at("draft_tokens").int32(0);
  plan.context_length = r.at("context_length").size();
  plan.layers = r.at("layers").int32(1);
  plan.index_layers = static_cast<std::int32_t>(r.at("index_layers").integer(0, plan.layers));
  for (const Reader& b : r.at("budgets").items()) {
    plan.budgets.push_back(
        {read_budget_kind(b.at("name")), b.at("bytes").size(), b.at("tile_rows").size()});
  }
  for (const Reader& n : r.at("notes").items()) plan.notes.push_back(n.text());
  return plan;
}

}  // namespace

Json to_json(const Plan& plan) {
  Json j = {{"legal", true},
            {"problem", problem_json(plan.problem)},
            {"device", name(plan.device)},
            {"caches", Json::array()},
            {"phases", Json::object()}};
  for (const CachePlan& c : plan.caches) {
    j["caches"].push_back({{"role", name(c.role)},
                           {"layout", c.layout.serialize()},
                           {"page_size", c.page_size},
                           {"tokens_per_entry", c.tokens_per_entry},
                           {"bytes_per_token", c.layout.bytes_per_token()},
                           {"page_bytes", c.page_bytes()}});
  }
  for (const PhasePlan& p : plan.phases) {
    Json routes = Json::array();
    for (const Route& r : p.routes) routes.push_back(route_json(r));
    j["phases"][std::string(name(p.phase))] = {{"requested", p.requested},
                                               {"routes", std::move(routes)}};
  }
  j["table_multiple"] = plan.table_multiple;
  j["max_rows"] = plan.max_rows;
  j["max_requests"] = plan.max_requests;
  j["draft_tokens"] = plan.draft_tokens;
  j["context_length"] = plan.context_length;
  if (plan.prefixes.on) {
    j["shared_prefixes"] = {{"key_ps", plan.prefixes.key_ps},
                            {"row_key_ps", plan.prefixes.row_key_ps},
                            {"row_ps", plan.prefixes.row_ps},
                            {"launch_ps", plan.prefixes.launch_ps},
                            {"row_heads", plan.prefixes.row_heads}};
  }
  j["layers"] = plan.layers;
  j["index_layers"] = plan.index_layers;
  j["budgets"] = budgets_json(plan.budgets);
  j["notes"] = plan.notes;
  return j;
}

namespace {

Json groups_json(const ModelPlan& plan) {
  Json groups = Json::array();
  for (const GroupPlan& g : plan.groups) {
    Json group = {{"name", g.group.name},
                  {"layers", g.group.layers},
                  {"state_bytes", g.group.state_bytes},
                  {"plan", to_json(g.plan)}};
    if (g.group.delta) group["delta_layers"] = g.group.delta->layers;
    groups.push_back(std::move(group));
  }
  return {{"legal", true},
          {"groups", std::move(groups)},
          {"budgets", budgets_json(plan.budgets)},
          {"block_tokens", plan.block_tokens},
          {"state_slots", plan.state_slots},
          {"kept_boundaries", plan.kept_boundaries()},
          {"boundary_bytes", plan.boundary_bytes}};
}

}  // namespace

Json to_json(const ModelPlan& plan) {
  Json j = plan.plain() ? to_json(plan.groups.front().plan) : groups_json(plan);
  if (!plan.ranks.parallel.alone()) j["ranks"] = to_json(plan.ranks);
  return j;
}

Json to_json(const RankPlan& p) {
  const auto part = [](std::int64_t most, std::int64_t whole) {
    return Json{{"of_rank", most}, {"whole", whole}};
  };
  const ExchangePlan& e = p.exchange;
  Json j = {{"tp", p.parallel.tp},
            {"expert_width_ranks", p.parallel.expert_width},
            {"expert_groups", p.parallel.expert_number},
            {"heads", part(p.most.heads.count, p.whole.heads)},
            {"kv_heads", part(p.most.kv_heads.count, p.whole.kv_heads)},
            {"o_groups", part(p.most.o_groups.count, p.whole.o_groups)},
            {"ffn", part(p.most.ffn.count, p.whole.ffn)},
            {"shared", part(p.most.shared.count, p.whole.shared)},
            {"experts", part(p.most.experts.count, p.whole.experts)},
            {"expert_width", part(p.most.expert_width.count, p.whole.expert_width)},
            {"vocab", part(p.most.vocab.count, p.whole.vocab)},
            {"fullest_rank", p.fullest},
            {"weight_bytes", p.weight_bytes},
            {"replicated_bytes", p.replicated_bytes},
            {"exchange",
             {{"kind", name(e.kind)},
              {"dtype", name(e.dtype)},
              {"in_layers", e.in_layers},
              {"row_bytes", e.row_bytes()},
              {"push_rows", e.push_rows},
              {"divided", e.divided},
              {"base_seconds", e.base_seconds},
              {"bytes_per_second", e.bytes_per_second}}},
            {"floors", Json::array()},
            {"notes", p.notes}};
  for (const RankFloor& f : p.floors) {
    j["floors"].push_back({{"rows", f.rows},
                           {"memory_seconds", f.memory_seconds},
                           {"exchange_seconds", f.exchange_seconds}});
  }
  return j;
}

Json to_json(const Refusal& refusal) {
  Json j = {{"legal", false}, {"headline", refusal.headline}, {"reasons", Json::array()}};
  for (const Reason& r : refusal.reasons) j["reasons"].push_back(reason_json(r));
  j["suggestions"] = refusal.suggestions;
  return j;
}

Json to_json(const Rejection& rejection) {
  Json j = {{"layout", rejection.layout},
            {"page_size", rejection.page_size},
            {"phase", name(rejection.phase)},
            {"kernel", rejection.kernel},
            {"reasons", Json::array()}};
  for (const Reason& r : rejection.reasons) j["reasons"].push_back(reason_json(r));
  return j;
}

Result<Plan> plan_from_json(std::string_view text) {
  const Json json = read_json<Json>(text);
  if (json.is_discarded()) {
    return Error{ErrorCode::malformed, "plan", "JSON", "text that is not JSON", ""};
  }
  try {
    return read_plan(Reader(json, ""));
  } catch (const Malformed& m) {
    return Error{ErrorCode::malformed, m.field, m.wanted, m.offered,
                 "lathe plan --json writes plans"};
  }
}

}  // namespace lathe
