// Configurations of published models, in tests/data/configs.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "io/files/read_file.h"
#include "model/config/config.h"

namespace lathe {

inline ModelConfig published(const std::string& name) {
  const auto text = read_file(fmt::format("{}/configs/{}.json", LATHE_TEST_DATA, name));
  EXPECT_TRUE(text.ok()) << name;
  auto config = parse_model_config(*text);
  EXPECT_TRUE(config.ok()) << name << (config ? "" : config.error().message());
  return *config;
}

}  // namespace lathe
