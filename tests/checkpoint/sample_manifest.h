#pragma once

#include <string>

#include "checkpoint/manifest.h"

namespace ferry::testing {

/// A consistent manifest of one shard with tensors "a" (two slices) and "b".
inline Manifest sample_manifest() {
  Manifest manifest;
  manifest.run = std::string(32, 'b');
  manifest.writer = "ferry";
  manifest.created = "2026-01-01T00:00:00Z";
  manifest.attempt = 1;
  manifest.step = 60;
  manifest.parent = {30, std::string(64, 'a'), std::string(32, 'c')};
  manifest.layout = "dp=1";
  manifest.config = "[run]\n";
  manifest.state = {{"step", int64_t{60}}, {"lr", 0.5}, {"schedule", std::string("cosine")}};
  manifest.chunk_bytes = 32;
  manifest.files = {{"shard-00000.h5", 200, {1, 2}}};
  manifest.tensors = {
      {"a",
       DType::F32,
       {8},
       {3, 4},
       {{0, "a@0", 100, {0}, {4}, {{5, 6}}}, {0, "a@4", 116, {4}, {4}, {{7, 8}}}}},
      {"b", DType::I64, {3, 1}, {9, 10}, {{0, "b", 140, {0, 0}, {3, 1}, {{11, 12}}}}}};
  return manifest;
}

}  // namespace ferry::testing
