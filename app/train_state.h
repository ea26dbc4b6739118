#pragma once

// Everything mutable that a run continues from, and its way into and out of a checkpoint:
//   model/NAME                the master weights, FP32 (FP64 for float64 models); global.h5 shows
//                             them as optimizer/master/NAME too
//   optimizer/exp_avg/NAME, optimizer/exp_avg_sq/NAME
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

/// Bytes of the tensors that a checkpoint of these parameters holds.
int64_t state_bytes(const std::vector<Parameter*>& parameters);

/// Host copies of this rank's share of the state: tensors are dealt out so that each of the `size`
/// ranks writes about the same number of bytes. The copies live as long as this object.
class StateSnapshot {
 public:
  StateSnapshot(Stream& stream, const std::vector<Parameter*>& parameters, StateStore& store,
                int rank, int size);
  const std::vector<SliceToSave>& slices() const { return slices_; }

 private:
  std::vector<Tensor> host_;
  std::vector<SliceToSave> slices_;
};

/// Fills masters, moments and values from the checkpoint; with weights_only the moments stay as
/// they are. Error(ExitCode::Storage) names a tensor that is absent, has another shape, or is of
/// no parameter.
LoadReport load_state(Stream& stream, const Checkpoint& checkpoint,
                      const std::vector<Parameter*>& parameters, StateStore& store,
                      bool weights_only);
/// Fills the values alone, for evaluation.
LoadReport load_weights(Stream& stream, const Checkpoint& checkpoint,
                        const std::vector<Parameter*>& parameters);

/// The scalars of a checkpoint, and back.
State to_state(const Progress& progress, int64_t seed, double lr, uint64_t data_fingerprint);
Progress progress_of(const State& state, const std::string& where);

/// Meanings and units of the stored things, for `global.h5`.
std::map<std::string, std::string> state_descriptions();

}  // namespace ferry
