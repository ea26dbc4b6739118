#pragma once

// The logits of an evaluation for other programs to compare with: a NumPy file (.npy), FP32,
// [samples, seq, vocab].

#include <filesystem>
#include <vector>

#include "app/parallel_model.h"

namespace ferry {

class LogitsFile {
 public:
  /// Observes the logits of the model until the end of its life, and keeps those of the first
  /// `max_samples` samples in host memory. Error(ExitCode::Usage) unless the model is whole on one
  /// rank.
  LogitsFile(ParallelModel& model, std::filesystem::path path, int64_t max_samples);
  ~LogitsFile();
  LogitsFile(const LogitsFile&) = delete;
  LogitsFile& operator=(const LogitsFile&) = delete;

  /// Waits for the model's stream and writes the file; returns the number of samples.
  /// Error(ExitCode::Storage) if it exists already.
  int64_t write();

 private:
  void keep(Stream& stream, const Tensor& logits);

  ParallelModel& model_;
  std::filesystem::path path_;
  int64_t max_rows_;
  int64_t num_rows_ = 0;
  std::vector<Tensor> kept_;  // in host memory, [rows, columns] each
};

}  // namespace ferry
