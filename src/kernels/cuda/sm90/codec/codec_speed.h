// Measures the codecs on a GPU against a device-to-device copy of as many bytes in the same run.
//
// GB are 10^9 bytes, read plus written (lists not counted); medians of CUDA event times, operation
// and copy alternating. Pages are in random order, as in a pool that has been in use; "scattered"
// cases visit every slot at random, in the list's order, or "ordered" by encode_scattered(). A
// latency is that of one write in a captured graph.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lathe::cuda {

struct CodecSpeedOptions {
  std::int64_t bytes = std::int64_t{2} << 30;  // read plus written by one repeat
  int repeats = 15;
  std::string only;  // cases whose layout and operation contain this text
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

/// After open_device(). Ends the program where the device fails, with the error's words.
CodecSpeed measure_codec_speed(const CodecSpeedOptions& options);

}  // namespace lathe::cuda
