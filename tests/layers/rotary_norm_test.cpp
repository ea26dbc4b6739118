#include "layers/rotary_norm.h"

#include <gtest/gtest.h>

#include "tests/support/devices.h"
#include "tests/support/micro_batch.h"
#include "tests/support/run_ranks.h"
#include "tests/support/saved_bytes.h"

namespace ferry::testing {
namespace {

constexpr int64_t kTokens = 14;

AttentionConfig small(std::optional<QkNormKind> kind, DType dtype = DType::F64) {
  AttentionConfig config;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 6;
  config.qk_norm = kind;
  config.dtype = dtype;
  return config;
}

std::unique_ptr<RotaryNorm> make(const AttentionConfig& config, const TensorParallel& tensor = {}) {
  return std::make_unique<RotaryNorm>("layers/0/attention", config,
                                      std::make_shared<RopeCache>(6, 100.0, config.dtype), tensor);
}

ModuleRun two_sequences() {
  ModuleRun run;
  run.batch.batch = 2;
  run.batch.seq = kTokens / 2;
  return run;
}

// Saves its input, as attention does, so that the tape has the output of the norm before it.
class Saving final : public Module {
 public:
  explicit Saving(std::unique_ptr<Module> inner) : inner_(std::move(inner)) {}
  Tensor forward(Pass& pass, const Tensor& x) override {
    // Without norms the rotation is in place.
    const Tensor copy = Tensor::empty(pass.stream, "copy", x.shape(), x.dtype());
    pass.stream.copy(copy, x);
    const Tensor y = inner_->forward(pass, copy);
    pass.tape().save(pass.stream, Label::CoreAttn, {y});
    return y;
  }
  Tensor backward(Pass& pass, const Tensor& dy) override {
    const auto [y] = pass.tape().load<1>(pass.stream, Label::CoreAttn);
    loaded = read_back_as_double(pass.stream, y);
    const Tensor copy = Tensor::empty(pass.stream, "copy", dy.shape(), dy.dtype());
    pass.stream.copy(copy, dy);
    return inner_->backward(pass, copy);
  }
  void visit(const ParameterVisitor& visitor) override { inner_->visit(visitor); }

  std::vector<double> loaded;

 private:
  std::unique_ptr<Module> inner_;
};

const std::optional<QkNormKind> kKinds[] = {std::nullopt, QkNormKind::Head, QkNormKind::Full};

class RotaryNormTest : public CpuTest {
 protected:
  Tensor random(DType dtype, uint64_t seed) {
    return random_tensor(stream(), {kTokens, 48}, dtype, seed);
  }
};

TEST_F(RotaryNormTest, GradientsMatchDifferenceQuotients) {
  for (const auto kind : kKinds) {
    Saving module(make(small(kind)));
    allocate_parameters(stream(), module, 1);
    expect_gradients(stream(), module, random(DType::F64, 2), two_sequences());
  }
}

TEST_F(RotaryNormTest, ResultIsRebuiltBitForBit) {
  for (const DType dtype : {DType::F64, DType::F32, DType::BF16}) {
    for (const auto kind : kKinds) {
      SCOPED_TRACE(concat(name_of(dtype), ", norm ", kind ? static_cast<int>(*kind) : -1));
      Saving module(make(small(kind, dtype)));
      allocate_parameters(stream(), module, 1);
      const Tensor x = random(dtype, 2), dy = random(dtype, 3);
      const Outcome kept = run_micro_batch(stream(), module, x, dy, two_sequences());
      const auto kept_bytes = saved_bytes(stream(), module, x, dy, two_sequences());
      DiscardPolicy policy({Label::Layernorm});
      const Outcome rebuilt = run_micro_batch(stream(), module, x, dy, two_sequences(), &policy);
      expect_same(rebuilt, kept);
      EXPECT_EQ(module.loaded, rebuilt.tensors.at("y"));
      auto want = kept_bytes;
      if (kind) want.erase("core_attn");  // without norms there is nothing to rebuild from
      EXPECT_EQ(saved_bytes(stream(), module, x, dy, two_sequences(), &policy), want);
    }
  }
}

// One rank rebuilds and the other one does not: neither may wait for the other.
TEST_F(RotaryNormTest, RanksRebuildAlone) {
  for (const DType dtype : {DType::F64, DType::BF16}) {
    for (const QkNormKind kind : {QkNormKind::Head, QkNormKind::Full}) {
      run_ranks(2, [&](Group& group, Control&) {
        const auto own_device = make_cpu_device();
        const auto own = own_device->make_stream("rank");
        Saving module(make(small(kind, dtype), {&group, group.rank(), 2, false}));
        allocate_parameters(*own, module, 1);
        const Tensor x = random_tensor(*own, {kTokens, 24}, dtype, 2);
        const Tensor dy = random_tensor(*own, {kTokens, 24}, dtype, 3);
        const Outcome kept = run_micro_batch(*own, module, x, dy, two_sequences());
        DiscardPolicy discard({Label::Layernorm});
        const Outcome rebuilt = run_micro_batch(*own, module, x, dy, two_sequences(),
                                                group.rank() == 0 ? &discard : nullptr);
        expect_same(rebuilt, kept);
        EXPECT_EQ(module.loaded, kept.tensors.at("y"));
      });
    }
  }
}

}  // namespace
}  // namespace ferry::testing
