#pragma once

// Writes the weights of a checkpoint as safetensors. One tensor at a time is in memory.

#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "checkpoint/reader.h"
#include "huggingface/model_description.h"

namespace ferry {

struct ExportRequest {
  Path directory;                          // exists, without safetensors
  DType dtype = DType::BF16;               // BF16 (round to nearest, ties to even) or F32 (exact)
  int64_t shard_bytes = int64_t{5} << 30;  // no file is larger unless it has one tensor only
  FileSystem* file_system = &posix_file_system();
};

struct ExportReport {
  int64_t num_tensors = 0;
  int64_t bytes = 0;  // of tensors
  std::vector<std::string> files;
};

/// Writes model.safetensors, or model-NNNNN-of-NNNNN.safetensors and their index, syncs them, reads
/// every tensor back from the device and compares it. Throws Error(ExitCode::Storage), with a table
/// where the checkpoint does not have exactly the weights of the model.
ExportReport export_weights(const Checkpoint& checkpoint, const ModelDescription& model,
                            const ExportRequest& request);

}  // namespace ferry
