// Which of ModelConfig's fields the layers of each family compute.
#pragma once

#include "base/result.h"
#include "model/config/config.h"

namespace lathe {

/// Checks that the decoder's layers compute every field that is set, so that no flag is ignored in
/// silence. A family is grouped_query, MLA or compressed, and all layers are of one. Errors:
/// unsupported, with the field's name.
///
///                       grouped_query     MLA               compressed
/// attention biases      yes               yes               no
/// qk_norm               yes               no                no (has its own)
/// unit_qk_norm          without qk_norm   no                no
/// value_norm            yes               no                no
/// value_scale           yes               no                no
/// values_are_keys       without biases, fused_qkv, whole qk_norm    no
/// output_gate           with_q            heads, elements, with_q_b         no
///   with_q_b            no                with q_lora       no
///   with_q              without norms over all heads, without fused_qkv
/// delta                 yes               without norms.gate_rank           no
/// index_pool            no                with delta: an indexer in every layer with attention, no
///                                         more of them than delta-rule layers
/// fused_qkv             yes               no                no
/// fused_gate_up         yes               yes               no
/// sink                  yes               yes               always
/// norms of outputs      dense layers, or experts next to a dense part; not the other two
/// norms.experts_out     next to a dense part                experts, without hyper        no
/// layer_scale           with norms of outputs                       no
/// no norms before parts with norms of outputs               no
/// layer_inputs          with layer_scale, without experts                 no
/// readers               without fused_qkv, whole qk_norm, output_gate     no
/// logit_scale           yes               yes               no
/// logit_cap             yes               yes               yes
/// norm_offset           yes               yes               no
/// mla.own_indexer       no                sparse_latent     no (has its own)
/// mla.o_groups          no                no                always
/// norms.gate_rank       no                without hyper     no
/// hyper                 no                yes               always
/// moe.shared_gate       with shared experts                         no
/// moe.weighs_inputs     yes               yes               no
/// moe.stacked           without correction_bias; shared experts with moe.halves       no
/// moe.halves            with moe.stacked, without mxfp4             no
/// moe.hash_layers       no                no                yes
/// experts               any layers        any layers        every layer, with shared ones
/// mxfp4                 stacked experts   stacked experts   with block_fp8
Result<void> check_layer_flags(const ModelConfig& config);

}  // namespace lathe
