#include "pipeline/links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/check.h"
#include "core/device.h"
#include "core/host_copy.h"
#include "tests/support/run_ranks.h"

namespace ferry::testing {
namespace {

std::string name_of(const PipelineLink* link) { return link ? link->group->name() : "none"; }

std::string names(PipelineLinks& links) {
  return concat("in: ", name_of(links.activations_in()), ", ", name_of(links.gradients_in()),
                "; out: ", name_of(links.activations_out()), ", ", name_of(links.gradients_out()));
}

TEST(PipelineLinks, NeighboursHaveFour) {
  run_ranks(3, [](Group& group, Control&) {
    const auto device = make_cpu_device();
    PipelineLinks links(group, *device, 1);
    EXPECT_EQ(links.rank(), group.rank());
    EXPECT_EQ(links.size(), 3);
    const std::string expected[] = {
        "in: none, world gradients 1>0; out: world activations 0>1, none",
        "in: world activations 0>1, world gradients 2>1; "
        "out: world activations 1>2, world gradients 1>0",
        "in: world activations 1>2, none; out: none, world gradients 2>1"};
    EXPECT_EQ(names(links), expected[group.rank()]);
  });
}

TEST(PipelineLinks, ChunksCloseTheRing) {
  for (const int size : {2, 3, 4, 5})
    run_ranks(size, [&](Group& group, Control&) {
      const auto device = make_cpu_device();
      PipelineLinks links(group, *device, 2);
      EXPECT_EQ(links.num_chunks(), 2);
      const int rank = group.rank(), before = (rank + size - 1) % size, behind = (rank + 1) % size;
      EXPECT_EQ(names(links),
                concat("in: world activations ", before, '>', rank, ", world gradients ", behind,
                       '>', rank, "; out: world activations ", rank, '>', behind,
                       ", world gradients ", rank, '>', before));
    });
}

TEST(PipelineLinks, OneRankHasNone) {
  const auto device = make_cpu_device();
  const auto solo = make_solo_group();
  PipelineLinks links(*solo, *device, 3);
  EXPECT_EQ(links.size(), 1);
  EXPECT_EQ(names(links), "in: none, none; out: none, none");
  EXPECT_THROW(PipelineLinks(*solo, *device, 0), Error);
}

// Every rank first waits for a gradient, on that link alone; it comes after the activation has gone
// all the way around the ring.
TEST(PipelineLinks, NoMessageWaitsForAnother) {
  for (const int size : {2, 3, 4})
    run_ranks(size, [&](Group& group, Control&) {
      const auto device = make_cpu_device();
      const auto stream = device->make_stream("rank");
      PipelineLinks links(group, *device, 2);
      const auto message = [&] { return Tensor::empty(*stream, "message", {1}, DType::I32); };
      const auto receive = [](const PipelineLink& link, const Tensor& tensor) {
        link.group->receive(*link.stream, tensor, link.peer);
        return link.stream->record();
      };
      const auto send = [](const PipelineLink& link, const Tensor& tensor) {
        link.group->send(*link.stream, tensor, link.peer);
      };
      const Tensor gradient = message(), activation = message();
      const Event gradient_ready = receive(*links.gradients_in(), gradient);
      const Tensor own = from_host(*stream, "own", std::vector<int32_t>{group.rank()}, {1});
      stream->synchronize();
      send(*links.activations_out(), own);
      const Event activation_ready = receive(*links.activations_in(), activation);
      links.gradients_out()->stream->wait(activation_ready);
      send(*links.gradients_out(), activation);
      gradient_ready.wait_host();
      activation_ready.wait_host();
      // From the rank behind, which had it from here.
      EXPECT_EQ(*gradient.data<int32_t>(), group.rank());
      EXPECT_EQ(*activation.data<int32_t>(), (group.rank() + size - 1) % size);
      links.activations_out()->stream->synchronize();
      links.gradients_out()->stream->synchronize();
    });
}

}  // namespace
}  // namespace ferry::testing
