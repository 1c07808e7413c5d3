// Reading tests/data/tokenizer, which tools/fixtures/make_tokenizer_fixtures.py writes. For tests
// only.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lathe {

inline std::string tokenizer_data(const std::string& name) {
  return LATHE_TEST_DATA "/tokenizer/" + name;
}

inline std::vector<std::string> fixture_lines(const std::string& name) {
  std::ifstream file(tokenizer_data(name), std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

inline std::vector<nlohmann::json> fixture_rows(const std::string& name) {
  std::vector<nlohmann::json> rows;
  for (const std::string& line : fixture_lines(name)) rows.push_back(nlohmann::json::parse(line));
  EXPECT_FALSE(rows.empty()) << name;
  return rows;
}

}  // namespace lathe
