// lathe bench: measurements, each beside a yardstick taken in the same run.
#include <memory>

#include "tools/bench_attention.h"
#include "tools/bench_codec.h"
#include "tools/bench_matmul.h"
#include "tools/command.h"

namespace lathe {

void add_bench_command(CLI::App& app, int& exit_code) {
  CLI::App* bench = app.add_subcommand("bench", "Measure, beside a yardstick in the same run");
  bench->require_subcommand(1);

  struct CodecFlags {
    std::int64_t mebibytes = CodecBenchOptions{}.bytes >> 20;
    int repeats = CodecBenchOptions{}.repeats;
    bool json = false;
  };
  auto flags = std::make_shared<CodecFlags>();
  CLI::App* codec = bench->add_subcommand("codec", "The cache codecs beside memcpy, one thread");
  codec->add_option("--mebibytes", flags->mebibytes, "read and written by a repeat; default 256")
      ->check(CLI::Range(1, 65536));
  codec->add_option("--repeats", flags->repeats, "medians are taken over these; default 9")
      ->check(CLI::Range(1, 10000));
  codec->add_flag("--json", flags->json, "as data on stdout");
  codec->callback([flags, &exit_code] {
    CodecBenchOptions options;
    options.bytes = flags->mebibytes << 20;
    options.repeats = flags->repeats;
    exit_code = bench_codec_command(options, flags->json);
  });

  struct AttentionFlags {
    std::string device = "cpu";
    BenchAttentionOptions options;
  };
  auto attention_flags = std::make_shared<AttentionFlags>();
  CLI::App* attention =
      bench->add_subcommand("attention", "Attention kernels beside the machine's limits");
  attention->add_option("--device", attention_flags->device, "cpu")->check(CLI::IsMember({"cpu"}));
  attention
      ->add_option("--repeats", attention_flags->options.repeats,
                   "medians are taken over these; default 7")
      ->check(CLI::Range(1, 1000));
  attention->add_flag("--quick", attention_flags->options.quick, "fewer latent cases");
  attention->add_flag("--json", attention_flags->options.json, "as data on stdout");
  attention->callback([attention_flags, &exit_code] {
    exit_code = bench_attention_command(attention_flags->options);
  });

  struct MatmulFlags {
    std::string device = "cpu";
    BenchMatmulOptions options;
  };
  auto matmul_flags = std::make_shared<MatmulFlags>();
  CLI::App* matmul =
      bench->add_subcommand("matmul", "Products with weights beside the machine's limits");
  matmul->add_option("--device", matmul_flags->device, "cpu")->check(CLI::IsMember({"cpu"}));
  matmul
      ->add_option("--repeats", matmul_flags->options.repeats,
                   "the best of these counts; default 9")
      ->check(CLI::Range(1, 1000));
  matmul->add_option("--threads", matmul_flags->options.threads, "only with so many; default 1, 2")
      ->check(CLI::Range(1, 1024));
  matmul->add_option("--only", matmul_flags->options.only, "cases whose name begins so");
  matmul->add_flag("--json", matmul_flags->options.json, "as data on stdout");
  matmul->callback(
      [matmul_flags, &exit_code] { exit_code = bench_matmul_command(matmul_flags->options); });
}

}  // namespace lathe
