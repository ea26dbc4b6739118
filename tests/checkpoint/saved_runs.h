#pragma once

// Runs with checkpoints of the sample model, made by one rank or by several.

#include <gtest/gtest.h>

#include <vector>

#include "tests/checkpoint/faulty_file_system.h"
#include "tests/checkpoint/sample_model.h"
#include "tests/checkpoint/thread_control.h"
#include "tests/support/temp_dir.h"

namespace ferry::testing {

/// Begins an attempt of one rank; returns its number.
inline int64_t begin(const Path& run_dir, FileSystem& file_system = posix_file_system()) {
  SoloControl control;
  return begin_attempt(run_dir, control, file_system).number;
}

/// One rank saves the sample model.
inline SaveReport save(const Path& run_dir, int64_t step, int keep, int64_t attempt = 1) {
  static FaultyFileSystem file_system;
  SaveOptions options;
  options.step = step;
  options.keep = keep;
  options.attempt = attempt;
  options.file_system = &file_system;
  return save_solo(run_dir, SampleModel(), options);
}

/// `size` ranks begin an attempt and save the model together.
inline SaveReport save_with_ranks(int size, const Path& run_dir, const SampleModel& model) {
  SaveReport report;
  const auto errors = run_ranks(size, [&](Control& control) {
    const int64_t attempt = begin_attempt(run_dir, control).number;
    RankSlices slices(model, control.rank(), size);
    SaveOptions options;
    options.attempt = attempt;
    const SaveReport mine =
        save_checkpoint(sample_request(run_dir, slices.to_save(), options), control);
    if (control.rank() == size - 1) report = mine;  // every rank has the whole report
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return report;
}

inline std::vector<int64_t> steps(const TempDir& run) {
  return list_steps(posix_file_system(), run.path());
}

}  // namespace ferry::testing
