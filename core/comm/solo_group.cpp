#include "core/comm/group.h"

namespace ferry {
namespace {

class SoloGroup final : public Group {
 public:
  explicit SoloGroup(std::string name) : name_(std::move(name)) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  const std::string& name() const override { return name_; }

  void all_reduce(Stream&, const Tensor&, ReduceOp) override {}
  void all_gather(Stream& stream, const Tensor& all, const Tensor& own) override {
    copy(stream, all, own);
  }
  void reduce_scatter(Stream& stream, const Tensor& own, const Tensor& all) override {
    copy(stream, own, all);
  }
  void broadcast(Stream&, const Tensor&, int root) override { CHECK(root == 0, "root ", root); }
  void all_to_all(Stream& stream, const Tensor& receive, std::span<const int64_t> receive_rows,
                  const Tensor& send, std::span<const int64_t> send_rows) override {
    CHECK(receive_rows.size() == 1 && send_rows.size() == 1 && receive_rows[0] == send_rows[0],
          "one rank sends to itself what it receives");
    copy(stream, receive.rows(0, receive_rows[0]), send.rows(0, send_rows[0]));
  }
  void send(Stream&, const Tensor&, int peer) override { no_peer(peer); }
  void receive(Stream&, const Tensor&, int peer) override { no_peer(peer); }
  std::unique_ptr<Group> split(int color, const std::string& name) override {
    return color < 0 ? nullptr : std::make_unique<SoloGroup>(name);
  }

 private:
  static void copy(Stream& stream, const Tensor& to, const Tensor& from) {
    if (to.raw() != from.raw()) stream.copy(to, from);
  }
  [[noreturn]] void no_peer(int peer) const {
    fail(ExitCode::Internal, "group ", name_, " has one rank, so no rank ", peer, " to talk to");
  }
  std::string name_;
};

}  // namespace

std::unique_ptr<Group> make_solo_group(const std::string& name) {
  return std::make_unique<SoloGroup>(name);
}

}  // namespace ferry
