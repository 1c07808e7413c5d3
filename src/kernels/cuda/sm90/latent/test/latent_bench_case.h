// The cases of latent_gpu_bench: those in bench/results, and one given by flags.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/enum.h"
#include "layout/layout.h"

namespace lathe::cuda {

struct BenchCase {
  const char* group;
  LayoutKind layout;
  std::int32_t requests, q_len, heads;
  std::int32_t context;  // tokens of a request
  std::int32_t top_k;    // 0: dense
  std::int32_t extra;    // entries of the second source
  bool rows = false;     // compared with a peer that reads bf16 rows instead of pages
  bool native = false;   // e4m3 q and fp8 operands
  bool gather = false;   // rows are first decoded to a compact buffer; that is timed too
  bool staged = true;    // fp8 pages that many rows share may be staged (cut_latent())
  std::vector<std::int32_t> lengths = {};  // of requests; empty: context each
  std::int32_t bound = 0;  // bound of lengths, as from a table's width; 0: the longest
  std::int32_t page = 64;
  double deviation = 1;      // of scores
  double holes = 0;          // share of list entries
  bool list_lengths = true;  // pass list lengths for unequal requests; else lists end with holes
  bool batch_invariant = false;

  std::int32_t length(std::int32_t request) const {
    return lengths.empty() ? context : lengths[static_cast<std::size_t>(request)];
  }
};

inline std::vector<BenchCase> bench_cases() {
  std::vector<BenchCase> out;
  constexpr auto block = LayoutKind::mla_fp8_block;
  for (const std::int32_t q : {1, 2}) {
    for (const std::int32_t h : {128, 64, 32, 16, 8}) {
      out.push_back({"sparse decode", block, 128, q, h, 32768, 2048, 0});
    }
  }
  for (const std::int32_t b : {1, 8}) {
    for (const std::int32_t h : {128, 64, 16, 8}) {
      out.push_back({"sparse decode", block, b, 1, h, 32768, 2048, 0});
    }
  }
  for (const std::int32_t h : {128, 64, 16}) {
    out.push_back({"sparse decode", LayoutKind::mla_bf16, 128, 1, h, 32768, 2048, 0});
  }
  out.push_back({"sparse decode", LayoutKind::v4_fp8, 128, 1, 64, 8192, 128, 512});
  out.push_back({"sparse decode", LayoutKind::v4_fp8, 128, 1, 128, 8192, 128, 512});
  out.push_back({"sparse decode", LayoutKind::v4_fp8, 128, 1, 128, 8192, 128, 1024});
  for (const std::int32_t b : {8, 1}) {
    out.push_back({"sparse decode", LayoutKind::v4_fp8, b, 1, 64, 8192, 128, 512});
    out.push_back({"sparse decode", LayoutKind::v4_fp8, b, 1, 128, 8192, 128, 1024});
  }
  for (const std::int32_t s : {8192, 32768}) {
    for (const LayoutKind layout : {block, LayoutKind::mla_bf16}) {
      for (const std::int32_t h : {128, 64}) {
        out.push_back({"sparse extend", layout, 1, 4096, h, s, 2048, 0, true});
      }
    }
    for (const std::int32_t h : {128, 64}) {
      out.push_back({"sparse extend", LayoutKind::v4_fp8, 1, 4096, h, s, 640, 0, true});
    }
    // Read pages in place, as calls with fewer rows do.
    for (const std::int32_t h : {128, 64}) {
      out.push_back({"unstaged extend", block, 1, 4096, h, s, 2048, 0, true, false, false, false});
    }
    for (const std::int32_t h : {128, 64}) {
      out.push_back({"unstaged extend", LayoutKind::v4_fp8, 1, 4096, h, s, 640, 0, true, false,
                     false, false});
    }
    for (const std::int32_t h : {128, 64}) {
      out.push_back({"gather extend", block, 1, 4096, h, s, 2048, 0, true, false, true});
    }
    for (const std::int32_t h : {128, 64}) {
      out.push_back(
          {"gather extend", LayoutKind::v4_fp8, 1, 4096, h, s, 640, 0, true, false, true});
    }
  }
  for (const std::int32_t h : {128, 64, 32, 16, 8}) {
    const auto native = [&](std::int32_t b, std::int32_t q, std::int32_t s) {
      out.push_back(
          {"native decode", LayoutKind::mla_fp8, b, q, h, s, 0, 0, false, /*native=*/true});
    };
    native(128, 1, 4096);
    if (h < 16 || h == 32) continue;
    native(128, 2, 4096);
    native(128, 1, 8192);
    native(16, 1, 32768);
    native(8, 1, 8192);
    native(1, 1, 8192);
  }
  for (const std::int32_t b : {128, 8, 1}) {
    for (const std::int32_t h : {128, 64, 32, 16}) {
      out.push_back({"native sparse decode", LayoutKind::mla_fp8, b, 1, h, 32768, 2048, 0, false,
                     /*native=*/true});
    }
  }
  for (const LayoutKind layout :
       {LayoutKind::mla_bf16, LayoutKind::mla_fp8, LayoutKind::mla_fp8_block}) {
    for (const std::int32_t h : {128, 64, 32, 16}) {
      for (const std::int32_t q : {1, 2})
        out.push_back({"dense decode", layout, 128, q, h, 4096, 0, 0});
      out.push_back({"dense decode", layout, 128, 1, h, 8192, 0, 0});
      out.push_back({"dense decode", layout, 16, 1, h, 32768, 0, 0});
      out.push_back({"dense decode", layout, 1, 1, h, 8192, 0, 0});
      out.push_back({"dense decode", layout, 8, 1, h, 8192, 0, 0});
    }
  }
  return out;
}

/// A case given by flags, in addition to bench_cases().
struct CaseFlags {
  BenchCase of{"dense decode", LayoutKind::mla_bf16, 128, 1, 128, 8192, 0, 0};
  std::string lengths = "equal";
  bool given = false;

  /// Parses a flag and its value; false: not one of its flags.
  bool take(std::string_view flag, const char* value) {
    const auto number = [&](std::int32_t& to) { to = std::atoi(value); };
    if (flag == "--b") {
      number(of.requests);
    } else if (flag == "--rows") {
      number(of.q_len);
    } else if (flag == "--heads") {
      number(of.heads);
    } else if (flag == "--s") {
      number(of.context);
    } else if (flag == "--k") {
      number(of.top_k);
    } else if (flag == "--extra") {
      number(of.extra);
    } else if (flag == "--bound") {
      number(of.bound);
    } else if (flag == "--page") {
      number(of.page);
    } else if (flag == "--deviation") {
      of.deviation = std::atof(value);
    } else if (flag == "--holes") {
      of.holes = std::atof(value);
    } else if (flag == "--list-lengths") {
      of.list_lengths = std::string_view(value) != "off";
    } else if (flag == "--batch-invariant") {
      of.batch_invariant = std::string_view(value) != "off";
    } else if (flag == "--lengths") {
      lengths = value;
    } else if (flag == "--layout" || flag == "--native") {
      const auto kind = parse_enum<LayoutKind>(value);
      if (!kind) return false;
      of.layout = *kind;
      of.native = flag == "--native";
    } else {
      return false;
    }
    return given = true;
  }
  /// Draws lengths as --lengths says: a distribution's name, or a file of numbers.
  BenchCase draw(std::mt19937& rng) const {
    BenchCase c = of;
    const bool extends = c.top_k > 0 && c.q_len >= 64;
    c.group = extends       ? c.native ? "native sparse extend" : "sparse extend"
              : c.top_k > 0 ? c.native ? "native sparse decode" : "sparse decode"
              : c.native    ? "native decode"
                            : "dense decode";
    c.rows = extends && !c.native;
    if (lengths == "equal") return c;
    std::normal_distribution<double> normal(c.context, 0.5 * c.context);
    std::uniform_int_distribution<std::int32_t> uniform(1, c.context);
    for (std::int32_t r = 0; r < c.requests; ++r) {
      if (lengths == "normal") {
        c.lengths.push_back(
            static_cast<std::int32_t>(std::clamp(normal(rng), 1.0, 2.0 * c.context)));
      } else if (lengths == "uniform" || lengths == "one-long") {
        c.lengths.push_back(uniform(rng));
      }
    }
    if (lengths == "one-long") c.lengths[rng() % c.lengths.size()] = 16 * c.context;
    if (!c.lengths.empty()) return c;
    std::ifstream file(lengths);
    for (std::int32_t n; file >> n;) c.lengths.push_back(n);
    if (c.lengths.empty()) {
      std::fprintf(stderr,
                   "--lengths: wanted equal, normal, uniform, one-long or a file of numbers, got "
                   "%s\n",
                   lengths.c_str());
      std::exit(2);
    }
    c.requests = static_cast<std::int32_t>(c.lengths.size());
    return c;
  }
};

}  // namespace lathe::cuda
