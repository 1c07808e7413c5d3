#include "server/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lathe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Metrics, AHistogramCountsUpToItsEdges) {
  const double edges[] = {1, 2};
  Histogram h(edges);
  for (double v : {0.5, 1.0, 1.5, 9.0}) h.add(v);
  EXPECT_THAT(h.counts(), ElementsAre(2, 1, 1));
  EXPECT_EQ(h.count(), 4);
  EXPECT_EQ(h.sum(), 12);
}

TEST(Metrics, TextSumsBucketsAndEscapesNames) {
  Metrics m;
  m.first_token_seconds.add(0.3);
  m.requests["route=\"chat\",finish=\"stop\""] = 2;
  m.used_tokens = 3;
  m.total_tokens = 12;
  const std::string text = metrics_text(m, {true, true, "a\"b"});
  EXPECT_THAT(text, HasSubstr("lathe_time_to_first_token_seconds_bucket{le=\"0.2\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("lathe_time_to_first_token_seconds_bucket{le=\"0.4\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("lathe_time_to_first_token_seconds_bucket{le=\"+Inf\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("lathe_requests_total{route=\"chat\",finish=\"stop\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("lathe_token_usage 0.25\n"));
  EXPECT_THAT(text, HasSubstr("sglang:token_usage{model_name=\"a\\\"b\"} 0.25\n"));
  EXPECT_THAT(text, HasSubstr("vllm:num_requests_waiting{model_name=\"a\\\"b\",engine=\"0\"} 0\n"));
  EXPECT_THAT(metrics_text(m, {}), Not(HasSubstr("sglang:")));
}

TEST(Metrics, KeysOfDecodeSteps) {
  Metrics m;
  m.key_reads = {.attended = 700, .shared = 600};
  const std::string text = metrics_text(m, {});
  EXPECT_THAT(text, HasSubstr("lathe_decode_keys_total 700\n"));
  EXPECT_THAT(text, HasSubstr("lathe_shared_keys_total 600\n"));
}

TEST(Metrics, DraftsAreCountedByPlace) {
  Metrics m;
  EXPECT_THAT(metrics_text(m, {}), HasSubstr("lathe_acceptance_length 1\n"));
  m.drafts.record(2, 2);
  m.drafts.record(2, 1);
  const std::string text = metrics_text(m, {true, true, "m"});
  for (const char* line :
       {"lathe_draft_checks_total 2\n", "lathe_drafted_tokens_total{place=\"2\"} 2\n",
        "lathe_accepted_drafts_total{place=\"1\"} 2\n",
        "lathe_accepted_drafts_total{place=\"2\"} 1\n", "lathe_acceptance_length 2.5\n",
        "sglang:spec_accept_length{model_name=\"m\"} 2.5\n",
        "sglang:spec_accept_rate{model_name=\"m\"} 0.75\n",
        "vllm:spec_decode_num_drafts_total{model_name=\"m\",engine=\"0\"} 2\n",
        "vllm:spec_decode_num_draft_tokens_total{model_name=\"m\",engine=\"0\"} 4\n",
        "vllm:spec_decode_num_accepted_tokens_total{model_name=\"m\",engine=\"0\"} 3\n",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"m\",engine=\"0\","
        "position=\"0\"} 2\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("place=\"3\"")));
}

}  // namespace
}  // namespace lathe
