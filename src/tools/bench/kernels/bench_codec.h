// `lathe bench codec`: measures the cache codecs against memcpy in the same run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lathe {

struct CodecBenchOptions {
  std::string device = "cpu";                    // or cuda
  std::int64_t bytes = std::int64_t{256} << 20;  // read + written by one repeat; well over the L3
  int repeats = 9;                               // medians are taken over these
  int q_heads = 16;                              // of the operation rope_write_q
};

/// GB are 10^9 bytes, read plus written, for the operation and for memcpy; each memcpy runs right
/// after a repeat of its operation and moves as many bytes. One thread.
struct CodecBenchRow {
  std::string layout;     // as CacheLayout::serialize; "from -> to" for requantize
  std::string operation;  // encode, decode, gather_decode, requantize, rope_write, rope_write_q
  double gb_per_s = 0;    // median
  double memcpy_gb_per_s = 0;
  double ratio = 0;  // of the two medians
  std::int64_t tokens = 0;
};

/// Rows are bf16. encode and decode visit slots in order, gather_decode at random; rope_write is k
/// alone, rope_write_q also rotates q to bf16. Needs seconds, and twice options.bytes of memory.
/// Precondition: bytes >= 2^20, repeats >= 1, q_heads >= 1.
std::vector<CodecBenchRow> run_codec_bench(const CodecBenchOptions& options);

/// Prints a table, or JSON, on stdout, and progress on stderr if that is a terminal. Returns the
/// exit code: 0, or 2 for options out of range and for cuda without a GPU.
int bench_codec_command(const CodecBenchOptions& options, bool json);

}  // namespace lathe
