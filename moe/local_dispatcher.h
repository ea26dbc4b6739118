#pragma once

// All experts on this rank: a permutation and its inverse, no communication and no host.

#include "moe/dispatcher.h"

namespace ferry {

class LocalDispatcher final : public Dispatcher {
 public:
  /// `gather`: what is dispatched are the tokens and their order, not copies.
  explicit LocalDispatcher(bool gather = false) : gather_(gather) {}
  void prepare(Pass& pass, const Routing& routing) override;

 protected:
  std::optional<Rows> rows_in_place(Pass& pass, const Tensor& x) const override;
  Tensor rows_of_tokens(Pass& pass, const Tensor& x, std::string_view name) const override;
  Tensor numbers_of_rows(Pass& pass, const Tensor& by_choice) const override;
  Tensor offsets(Pass& pass) const override;
  Exchanged return_rows(Pass&, Stream&, const Tensor& rows) const override {
    return {rows, {}, {}};
  }
  Tensor tokens_of_returned(Pass& pass, const Tensor& returned,
                            const Tensor& residual) const override;
  Exchanged return_numbers(Pass&, Stream&, const Tensor& by_row) const override {
    return {by_row, {}, {}};
  }
  Tensor choices_of_returned(Pass& pass, const Tensor& returned) const override;

 private:
  bool gather_;
};

}  // namespace ferry
