#include "tools/bench/kernels/kernel_benches.h"

#include <cstdint>
#include <memory>
#include <numeric>

#include "tools/bench/kernels/bench_attention.h"
#include "tools/bench/kernels/bench_codec.h"
#include "tools/bench/kernels/bench_exchange.h"
#include "tools/bench/kernels/bench_matmul.h"
#include "tools/bench/kernels/bench_sampling.h"
#include "tools/flags/command.h"

namespace lathe {
namespace {

void add_codec_bench(Command bench, int& exit_code) {
  struct CodecFlags {
    std::int64_t mebibytes = CodecBenchOptions{}.bytes >> 20;
    int repeats = CodecBenchOptions{}.repeats;
    std::string device = "cpu";
    bool json = false;
  };
  auto flags = std::make_shared<CodecFlags>();
  Command codec = bench.add_subcommand("codec", "The cache codecs against memcpy, one thread");
  codec.add_option("--device", flags->device, "cpu, or cuda against a copy on the GPU")
      .one_of({"cpu", "cuda"});
  codec.add_option("--mebibytes", flags->mebibytes, "read and written by a repeat; default 256")
      .range(1, 65536);
  codec.add_option("--repeats", flags->repeats, "medians are taken over these; default 9")
      .range(1, 10000);
  codec.add_flag("--json", flags->json, "as data on stdout");
  codec.callback([flags, &exit_code] {
    CodecBenchOptions options;
    options.bytes = flags->mebibytes << 20;
    options.repeats = flags->repeats;
    options.device = flags->device;
    exit_code = bench_codec_command(options, flags->json);
  });
}

void add_attention_bench(Command bench, int& exit_code) {
  auto flags = std::make_shared<BenchAttentionOptions>();
  Command attention =
      bench.add_subcommand("attention", "Attention kernels against the machine's limits");
  attention.add_option("--device", flags->device, "cpu, or cuda: latent attention")
      .one_of({"cpu", "cuda"});
  attention.add_option("--repeats", flags->repeats, "medians are taken over these; default 7")
      .range(1, 1000);
  attention.add_flag("--quick", flags->quick, "fewer latent cases");
  attention.add_flag("--json", flags->json, "as data on stdout");
  attention.callback([flags, &exit_code] { exit_code = bench_attention_command(*flags); });
}

void add_matmul_bench(Command bench, int& exit_code) {
  struct MatmulFlags {
    std::string device = "cpu";
    BenchMatmulOptions options;
  };
  auto flags = std::make_shared<MatmulFlags>();
  Command matmul =
      bench.add_subcommand("matmul", "Products with weights against the machine's limits");
  matmul.add_option("--device", flags->device, "cpu").one_of({"cpu"});
  matmul.add_option("--repeats", flags->options.repeats, "the best of these counts; default 9")
      .range(1, 1000);
  matmul.add_option("--threads", flags->options.threads, "only with this many; default 1, 2")
      .range(1, 1024);
  matmul.add_option("--only", flags->options.only, "decode, prefill or experts; default all")
      .one_of({"decode", "prefill", "experts"});
  matmul.add_flag("--json", flags->options.json, "as data on stdout");
  matmul.callback([flags, &exit_code] { exit_code = bench_matmul_command(flags->options); });
}

void add_sampling_bench(Command bench, int& exit_code) {
  auto flags = std::make_shared<BenchSamplingOptions>();
  Command sampling =
      bench.add_subcommand("sampling", "Tokens from rows of logits against one read of them");
  sampling.add_option("--device", flags->device, "cpu, or cuda").one_of({"cpu", "cuda"});
  sampling.add_option("--vocab", flags->vocab, "tokens of a row; default 129280").range(1, 1 << 24);
  sampling.add_option("--rows", flags->rows, "rows of a call; default 16").range(1, 1024);
  sampling.add_option("--repeats", flags->repeats, "the best of these counts; default 9")
      .range(1, 1000);
  sampling.add_option("--threads", flags->threads, "only with this many; default 1, 2")
      .range(1, 1024);
  sampling.add_flag("--json", flags->json, "as data on stdout");
  sampling.callback([flags, &exit_code] { exit_code = bench_sampling_command(*flags); });
}

void add_exchange_bench(Command bench, int& exit_code) {
  auto flags = std::make_shared<BenchExchangeOptions>();
  Command exchange =
      bench.add_subcommand("exchange",
                           "Sums over the ranks of a group: GPUs, by peer memory and by "
                           "NCCL, or groups of a CPU's threads");
  exchange.add_option("--device", flags->device, "cuda, or cpu, where ranks are threads")
      .one_of({"cuda", "cpu"});
  const Flag gpus = exchange.add_option("--gpus", flags->gpus, "2, 4 or 8 of them; default 0,1")
                        .delimiter(',')
                        .range(0, 63);
  auto ranks = std::make_shared<std::int64_t>(2);
  exchange.add_option("--tp", *ranks, "2, 4 or 8 ranks: a CPU's, or the GPUs from 0 on; default 2")
      .range(2, 8)
      .excludes(gpus);
  exchange
      .add_option("--exchange", flags->exchange,
                  "peer, nccl, or auto: peer, and nccl where libnccl.so.2 is found")
      .one_of({"auto", "peer", "nccl"});
  exchange.add_option("--rows", flags->rows, "several by commas; default 1 to 8192")
      .delimiter(',')
      .range(1, 65536);
  exchange.add_option("--cols", flags->cols, "of a row; default 7168").range(8, 16384);
  exchange.add_option("--repeats", flags->repeats, "medians are taken over these; default 9")
      .range(1, 1000);
  exchange.add_flag("--json", flags->json, "as data on stdout");
  exchange.callback([flags, ranks, exchange, &exit_code] {
    auto& numbers = flags->gpus;
    const bool cpu = flags->device == "cpu";
    for (const char* flag : {"--gpus", "--exchange"}) {
      if (!cpu || !exchange.given(flag)) continue;
      exit_code =
          refuse({ErrorCode::invalid_argument, flag, "--device cuda with it", "--device cpu", ""});
      return;
    }
    if (!exchange.given("--gpus")) {
      numbers.resize(static_cast<std::size_t>(*ranks));
      std::iota(numbers.begin(), numbers.end(), 0);
    }
    exit_code = bench_exchange_command(*flags);
  });
}

}  // namespace

void add_kernel_benches(Command bench, int& exit_code) {
  add_codec_bench(bench, exit_code);
  add_attention_bench(bench, exit_code);
  add_matmul_bench(bench, exit_code);
  add_sampling_bench(bench, exit_code);
  add_exchange_bench(bench, exit_code);
}

}  // namespace lathe
