// Times the codecs on a GPU against a device-to-device copy of the same number of bytes in the same
// run.
//
// A GB is 10^9 bytes, read plus written, lists not counted. Times are medians of CUDA events;
// operation and copy alternate. Pages are in random order, as in a used pool. "scattered" cases
// visit all slots in random order; "ordered" cases do the same through encode_scattered(). A
// latency is that of one write in a captured graph.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lathe::cuda {

struct CodecSpeedOptions {
  std::int64_t bytes = std::int64_t{2} << 30;  // read plus written by one repeat
  int repeats = 15;
  std::string only;  // run only cases with this text in layout and operation
};

struct CodecSpeed {
  struct Row {
    std::string layout;
    std::string operation;
    std::int64_t tokens;
    double gb_per_s;
    double copy_gb_per_s;
  };
  struct Latency {
    std::string operation;
    double seconds;
  };
  std::vector<Row> rows;
  std::vector<Latency> latencies;
};

/// Call after open_device(). If the device fails, prints the error and exits.
CodecSpeed measure_codec_speed(const CodecSpeedOptions& options);

}  // namespace lathe::cuda
