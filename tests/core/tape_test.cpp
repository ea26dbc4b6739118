#include "core/tape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <vector>

#include "core/host_copy.h"
#include "core/stream_cpu.h"
#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// y = 3 * x + 0.1, a stand-in for a norm that is cheap to make again.
Tensor tripled(Stream& stream, const Tensor& x) {
  const Tensor y = Tensor::empty(stream, "tripled", x.shape(), x.dtype());
  enqueue_cpu(stream, [x, y] {
    for (int64_t i = 0; i < x.numel(); ++i) y.data<float>()[i] = 3 * x.data<float>()[i] + 0.1f;
  });
  return y;
}
Tensor rebuild_tripled(Stream& stream, std::span<const Tensor> inputs) {
  return tripled(stream, inputs[0]);
}

// Keeps another copy and counts how often it is asked for.
class Elsewhere final : public Residence {
 public:
  Elsewhere(Tensor copy, int* num_returns) : copy_(std::move(copy)), num_returns_(num_returns) {}
  Tensor bring_back(Stream& stream) override {
    ++*num_returns_;
    const Tensor tensor = Tensor::empty(stream, "back", copy_.shape(), copy_.dtype());
    stream.copy(tensor, copy_);
    return tensor;
  }

 private:
  Tensor copy_;
  int* num_returns_;
};

struct Policy final : TapePolicy {
  std::set<Label> discarded, moved;
  int num_saved = 0, num_loading = 0, num_returns = 0;

  bool discards(Label label) const override { return discarded.contains(label); }
  void saved(Record& record, Stream& stream) override {
    ++num_saved;
    if (!moved.contains(record.label)) return;
    for (const auto& tensor : record.tensors) {
      if (!tensor->on_device()) continue;
      const Tensor copy = Tensor::empty(stream, "elsewhere", tensor->shape(), tensor->dtype());
      stream.copy(copy, tensor->get(stream));
      tensor->move_to(std::make_unique<Elsewhere>(copy, &num_returns));
    }
  }
  void loading(Record&, Stream&) override { ++num_loading; }
};

class TapeTest : public CpuTest {
 protected:
  Tensor random(const Shape& shape, uint64_t seed) {
    return random_tensor(stream(), shape, DType::F32, seed);
  }
  int64_t bytes_of(const std::string& name) {
    stream().synchronize();
    for (const auto& usage : device().memory().table())
      if (usage.name == name) return usage.current;
    return 0;
  }
};

TEST(Label, NamesGoBothWays) {
  for (int i = 0; i <= static_cast<int>(Label::Layer); ++i) {
    const auto label = static_cast<Label>(i);
    EXPECT_NE(name_of(label), "?") << i;
    EXPECT_EQ(label_of(name_of(label)), label);
  }
  EXPECT_EQ(name_of(Label::MoeAct), "moe_act");
  EXPECT_EQ(label_of("no_such_module"), std::nullopt);
}

TEST_F(TapeTest, LoadsInTheOppositeOrder) {
  Tape tape;
  const Tensor a = random({2}, 1), b = random({3}, 2), c = random({4}, 3);
  tape.save(stream(), Label::AttnNorm, {a, b});
  tape.save(stream(), Label::QkvLinear, {c});
  EXPECT_EQ(tape.num_records(), 2u);
  const auto [loaded_c] = tape.load<1>(stream(), Label::QkvLinear);
  const auto [loaded_a, loaded_b] = tape.load<2>(stream(), Label::AttnNorm);
  EXPECT_TRUE(loaded_a.same_memory(a));
  EXPECT_TRUE(loaded_b.same_memory(b));
  EXPECT_TRUE(loaded_c.same_memory(c));
  EXPECT_TRUE(tape.empty());
}

TEST_F(TapeTest, RefusesAnotherLabelOrCount) {
  Tape tape;
  tape.save(stream(), Label::AttnNorm, {random({2}, 1)});
  EXPECT_THAT([&] { tape.load<1>(stream(), Label::MlpNorm); },
              ThrowsMessage<Error>(HasSubstr("load(mlp_norm) of 1 tensors, but the newest record "
                                             "is attn_norm with 1")));
  EXPECT_THAT([&] { tape.load<2>(stream(), Label::AttnNorm); },
              ThrowsMessage<Error>(HasSubstr("load(attn_norm) of 2 tensors, but the newest record "
                                             "is attn_norm with 1")));
  EXPECT_EQ(tape.num_records(), 1u);
  tape.load<1>(stream(), Label::AttnNorm);
  EXPECT_THAT([&] { tape.load<1>(stream(), Label::AttnNorm); },
              ThrowsMessage<Error>(HasSubstr("load(attn_norm) from an empty tape")));
}

TEST_F(TapeTest, OffSavesNothing) {
  Policy policy;
  policy.discarded = {Label::AttnNorm};
  Tape tape(Tape::Mode::Off, &policy);
  const Tensor x = random({2}, 1);
  tape.save(stream(), Label::AttnNorm, {x});
  tape.save_rebuildable(Label::AttnNorm, x, {x}, rebuild_tripled);
  EXPECT_FALSE(tape.recording());
  EXPECT_TRUE(tape.empty());
  EXPECT_EQ(policy.num_saved, 0);
}

TEST_F(TapeTest, UndefinedStaysUndefined) {
  Tape tape;
  const Tensor x = random({2}, 1);
  tape.save(stream(), Label::MoeAct, {Tensor(), x});
  const auto [none, some] = tape.load<2>(stream(), Label::MoeAct);
  EXPECT_FALSE(none.defined());
  EXPECT_TRUE(some.same_memory(x));
}

TEST_F(TapeTest, TellsThePolicy) {
  Policy policy;
  Tape tape(Tape::Mode::Record, &policy);
  tape.save(stream(), Label::AttnNorm, {random({2}, 1)});
  EXPECT_EQ(policy.num_saved, 1);
  EXPECT_EQ(policy.num_loading, 0);
  tape.load<1>(stream(), Label::AttnNorm);
  EXPECT_EQ(policy.num_loading, 1);
}

// One tensor in two records, once under another shape: moved once, brought back once, and each
// record gets its shape.
TEST_F(TapeTest, ATensorSavedTwiceIsOne) {
  Policy policy;
  policy.moved = {Label::AttnNorm, Label::QkvLinear};
  Tape tape(Tape::Mode::Record, &policy);
  const Tensor x = random({2, 6}, 1);
  tape.save(stream(), Label::AttnNorm, {x});
  tape.save(stream(), Label::QkvLinear, {x.reshape({12}), x.rows(0, 1)});
  EXPECT_EQ(bytes_of("elsewhere"), 48 + 24);  // the cut is a tensor of its own
  const auto [flat, cut] = tape.load<2>(stream(), Label::QkvLinear);
  const auto [back] = tape.load<1>(stream(), Label::AttnNorm);
  EXPECT_EQ(policy.num_returns, 2);
  EXPECT_EQ(flat.shape(), (Shape{12}));
  EXPECT_TRUE(flat.same_memory(back));
  expect_same_bits(stream(), back, x);
  expect_same_bits(stream(), cut, x.rows(0, 1));
}

TEST_F(TapeTest, MovedTensorsFreeTheirMemory) {
  Policy policy;
  policy.moved = {Label::AttnNorm};
  Tape tape(Tape::Mode::Record, &policy);
  Tensor y = tripled(stream(), random({100}, 1));
  const std::vector<float> values = read_back<float>(stream(), y);
  tape.save(stream(), Label::AttnNorm, {y});
  y = Tensor();
  EXPECT_EQ(bytes_of("tripled"), 0);
  const auto [back] = tape.load<1>(stream(), Label::AttnNorm);
  EXPECT_EQ(read_back<float>(stream(), back), values);
}

TEST_F(TapeTest, DiscardsAndRebuildsTheSameBits) {
  const Tensor x = random({5, 7}, 1);
  const Tensor expected = tripled(stream(), x);
  for (const bool discard : {false, true}) {
    Policy policy;
    if (discard) policy.discarded = {Label::Layernorm};
    Tape tape(Tape::Mode::Record, &policy);
    Tensor y = tripled(stream(), x);
    tape.save(stream(), Label::AttnNorm, {x});
    tape.save_rebuildable(Label::Layernorm, y, {x}, rebuild_tripled);
    tape.save(stream(), Label::QkvLinear, {y});
    y = Tensor();
    EXPECT_EQ(bytes_of("tripled"), discard ? 140 : 280);  // `expected` is one
    const auto [rebuilt] = tape.load<1>(stream(), Label::QkvLinear);
    expect_same_bits(stream(), rebuilt, expected);
    EXPECT_TRUE(tape.load<1>(stream(), Label::AttnNorm)[0].same_memory(x));
    EXPECT_TRUE(tape.empty());
  }
}

// The input of a rebuild was itself moved away: it is brought back first, once for both records.
TEST_F(TapeTest, RebuildsFromAnInputThatWasMoved) {
  Policy policy;
  policy.discarded = {Label::Layernorm};
  policy.moved = {Label::AttnNorm};
  Tape tape(Tape::Mode::Record, &policy);
  const Tensor x = random({5, 7}, 1);
  const Tensor y = tripled(stream(), x);
  tape.save(stream(), Label::AttnNorm, {x});
  tape.save_rebuildable(Label::Layernorm, y, {x}, rebuild_tripled);
  tape.save(stream(), Label::QkvLinear, {y});
  EXPECT_EQ(policy.num_returns, 0);
  const auto [rebuilt] = tape.load<1>(stream(), Label::QkvLinear);
  EXPECT_FALSE(rebuilt.same_memory(y));
  expect_same_bits(stream(), rebuilt, y);
  expect_same_bits(stream(), tape.load<1>(stream(), Label::AttnNorm)[0], x);
  EXPECT_EQ(policy.num_returns, 1);
}

TEST_F(TapeTest, RebuildsFromWhatWasRebuilt) {
  Policy policy;
  policy.discarded = {Label::Layernorm, Label::MoeAct};
  Tape tape(Tape::Mode::Record, &policy);
  const Tensor x = random({9}, 1), y = tripled(stream(), x), z = tripled(stream(), y);
  tape.save(stream(), Label::AttnNorm, {x});
  tape.save_rebuildable(Label::Layernorm, y, {x}, rebuild_tripled);
  tape.save_rebuildable(Label::MoeAct, z, {y}, rebuild_tripled);
  tape.save(stream(), Label::QkvLinear, {z});
  expect_same_bits(stream(), tape.load<1>(stream(), Label::QkvLinear)[0], z);
}

TEST_F(TapeTest, RebuildGetsUndefinedInputsAsUndefined) {
  Policy policy;
  policy.discarded = {Label::MoeAct};
  Tape tape(Tape::Mode::Record, &policy);
  const Tensor x = random({9}, 1), y = tripled(stream(), x);
  tape.save(stream(), Label::ExpertFc1, {x, Tensor()});
  tape.save_rebuildable(Label::MoeAct, y, {x, Tensor()},
                        [](Stream& stream, std::span<const Tensor> inputs) {
                          CHECK(!inputs[1].defined(), "the second input appeared");
                          return tripled(stream, inputs[0]);
                        });
  tape.save(stream(), Label::Mlp, {y});
  expect_same_bits(stream(), tape.load<1>(stream(), Label::Mlp)[0], y);
}

TEST_F(TapeTest, RefusesToRebuildFromWhatIsNotOnTheTape) {
  Policy policy;
  policy.discarded = {Label::Layernorm};
  Tape tape(Tape::Mode::Record, &policy);
  const Tensor x = random({9}, 1), other = random({9}, 2);
  tape.save(stream(), Label::AttnNorm, {x});
  EXPECT_THAT([&] { tape.save_rebuildable(Label::Layernorm, x, {other}, rebuild_tripled); },
              ThrowsMessage<Error>(HasSubstr("an input of a rebuildable layernorm is not on the "
                                             "tape")));
}

TEST_F(TapeTest, RefusesARebuildOfAnotherSize) {
  Policy policy;
  policy.discarded = {Label::Layernorm};
  Tape tape(Tape::Mode::Record, &policy);
  const Tensor x = random({9}, 1), y = tripled(stream(), x);
  tape.save(stream(), Label::AttnNorm, {x});
  tape.save_rebuildable(Label::Layernorm, y, {x}, [](Stream&, std::span<const Tensor> inputs) {
    return inputs[0].rows(0, 4);
  });
  tape.save(stream(), Label::QkvLinear, {y});
  EXPECT_THAT([&] { tape.load<1>(stream(), Label::QkvLinear); },
              ThrowsMessage<Error>(HasSubstr("a tensor came back to the tape as [4]")));
}

}  // namespace
}  // namespace ferry::testing
