#include "tools/flags/plan_flags.h"

#include <cstdlib>

#include "layout/layout.h"

namespace lathe {
namespace {

// Internally 0 means "choose"; a user who writes 0 has made a mistake.
std::string page_size_problem(const std::string& text) {
  char* end = nullptr;
  const long long page = std::strtoll(text.c_str(), &end, 10);
  const bool number = !text.empty() && *end == '\0' && page == static_cast<std::int32_t>(page);
  if (!number) return {};  // the parser names the type itself
  const auto ok = check_page_size(static_cast<std::int32_t>(page));
  if (ok) return {};
  return "wanted " + ok.error().wanted + ", got " + ok.error().offered + "; " + ok.error().hint;
}

std::string tp_problem(const std::string& text) {
  for (const char* n : {"1", "2", "4", "8"}) {
    if (text == n) return {};
  }
  return "wanted 1, 2, 4 or 8, got " + text;
}

}  // namespace

void add_plan_flags(Command command, PlanRequest& request) {
  command.add_option("--prefill-attention-backend,--dsa-prefill-backend,--nsa-prefill-backend",
                     request.prefill, "auto, gather, inplace, native, ragged, or a kernel's name");
  command.add_option("--decode-attention-backend,--dsa-decode-backend,--nsa-decode-backend",
                     request.decode, "the same for decode, verify and draft_extend");
  command.add_option("--kv-layout", request.layout,
                     "a layout's name, or one with dims and scale policy");
  command.add_option("--kv-cache-dtype", request.kv_dtype,
                     "auto, bf16, fp8_e4m3 or fp4_e2m1; or vLLM's bfloat16, fp8, fp8_ds_mla");
  command.add_option("--page-size", request.page_size, "tokens per page; chosen where not given")
      .check(page_size_problem);
  command.add_option("--chunked-prefill-size", request.chunked_prefill_size,
                     "rows of one extend step");
  command.add_option("--max-running-requests", request.max_running_requests,
                     "requests of one decode step");
  command.add_option("--context-length", request.context_length, "tokens of the longest request");
  command.add_option("--max-total-tokens", request.max_total_tokens,
                     "tokens that the cache must hold; checked against the machine's memory");
  command
      .add_option("--tp,--tensor-parallel-size,--tp-size", request.tp,
                  "GPUs, or groups of a CPU's threads, that share the model: 1, 2, 4 or 8")
      .check(tp_problem);
  static std::string one;  // nothing reads it
  for (const auto& [names, help] :
       {std::pair{"--dp,--dp-size,--data-parallel-size",
                  "1: a server does not divide requests among GPUs"},
        {"--pp,--pp-size,--pipeline-parallel-size", "1: layers are not divided among GPUs"}}) {
    command.add_option(names, one, help).check([](const std::string& text) {
      return text == "1" ? std::string()
                         : "wanted 1, as --tp alone shares a model, got " + text +
                               "; more requests need a server for each group of GPUs, with --gpus";
    });
  }
  const Flag split = command.add_option(
      "--expert-split", request.expert_split,
      "how these share experts: auto, by width, by number, or WxE: E groups of W ranks");
  command.add_option("--ep-size,--expert-parallel-size", request.ep_size, "E of WxE")
      .positive()
      .excludes(split);
  command.add_flag("--enable-expert-parallel", request.expert_parallel, "--expert-split number")
      .excludes(split);
  command.add_option("--exchange", request.exchange,
                     "auto, peer: kernels that write into the other GPUs' memory, or nccl");
  command.add_option("--exchange-dtype", request.exchange_dtype,
                     "of partial sums: auto, which is bf16 on GPUs and f32 on CPUs, or f32");
  command.add_flag("--batch-invariant", request.batch_invariant,
                   "attention's bits of a request do not depend on what shares its steps");
  command.add_flag("--disable-cascade-attn,!--no-disable-cascade-attn", request.separate_prefixes,
                   "a GPU's decode steps read keys that requests share for each of them, not once");
  command.add_option("--indexer-logits-budget", request.logits_budget, "bytes");
  command.add_option("--gather-budget", request.gather_budget, "bytes");
  command.add_option("--activations-budget", request.activations_budget,
                     "bytes of a model's intermediate tensors; 0 = what a step's rows need");
}

}  // namespace lathe
