#include "app/logits_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/file_system.h"
#include "core/check.h"
#include "core/ops/elementwise.h"

namespace ferry {
namespace {

/// What comes before the numbers, see the documentation of numpy.lib.format, version 1.0: its
/// length is a multiple of 64.
std::string npy_header(int64_t samples, int64_t seq, int64_t vocab) {
  std::string text = fmt::format(
      "{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}, {})}}", samples, seq, vocab);
  constexpr size_t kBefore = 10;
  const size_t padded = (kBefore + text.size() + 1 + 63) / 64 * 64 - kBefore;
  text.resize(padded - 1, ' ');
  text += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(padded & 0xff);
  header += static_cast<char>(padded >> 8);
  return header + text;
}

}  // namespace

LogitsFile::LogitsFile(ParallelModel& model, std::filesystem::path path, int64_t max_samples)
    : model_(model), path_(std::move(path)), max_rows_(max_samples * model.config().model.seq) {
  if (model.groups().mesh().world() > 1)
    fail(ExitCode::Usage, "error: --logits on ", model.groups().mesh().world(),
         " ranks\n  why : logits are written by one rank that has the whole model\n",
         "  try : one rank, with the parallel sizes set to 1");
  CHECK(model_.head() != nullptr);
  model_.head()->observe_logits(
      [this](Stream& stream, const Tensor& logits) { keep(stream, logits); });
}

LogitsFile::~LogitsFile() { model_.head()->observe_logits({}); }

void LogitsFile::keep(Stream& stream, const Tensor& logits) {
  const int64_t rows = std::min(logits.dim(0), max_rows_ - num_rows_);
  if (rows <= 0) return;
  Tensor part = logits.rows(0, rows);
  if (part.dtype() != DType::F32) {
    const Tensor single = Tensor::empty(stream, "logits", part.shape(), DType::F32);
    cast(stream, single, part);
    part = single;
  }
  kept_.push_back(Tensor::host(stream.device(), "logits", part.shape(), DType::F32));
  stream.copy(kept_.back(), part);
  num_rows_ += rows;
}

int64_t LogitsFile::write() {
  model_.stream().synchronize();
  const int64_t seq = model_.config().model.seq, vocab = model_.config().gpt().model.vocab;
  const int64_t samples = num_rows_ / seq;
  const auto file = posix_file_system().create(path_);
  const std::string header = npy_header(samples, seq, vocab);
  file->write_at(header.data(), header.size(), 0);
  auto position = static_cast<int64_t>(header.size());
  for (const Tensor& logits : kept_) {
    const int64_t columns = logits.dim(1);  // some may pad the vocabulary
    for (int64_t row = 0; row < logits.dim(0); ++row) {
      const auto bytes = static_cast<size_t>(vocab) * sizeof(float);
      file->write_at(logits.data<float>() + row * columns, bytes, position);
      position += static_cast<int64_t>(bytes);
    }
  }
  file->sync();
  file->close();
  return samples;
}

}  // namespace ferry
