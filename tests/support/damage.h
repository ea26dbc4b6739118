#pragma once

// Damage to files that is undone at the end of its scope, and where at random it hits.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace ferry::testing {

/// Flips bit `bit` of byte `byte` of a file.
inline void flip_bit(const std::filesystem::path& path, int64_t byte, int bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(byte);
  const int value = file.get();
  file.seekp(byte);
  file.put(static_cast<char>(value ^ (1 << bit))).flush();
  if (!file) throw std::runtime_error("cannot flip a bit of " + path.native());
}

class FlippedBit {
 public:
  FlippedBit(std::filesystem::path path, int64_t byte, int bit)
      : path_(std::move(path)), byte_(byte), bit_(bit) {
    flip_bit(path_, byte_, bit_);
  }
  ~FlippedBit() { flip_bit(path_, byte_, bit_); }
  FlippedBit(const FlippedBit&) = delete;
  FlippedBit& operator=(const FlippedBit&) = delete;

  std::string text() const {
    return path_.native() + " byte " + std::to_string(byte_) + " bit " + std::to_string(bit_);
  }

 private:
  std::filesystem::path path_;
  int64_t byte_;
  int bit_;
};

/// A file of which only the first `bytes` are left.
class Truncated {
 public:
  Truncated(std::filesystem::path path, int64_t bytes) : path_(std::move(path)) {
    std::ifstream in(path_, std::ios::binary);
    content_ = {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    std::filesystem::resize_file(path_, static_cast<uintmax_t>(bytes));
  }
  ~Truncated() { std::ofstream(path_, std::ios::binary) << content_; }
  Truncated(const Truncated&) = delete;
  Truncated& operator=(const Truncated&) = delete;

 private:
  std::filesystem::path path_;
  std::string content_;
};

/// The files of a directory, sorted.
inline std::vector<std::filesystem::path> files_of(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

struct BitPlace {
  std::filesystem::path path;
  int64_t byte = 0;
  int bit = 0;
};

/// `count` places in the files of a directory, every bit as likely as any other.
inline std::vector<BitPlace> random_bits(const std::filesystem::path& directory, int count,
                                         uint64_t seed) {
  std::vector<BitPlace> places;
  std::mt19937_64 random(seed);
  const auto files = files_of(directory);
  int64_t total = 0;
  for (const auto& file : files) total += static_cast<int64_t>(std::filesystem::file_size(file));
  for (int i = 0; i < count; ++i) {
    auto position = static_cast<int64_t>(random() % static_cast<uint64_t>(8 * total));
    for (const auto& file : files) {
      const auto bits = 8 * static_cast<int64_t>(std::filesystem::file_size(file));
      if (position < bits) {
        places.push_back({file, position / 8, static_cast<int>(position % 8)});
        break;
      }
      position -= bits;
    }
  }
  return places;
}

}  // namespace ferry::testing
