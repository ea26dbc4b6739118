// The test of the test: with the wait of the copies to the host left out, ThreadSanitizer must
// report a race. scripts/test.sh runs the disabled test under it and looks for the report.

#include <gtest/gtest.h>

#include "offload/activation_offload.h"
#include "tests/offload/fake_passes.h"

namespace ferry::testing {
namespace {

// A stream that leaves out every wait.
class ForgetfulStream final : public Stream {
 public:
  ForgetfulStream(Device& device, std::unique_ptr<Stream> inner)
      : Stream(device, inner->name()), inner_(std::move(inner)) {}
  Event record() override { return inner_->record(); }
  std::shared_ptr<const TimeStamp> stamp() override { return inner_->stamp(); }
  void wait(const Event&) override {}
  void synchronize() override { inner_->synchronize(); }
  void zero(const Tensor& tensor) override { inner_->zero(tensor); }
  void copy(const Tensor& to, const Tensor& from) override { inner_->copy(to, from); }
  void hold(const Tensor& tensor) override { inner_->hold(tensor); }
  bool is_captured() const override { return inner_->is_captured(); }

 private:
  std::unique_ptr<Stream> inner_;
};

// A CPU whose streams of this name are forgetful.
class ForgetfulDevice final : public Device {
 public:
  ForgetfulDevice(Device& inner, std::string forgetful)
      : inner_(inner), forgetful_(std::move(forgetful)) {}
  DeviceKind kind() const override { return DeviceKind::Cpu; }
  std::string name() const override { return "forgetful cpu"; }
  std::unique_ptr<Stream> make_stream(std::string name) override {
    auto stream = inner_.make_stream(name);
    if (name != forgetful_) return stream;
    return std::make_unique<ForgetfulStream>(*this, std::move(stream));
  }
  std::shared_ptr<Storage> allocate(Stream& stream, std::string_view name, int64_t bytes) override {
    return inner_.allocate(stream, name, bytes);
  }
  std::shared_ptr<Storage> allocate_host(std::string_view name, int64_t bytes) override {
    return inner_.allocate_host(name, bytes);
  }
  int64_t total_bytes() const override { return inner_.total_bytes(); }
  int64_t free_bytes() const override { return inner_.free_bytes(); }

 private:
  Device& inner_;
  std::string forgetful_;
};

class ForgottenWait : public CpuTest {
 protected:
  void train(const std::string& forgetful) {
    ForgetfulDevice forgetting(device(), forgetful);
    ActivationOffloadConfig config;
    config.modules = {{Label::CoreAttn, "core_attn"}};
    config.min_tensor_elements = 1;
    ActivationOffload offload(forgetting, config);
    FakePasses passes(stream(), offload, 4, {Label::CoreAttn}, {200000});
    for (int step = 0; step < 3; ++step) passes.step(one_by_one(2));
  }
};

TEST_F(ForgottenWait, NoneIsFine) { train("nobody"); }

TEST_F(ForgottenWait, DISABLED_OfTheCopyToTheHostIsARace) { train("offload to host"); }

}  // namespace
}  // namespace ferry::testing
