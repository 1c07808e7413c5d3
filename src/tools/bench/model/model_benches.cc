#include "tools/bench/model/model_benches.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <tuple>

#include "tools/bench/model/bench_drafts.h"
#include "tools/bench/model/bench_engine.h"
#include "tools/flags/command.h"

namespace lathe {
namespace {

// Answers of these benches are greedy.
Result<void> check_no_seed(const Command& bench) {
  if (!bench.given("--random-seed")) return {};
  return Error{ErrorCode::invalid_argument, "--random-seed", "answers that are sampled with it",
               "a bench of greedy ones", "leave it out"};
}

void add_engine_bench(Command bench, int& exit_code) {
  auto flags = std::make_shared<BenchEngineOptions>();
  Command engine = bench.add_subcommand(
      "engine", "A whole model: prefill and decode over lengths, depths and batches");
  add_model_flags(engine, flags->model);
  const auto counts = [](Flag option) { option.delimiter(',').range(0, 1 << 24); };
  counts(engine.add_option("--shared-prefix-tokens", flags->shared_prefix_tokens,
                           "of the depth, equal in all requests of a batch; default 0"));
  Flag tests =
      engine
          .add_option("--tests", flags->tests,
                      "these alone, with one load of the model: pp8192, pp1024x16 (requests at "
                      "once), tg128@960x64 (tokens in the cache before)")
          .delimiter(',');
  for (const auto& [names, lengths, help] :
       {std::tuple{"-p,--n-prompt", &flags->prompts,
                   "tokens of prefill, several by commas; default 512"},
        {"-n,--n-gen", &flags->answers, "tokens of decode; default 64"},
        {"-d,--n-depth", &flags->depths, "tokens in the cache before; default 0"}}) {
    const Flag each = engine.add_option(names, *lengths, help);
    counts(each);
    tests.excludes(each);
  }
  tests.excludes(engine.add_option("-b,--batch", flags->batches, "requests at once; default 1")
                     .delimiter(',')
                     .range(1, 65536));
  engine.add_option("-r,--repeats", flags->repeats, "medians are taken over these; default 3")
      .range(1, 1000);
  engine
      .add_option("--draft-acceptance", flags->draft_acceptance,
                  "with --draft: the share of guesses that are right, whatever the drafter "
                  "guesses; shows what drafts gain, with random weights too")
      .check([](const std::string& text) {
        char* end = nullptr;
        const double share = std::strtod(text.c_str(), &end);
        const bool fits = end != text.c_str() && *end == 0 && share > 0 && share <= 1;
        return fits ? "" : "wanted a share above 0, at most 1, got " + text;
      });
  engine.add_flag("--json", flags->json, "as data on stdout");
  engine.callback([flags, engine, &exit_code] {
    const auto ok = check_no_seed(engine);
    exit_code = ok ? bench_engine_command(*flags) : refuse(ok.error());
  });
}

void add_drafts_bench(Command bench, int& exit_code) {
  auto flags = std::make_shared<BenchDraftsOptions>();
  Command drafts = bench.add_subcommand(
      "drafts", "Decoding with drafts against decoding without, in turns, over the tasks");
  add_model_flags(drafts, flags->model);
  drafts
      .add_option("--task", flags->tasks,
                  "copy, retrieval, arithmetic (the default), chains; several by commas")
      .delimiter(',');
  drafts.add_option("--task-dir", flags->task_dir,
                    "folder of the test sets; default: tasks next to the model's");
  drafts.add_option("--limit", flags->limit, "items of each task; default 64").positive();
  drafts.add_option("-b,--batch", flags->batches, "requests at once; default 1,64")
      .delimiter(',')
      .range(1, 65536);
  drafts.add_option("-r,--repeats", flags->repeats, "medians are taken over these; default 3")
      .range(1, 1000);
  drafts.add_flag("--json", flags->json, "as data on stdout");
  drafts.callback([flags, drafts, &exit_code] {
    if (const auto ok = check_no_seed(drafts); !ok) {
      exit_code = refuse(ok.error());
      return;
    }
    // Without --draft the drafter is ngram.
    if (drafts.given("--draft") && flags->model.runtime.draft == "none") {
      exit_code = refuse({ErrorCode::invalid_argument, "--draft", "a drafter to compare with none",
                          "none", "--draft ngram, mtp or DIR"});
      return;
    }
    exit_code = bench_drafts_command(*flags);
  });
}

}  // namespace

void add_model_benches(Command bench, int& exit_code) {
  add_engine_bench(bench, exit_code);
  add_drafts_bench(bench, exit_code);
}

}  // namespace lathe
