#include "app/train_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "core/check.h"
#include "core/ops/elementwise.h"

namespace ferry {
namespace {

Shape origin_of(const Shape& shape) {
  const std::vector<int64_t> zeros(static_cast<size_t>(shape.rank()), 0);
  return Shape(std::span<const int64_t>(zeros));
}

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

std::vector<NamedTensor> tensors_of(const std::vector<Parameter*>& parameters, StateStore& store) {
  std::vector<NamedTensor> tensors;
  for (const Parameter* parameter : parameters) {
    const AdamwState& state = store.state(*parameter);
    tensors.push_back({"model/" + parameter->name, state.master});
    tensors.push_back({"optimizer/exp_avg/" + parameter->name, state.exp_avg});
    tensors.push_back({"optimizer/exp_avg_sq/" + parameter->name, state.exp_avg_sq});
  }
  return tensors;
}

// The rank that writes each tensor: the largest first, each to the rank with the fewest bytes.
std::vector<int> deal_out(const std::vector<NamedTensor>& tensors, int size) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return tensors[a].tensor.bytes() > tensors[b].tensor.bytes();
  });
  std::vector<int64_t> load(static_cast<size_t>(size), 0);
  std::vector<int> owner(tensors.size());
  for (const size_t i : order) {
    const auto least = std::min_element(load.begin(), load.end());
    owner[i] = static_cast<int>(least - load.begin());
    *least += tensors[i].tensor.bytes();
  }
  return owner;
}

// A model with fewer layers would find every tensor it wants, and drop the others without a word.
void refuse_left_over(const Checkpoint& checkpoint, const std::vector<Parameter*>& parameters) {
  std::set<std::string> known;
  for (const Parameter* parameter : parameters) known.insert("model/" + parameter->name);
  for (const StoredTensor& stored : checkpoint.manifest().tensors)
    if (stored.name.starts_with("model/") && !known.contains(stored.name))
      fail(ExitCode::Storage, "error: ", checkpoint.directory().string(),
           " is of another model\n  --> ", stored.name, " ", stored.shape,
           "\n  why : the model of this configuration has no such tensor\n  try : the [model] and "
           "[moe] tables that ferry ckpt show prints");
}

LoadReport load_tensors(Stream& stream, const Checkpoint& checkpoint,
                        const std::vector<NamedTensor>& tensors) {
  LoadReport total;
  // One tensor at a time: the host never holds a second copy of the whole state.
  for (const NamedTensor& wanted : tensors) {
    const Shape& shape = wanted.tensor.shape();
    const Tensor host = Tensor::host(stream.device(), "checkpoint", shape, wanted.tensor.dtype());
    const SliceToLoad slice{wanted.name, wanted.tensor.dtype(), shape, origin_of(shape), shape,
                            host.raw()};
    const LoadReport report = checkpoint.load(std::span(&slice, 1));
    total.bytes += report.bytes;
    total.seconds += report.seconds;
    stream.copy(wanted.tensor, host);
    stream.record().wait_host();
  }
  return total;
}

const StateValue& find(const State& state, const std::string& name, const std::string& where) {
  const auto found = state.find(name);
  if (found == state.end())
    fail(ExitCode::Storage, where, " has no scalar '", name,
         "': it was not written by ferry train");
  return found->second;
}

int64_t integer(const State& state, const std::string& name, const std::string& where) {
  const auto* value = std::get_if<int64_t>(&find(state, name, where));
  if (value == nullptr) fail(ExitCode::Storage, where, ": scalar '", name, "' is not an integer");
  return *value;
}

}  // namespace

int64_t state_bytes(const std::vector<Parameter*>& parameters) {
  int64_t bytes = 0;
  for (const Parameter* parameter : parameters)
    bytes += 3 * parameter->shape.numel() *
             static_cast<int64_t>(size_of(accumulate_dtype(parameter->dtype)));
  return bytes;
}

StateSnapshot::StateSnapshot(Stream& stream, const std::vector<Parameter*>& parameters,
                             StateStore& store, int rank, int size) {
  const std::vector<NamedTensor> tensors = tensors_of(parameters, store);
  const std::vector<int> owner = deal_out(tensors, size);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (owner[i] != rank) continue;
    const Tensor& tensor = tensors[i].tensor;
    const Tensor host = Tensor::host(stream.device(), "checkpoint", tensor.shape(), tensor.dtype());
    stream.copy(host, tensor);
    host_.push_back(host);
    slices_.push_back({tensors[i].name, tensor.dtype(), tensor.shape(), origin_of(tensor.shape()),
                       tensor.shape(), host.raw()});
  }
  stream.record().wait_host();
}

LoadReport load_state(Stream& stream, const Checkpoint& checkpoint,
                      const std::vector<Parameter*>& parameters, StateStore& store,
                      bool weights_only) {
  refuse_left_over(checkpoint, parameters);
  std::vector<NamedTensor> tensors = tensors_of(parameters, store);
  if (weights_only)
    std::erase_if(tensors, [](const NamedTensor& t) { return !t.name.starts_with("model/"); });
  const LoadReport report = load_tensors(stream, checkpoint, tensors);
  for (const Parameter* parameter : parameters) {
    const Tensor& master = store.state(*parameter).master;
    if (!master.same_memory(parameter->value)) cast(stream, parameter->value, master);
  }
  return report;
}

LoadReport load_weights(Stream& stream, const Checkpoint& checkpoint,
                        const std::vector<Parameter*>& parameters) {
  refuse_left_over(checkpoint, parameters);
  LoadReport total;
  for (const Parameter* parameter : parameters) {
    const DType stored = accumulate_dtype(parameter->dtype);
    const bool rounds = stored != parameter->dtype;
    const Tensor wide =
        rounds ? Tensor::empty(stream, "checkpoint", parameter->shape, stored) : parameter->value;
    const NamedTensor wanted{"model/" + parameter->name, wide};
    const LoadReport report = load_tensors(stream, checkpoint, {wanted});
    total.bytes += report.bytes;
    total.seconds += report.seconds;
    if (rounds) cast(stream, parameter->value, wide);
  }
  return total;
}

State to_state(const Progress& progress, int64_t seed, double lr, uint64_t data_fingerprint) {
  return {{"step", progress.step},
          {"samples", progress.samples},
          {"tokens", progress.tokens},
          {"random/seed", seed},
          {"lr", lr},
          {"data/position", progress.samples},
          {"data/fingerprint", fmt::format("{:016x}", data_fingerprint)}};
}

Progress progress_of(const State& state, const std::string& where) {
  return {integer(state, "step", where), integer(state, "samples", where),
          integer(state, "tokens", where)};
}

std::map<std::string, std::string> state_descriptions() {
  return {
      {"model", "master weights, in the order [out, in]"},
      {"optimizer", "state of AdamW"},
      {"optimizer/exp_avg", "running mean of gradients"},
      {"optimizer/exp_avg_sq", "running mean of squared gradients"},
      {"state/step", "optimizer steps done"},
      {"state/samples", "samples consumed, over all ranks"},
      {"state/tokens", "tokens consumed, over all ranks"},
      {"state/lr", "learning rate of the last step"},
      {"state/random/seed", "seed of weights, dropout and sample order"},
      {"state/data/position", "samples of the training data consumed"},
      {"state/data/fingerprint", "digest of the training files' structure and of the sample order"},
  };
}

}  // namespace ferry
