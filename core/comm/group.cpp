#include "core/comm/group.h"

namespace ferry {

void Group::check_all_gather(const Tensor& all, const Tensor& own) const {
  CHECK(all.numel() == own.numel() * size() && all.dtype() == own.dtype(), "all_gather of ",
        own.shape(), " to ", all.shape());
}

void Group::check_reduce_scatter(const Tensor& own, const Tensor& all) const {
  CHECK(all.numel() == own.numel() * size() && all.dtype() == own.dtype(), "reduce_scatter of ",
        all.shape(), " to ", own.shape());
}

void Group::check_all_to_all(const Tensor& receive, std::span<const int64_t> receive_rows,
                             const Tensor& send, std::span<const int64_t> send_rows) const {
  CHECK(static_cast<int>(receive_rows.size()) == size() &&
            static_cast<int>(send_rows.size()) == size(),
        "all_to_all needs a count for each of ", size(), " ranks");
  CHECK(receive.dtype() == send.dtype(), "all_to_all between dtypes");
}

}  // namespace ferry
