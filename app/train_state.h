#pragma once

// Everything mutable that a run continues from, and its way into and out of a checkpoint:
//   model/NAME                the master weights, FP32 (FP64 for float64 models); global.h5 shows
//                             them as optimizer/master/NAME too
//   optimizer/exp_avg/NAME, optimizer/exp_avg_sq/NAME; of sgd optimizer/momentum/NAME
//   state: step, samples, tokens, learning rate, random key, fingerprint of the data
// The weights used in compute are rounded again from the masters.

#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "core/parameter.h"
#include "optim/state_store.h"

namespace ferry {

struct Progress {
  int64_t step = 0;     // optimizer steps done
  int64_t samples = 0;  // consumed by them, over all ranks
  int64_t tokens = 0;   // samples * seq
};

/// Bytes of the tensors that a checkpoint of a model with this many parameters holds, of which each
/// number takes `element_bytes`.
int64_t state_bytes(int64_t num_parameters, int64_t element_bytes);

/// Matrix rows [begin, end) of a parameter whose state this rank stores. All ranks' together are
/// all of the model, once.
struct StoredRows {
  const Parameter* parameter = nullptr;  // as the StateStore knows it
  int64_t begin = 0;
  int64_t end = 0;
};

/// One tensor of this rank's share of the state, where it is now.
struct StoredPart {
  const Parameter* parameter = nullptr;
  std::string name;     // in the checkpoint
  Tensor tensor;        // [rows, columns], in the memory of the device or of the host
  DType stored;         // full precision; the tensor's own may be less
  Placement placement;  // of its rows
  /// `source` as SliceToSave has it. `host` has the tensor's elements as `stored`.
  void add_slices(std::vector<SliceToSave>& slices, const Tensor& host,
                  SliceSource* source = nullptr) const;
};
/// All of it that has a place in a checkpoint. All updates are done.
std::vector<StoredPart> stored_parts(const std::vector<StoredRows>& rows, const UpdateRule& rule,
                                     StateStore& store);

/// Error(ExitCode::Storage) if the checkpoint has a weight that is none of `names`, the parameters
/// of the whole model.
void refuse_other_model(const Checkpoint& checkpoint, const std::vector<std::string>& names);

/// Fills masters, moments and values from the checkpoint, of the parts that this rank holds,
/// whatever parts others saved; with weights_only the moments stay as they are.
/// Error(ExitCode::Storage) names a tensor that is absent or has another shape.
LoadReport load_state(Stream& stream, const Checkpoint& checkpoint,
                      const std::vector<Parameter*>& parameters, const UpdateRule& rule,
                      StateStore& store, bool weights_only);
/// Fills the values alone, for evaluation.
LoadReport load_weights(Stream& stream, const Checkpoint& checkpoint,
                        const std::vector<Parameter*>& parameters);

/// The scalars of a checkpoint, and back.
State to_state(const Progress& progress, int64_t seed, double lr, uint64_t data_fingerprint);
Progress progress_of(const State& state, const std::string& where);

/// Meanings and units of the stored things, for `global.h5`, and the second names of groups.
std::map<std::string, std::string> state_descriptions();
std::map<std::string, std::string> state_aliases();

}  // namespace ferry
