#include "model/weights/weight_formats.h"

#include <array>

namespace lathe {
namespace {

using enum WeightPacking;

constexpr std::array kFormats = {
    WeightFormat{"fp8", fp8, ".weight", ".weight_scale_inv"},
    WeightFormat{"fp8", fp8, ".weight", ".weight_scale"},
    WeightFormat{"int4 (compressed-tensors)", u4_rows, ".weight_packed", ".weight_scale",
                 ".weight_zero_point", ".weight_g_idx"},
    WeightFormat{"int4 (GPTQ)", u4_gptq, ".qweight", ".scales", ".qzeros", ".g_idx"},
    WeightFormat{"int4 (AWQ)", u4_awq, ".qweight", ".scales", ".qzeros"},
    WeightFormat{"NVFP4 (ModelOpt)", e2m1_nv, ".weight", ".weight_scale", "", "",
                 ".weight_scale_2"},
    WeightFormat{"NVFP4 (compressed-tensors)", e2m1_nv, ".weight_packed", ".weight_scale", "", "",
                 ".weight_global_scale", true},
    WeightFormat{"MXFP4 (Quark)", e2m1_mx, ".weight", ".weight_scale"},
    WeightFormat{"MXFP4 (compressed-tensors)", e2m1_mx, ".weight_packed", ".weight_scale"},
};

constexpr std::array<std::string_view, 5> kUnread = {
    ".input_scale", ".activation_scale", ".input_global_scale", ".output_scale", ".weight_shape"};

}  // namespace

std::span<const WeightFormat> weight_formats() { return kFormats; }
std::span<const std::string_view> unread_suffixes() { return kUnread; }

}  // namespace lathe
