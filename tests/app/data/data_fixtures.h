#pragma once

// What the tests of app/data share: small token files, raw bytes, and a matcher for errors.

#include "app/data/indexed_dataset.h"
#include "core/check.h"
#include "tests/support/temp_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace ferry::testing {

/// Runs `body`, which must throw Error with `code` and a message that contains every part.
template <class Body>
void expect_error(ExitCode code, const std::vector<std::string>& parts, Body&& body) {
  try {
    body();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    for (const std::string& part : parts) EXPECT_THAT(error.what(), ::testing::HasSubstr(part));
  }
}

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  ASSERT_TRUE(file.flush().good()) << path;
}

/// The bytes of integers of type T, little-endian.
template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// One sequence per document.
inline void write_documents(const std::string& prefix,
                            const std::vector<std::vector<int32_t>>& documents,
                            TokenType type = TokenType::U16) {
  IndexedWriter writer(prefix, type, /*overwrite=*/true);
  for (const auto& document : documents) {
    writer.add_sequence(document);
    writer.end_document();
  }
  writer.finish();
}

}  // namespace ferry::testing
