#include "app/data/blended_dataset.h"

#include "app/data/fingerprint.h"
#include "core/check.h"

#include <algorithm>
#include <utility>

namespace ferry {

BlendedDataset::BlendedDataset(std::vector<std::unique_ptr<TokenDataset>> parts,
                               std::vector<double> weights, BlendOrder order)
    : parts_(std::move(parts)), weights_(std::move(weights)), order_(std::move(order)) {
  CHECK(!parts_.empty() && parts_.size() == weights_.size());
  std::vector<int64_t> needed(parts_.size(), 0);
  for (int64_t i = 0; i < order_.size(); ++i) {
    int64_t& count = needed[order_.part[i]];
    count = std::max(count, order_.sample[i] + 1);
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    CHECK(parts_[i]->seq() == seq());
    if (needed[i] > parts_[i]->size()) {
      fail(ExitCode::Data, "the blend needs ", needed[i], " samples of ", parts_[i]->describe());
    }
  }
}

void BlendedDataset::sample(int64_t index, std::span<int32_t> out) const {
  CHECK(index >= 0 && index < size(), "sample ", index, " of ", size());
  parts_[order_.part[index]]->sample(order_.sample[index], out);
}

uint64_t BlendedDataset::fingerprint() const {
  Fingerprint print;
  for (size_t i = 0; i < parts_.size(); ++i) {
    print.add(weights_[i]);
    print.add(parts_[i]->fingerprint());
  }
  return print.value();
}

std::string BlendedDataset::describe() const {
  std::string text = concat("blend of ", parts_.size(), " files, ", size(), " samples");
  for (size_t i = 0; i < parts_.size(); ++i) {
    text += concat("; ", weights_[i], " of ", parts_[i]->describe());
  }
  return text;
}

}  // namespace ferry
