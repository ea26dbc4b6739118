#include "app/train_state.h"

#include <fmt/format.h>

#include <cstring>
#include <set>

#include "core/check.h"
#include "core/ops/elementwise.h"

namespace ferry {
namespace {

// A tensor of the state, and the parameter whose part it has.
struct NamedTensor {
  std::string name;
  Tensor tensor;
};

std::vector<NamedTensor> tensors_of(const Parameter& parameter, const UpdateRule& rule,
                                    StateStore& store) {
  const ParameterState& state = store.state(parameter);
  std::vector<NamedTensor> tensors{{"model/" + parameter.name, state.master}};
  for (size_t i = 0; i < state.moments.size(); ++i)
    tensors.push_back(
        {concat("optimizer/", rule.moment_names()[i], "/", parameter.name), state.moments[i]});
  return tensors;
}

Tensor as_matrix(const Tensor& tensor) {
  return tensor.reshape({matrix_rows(tensor.shape()), matrix_columns(tensor.shape())});
}

std::byte* row_of(const Tensor& matrix, int64_t row) {
  return static_cast<std::byte*>(matrix.raw()) +
         row * matrix.dim(1) * static_cast<int64_t>(size_of(matrix.dtype()));
}

// One tensor at a time, and one in host memory in place: the host never holds a second copy of the
// whole state. What is stored has the full precision of `stored`.
LoadReport load_tensor(Stream& stream, const Checkpoint& checkpoint, const std::string& name,
                       const Tensor& tensor, DType stored, const Placement& placement) {
  if (tensor.numel() == 0) return {};
  const bool in_place = tensor.on_host() && tensor.dtype() == stored;
  const Tensor host =
      in_place ? as_matrix(tensor)
               : Tensor::host(stream.device(), "checkpoint", as_matrix(tensor).shape(), stored);
  if (in_place) stream.record().wait_host();                      // the initial values
  std::memset(host.raw(), 0, static_cast<size_t>(host.bytes()));  // padding
  std::vector<SliceToLoad> slices;
  for (const PlacedBox& box : placement.boxes())
    slices.push_back(
        {name, stored, placement.global_shape(), box.offset, box.extent, row_of(host, box.row)});
  const LoadReport report = checkpoint.load(slices);
  if (in_place) return report;
  if (tensor.dtype() == stored) {
    stream.copy(tensor, host);
  } else {
    const Tensor wide = Tensor::empty(stream, "checkpoint", tensor.shape(), stored);
    stream.copy(wide, host);
    cast(stream, tensor, wide);
  }
  stream.record().wait_host();
  return report;
}

void add(LoadReport& total, const LoadReport& report) {
  total.bytes += report.bytes;
  total.seconds += report.seconds;
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

int64_t state_bytes(int64_t num_parameters, int64_t element_bytes) {
  return 3 * num_parameters * element_bytes;
}

void StoredPart::add_slices(std::vector<SliceToSave>& slices, const Tensor& host,
                            SliceSource* source) const {
  for (const PlacedBox& box : placement.boxes())
    slices.push_back({name, stored, placement.global_shape(), box.offset, box.extent,
                      row_of(host, box.row), source});
}

std::vector<StoredPart> stored_parts(const std::vector<StoredRows>& rows, const UpdateRule& rule,
                                     StateStore& store) {
  std::vector<StoredPart> parts;
  for (const StoredRows& own : rows) {
    const Placement placement = own.parameter->placement().rows(own.begin, own.end);
    if (placement.boxes().empty()) continue;
    for (const NamedTensor& named : tensors_of(*own.parameter, rule, store))
      parts.push_back({own.parameter, named.name, as_matrix(named.tensor).rows(own.begin, own.end),
                       accumulate_dtype(own.parameter->dtype), placement});
  }
  return parts;
}

// A model with fewer layers would find every tensor it wants, and drop the others without a word.
void refuse_other_model(const Checkpoint& checkpoint, const std::vector<std::string>& names) {
  std::set<std::string> known;
  for (const std::string& name : names) known.insert("model/" + name);
  for (const StoredTensor& stored : checkpoint.manifest().tensors)
    if (stored.name.starts_with("model/") && !known.contains(stored.name))
      fail(ExitCode::Storage, "error: ", checkpoint.directory().string(),
           " is of another model\n  --> ", stored.name, " ", stored.shape,
           "\n  why : the model of this configuration has no such tensor\n  try : the [model] and "
           "[moe] tables that ferry ckpt show prints");
}

LoadReport load_state(Stream& stream, const Checkpoint& checkpoint,
                      const std::vector<Parameter*>& parameters, const UpdateRule& rule,
                      StateStore& store, bool weights_only) {
  LoadReport total;
  for (const Parameter* parameter : parameters) {
    const Placement placement = parameter->placement();
    const DType full = accumulate_dtype(parameter->dtype);
    for (const NamedTensor& named : tensors_of(*parameter, rule, store)) {
      if (weights_only && !named.name.starts_with("model/")) continue;
      add(total, load_tensor(stream, checkpoint, named.name, named.tensor, full, placement));
    }
    store.publish(stream, *parameter);
  }
  return total;
}

LoadReport load_weights(Stream& stream, const Checkpoint& checkpoint,
                        const std::vector<Parameter*>& parameters) {
  LoadReport total;
  for (const Parameter* parameter : parameters) {
    const DType stored = accumulate_dtype(parameter->dtype);
    const bool rounds = stored != parameter->dtype;
    const Tensor wide =
        rounds ? Tensor::empty(stream, "checkpoint", parameter->shape, stored) : parameter->value;
    add(total, load_tensor(stream, checkpoint, "model/" + parameter->name, wide, stored,
                           parameter->placement()));
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

std::map<std::string, std::string> state_aliases() { return {{"optimizer/master", "model"}}; }

std::map<std::string, std::string> state_descriptions() {
  return {
      {"model", "master weights, in the order [out, in]"},
      {"optimizer", "state of the optimizer"},
      {"optimizer/momentum", "momentum of SGD"},
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
