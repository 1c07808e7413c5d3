// What a step has to do with weights, against the tensors of the shipped checkpoints.
#include <cmath>
#include <cstdlib>

#include "io/checkpoint/checkpoint.h"
#include "model/test/test_util.h"

namespace lathe {
namespace {

struct Sums {
  double head = 0;                       // elements
  double all = 0, e4m3 = 0, bytes = 0;   // of the others, without experts
  double experts = 0, expert_bytes = 0;  // of all of them
};

// Matrices of layers below `layers`; norms are vectors. kv_b is counted apart: its heads may be
// held in another dtype.
Sums sums_of(const std::string& directory, int layers, double& kv_b) {
  Sums out;
  const auto checkpoint = Checkpoint::open(directory).value();
  for (const CheckpointTensor& t : checkpoint.tensors()) {
    const auto at = t.name.find("layers.");
    if (t.shape.size() != 2 || !t.name.ends_with(".weight")) continue;
    const auto size = static_cast<double>(t.shape[0] * t.shape[1]);
    const auto bytes = static_cast<double>(t.bytes.size());
    if (at == std::string::npos) {
      out.head = size;  // the embedding, to which the head is tied
      continue;
    }
    if (std::atoi(t.name.c_str() + at + 7) >= layers) continue;
    if (t.name.find(".experts.") != std::string::npos) {
      out.experts += size;
      out.expert_bytes += bytes;
    } else if (t.name.find("kv_b_proj") != std::string::npos) {
      kv_b += size;
    } else {
      out.all += size;
      out.bytes += bytes;
      if (t.dtype == SafetensorsDType::F8_E4M3) out.e4m3 += size;
    }
  }
  return out;
}

TEST(StepWeights, DenseModel) {
  const std::string directory = fmt::format("{}/../../models/tiny-gqa", LATHE_TEST_DATA);
  const auto model = load_model(directory, {}).value();
  double kv_b = 0;
  const Sums sums = sums_of(directory, model->config().layers, kv_b);
  for (const std::int64_t rows : {1, 64}) {
    const StepWeights w = model->step_weights(rows);
    EXPECT_EQ(w.products, sums.all);
    EXPECT_EQ(w.e4m3_products, 0);
    EXPECT_EQ(w.logit_products, sums.head);
    EXPECT_EQ(w.bytes, sums.bytes + 2 * sums.head);
  }
}

TEST(StepWeights, ExpertsThatRowsAreExpectedToChoose) {
  const std::string directory = fmt::format("{}/../../models/tiny-v32", LATHE_TEST_DATA);
  const auto model = load_model(directory, {}).value();
  double kv_b = 0;
  const Sums sums = sums_of(directory, model->config().layers, kv_b);
  const StepWeights one = model->step_weights(1);  // its rows choose 2 of 8
  EXPECT_EQ(one.products, sums.all + kv_b + sums.experts / 4);
  EXPECT_EQ(one.e4m3_products, sums.e4m3 + sums.experts / 4);
  // A row chooses an expert with probability 1 / 4, so three miss it with (3 / 4)^3.
  EXPECT_DOUBLE_EQ(model->step_weights(3).bytes - one.bytes,
                   sums.expert_bytes * (1 - 27.0 / 64 - 1.0 / 4));
  EXPECT_DOUBLE_EQ(model->step_weights(1000).bytes - one.bytes, sums.expert_bytes * 3 / 4);
  EXPECT_EQ(model->step_weights(1000).products, one.products);
}

}  // namespace
}  // namespace lathe
