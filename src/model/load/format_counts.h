// How many matrices of a checkpoint are in each format, for people to read.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "io/checkpoint/checkpoint.h"

namespace lathe {

/// Matrices by a format of weight_formats() and its groups, such as "int4 (AWQ), groups of 128 with
/// zero points". From names, dtypes and shapes alone; matrices in no format are not counted, nor
/// are gpt-oss's and DeepSeek V4's, whose scales have other names.
std::map<std::string, std::int64_t> count_formats(const Checkpoint& checkpoint);

}  // namespace lathe
