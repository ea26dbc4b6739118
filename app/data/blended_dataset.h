#pragma once

// Several data sets mixed into one by a BlendOrder.

#include "app/data/blend_order.h"
#include "app/data/token_dataset.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace ferry {

class BlendedDataset : public TokenDataset {
 public:
  /// `weights` are for fingerprint and description. Throws Error(Data) when the order needs more
  /// samples of a part than it has.
  BlendedDataset(std::vector<std::unique_ptr<TokenDataset>> parts, std::vector<double> weights,
                 BlendOrder order);

  int64_t size() const override { return order_.size(); }
  int64_t seq() const override { return parts_.front()->seq(); }
  void sample(int64_t index, std::span<int32_t> out) const override;
  uint64_t fingerprint() const override;
  std::string describe() const override;

 private:
  std::vector<std::unique_ptr<TokenDataset>> parts_;
  std::vector<double> weights_;
  BlendOrder order_;
};

}  // namespace ferry
