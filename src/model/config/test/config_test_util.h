// Shared by the tests of configurations.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "model/config/config.h"

namespace lathe {

using Json = nlohmann::json;

inline ModelConfig parsed(const Json& j) {
  auto config = parse_model_config(j.dump());
  EXPECT_TRUE(config.ok()) << (config ? "" : config.error().message());
  return config ? *config : ModelConfig{};
}

/// "accepted", or the message.
inline std::string refusal(const Json& j) {
  const auto config = parse_model_config(j.dump());
  return config ? "accepted" : config.error().message();
}

}  // namespace lathe
