// lathe bench: measurements, each beside a yardstick taken in the same run.
#include <memory>

#include "tools/bench_codec.h"
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
}

}  // namespace lathe
