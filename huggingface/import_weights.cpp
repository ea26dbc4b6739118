#include "huggingface/import_weights.h"

#include <algorithm>
#include <map>

#include "checkpoint/directory.h"
#include "core/comm/control.h"
#include "huggingface/mapped_floats.h"
#include "huggingface/tensor_table.h"

namespace ferry {
namespace {

constexpr int64_t kElementsAtOnce = int64_t{1} << 20;

// The first element of the box in the whole tensor. The box is contiguous there.
int64_t first_element(const Box& box) {
  int64_t first = 0;
  for (int i = 0; i < box.global.rank(); ++i) first = first * box.global[i] + box.offset[i];
  return first;
}

struct Ours {
  Shape shape;
  int64_t begin = 0;  // in the mapped file, in elements
};

}  // namespace

void require_weights_of(const WeightFiles& files, const std::vector<TensorLink>& links) {
  std::map<std::string, Shape> wanted;
  std::map<std::string, TensorType> found;
  for (const TensorLink& link : links) wanted[link.hf_name] = link.hf_shape;
  for (const auto& [name, place] : files.tensors())
    found[name] = {place.tensor.dtype, place.tensor.shape};
  require_same_tensors(files.directory().string() + " does not have the tensors of its config.json",
                       wanted, found, {DType::BF16, DType::F32});
}

SaveReport import_weights(const WeightFiles& files, const std::vector<TensorLink>& links,
                          const std::vector<std::string>& moments, SaveRequest request) {
  require_weights_of(files, links);
  std::map<std::string, Ours> ours;
  int64_t total = 0;
  int64_t largest = 0;
  for (const TensorLink& link : links) {
    const auto [place, is_new] = ours.try_emplace(link.name, Ours{link.box.global, total});
    if (!is_new) continue;
    total += link.box.global.numel();
    largest = std::max(largest, link.box.global.numel());
  }
  const MappedFloats weights = MappedFloats::in_file(request.run_dir, total);
  const MappedFloats zeros = MappedFloats::zeros(largest);
  for (const TensorLink& link : links) {
    const WeightFiles::Place& place = files.tensors().at(link.hf_name);
    float* target = weights.data() + ours.at(link.name).begin + first_element(link.box);
    const int64_t count = link.box.numel();
    for (int64_t first = 0; first < count; first += kElementsAtOnce)
      files.read(place, first, std::min(kElementsAtOnce, count - first), target + first);
  }
  std::vector<SliceToSave> slices;
  for (const auto& [name, tensor] : ours) {
    const Shape offset = whole_box(tensor.shape).offset;
    slices.push_back(
        {name, DType::F32, tensor.shape, offset, tensor.shape, weights.data() + tensor.begin});
    const std::string plain = name.substr(std::string("model/").size());
    for (const std::string& moment : moments)
      slices.push_back({"optimizer/" + moment + "/" + plain, DType::F32, tensor.shape, offset,
                        tensor.shape, zeros.data()});
  }
  request.slices = slices;
  SoloControl control;
  request.attempt = begin_attempt(request.run_dir, control, *request.file_system).number;
  return save_checkpoint(request, control);
}

}  // namespace ferry
