#pragma once

// One transformer layer with pre-norm residual branches:
//   x1 = x + dropout(attention(norm(x)));  y = x1 + dropout(mlp(norm(x1)))

#include <memory>
#include <string>

#include "core/module.h"
#include "layers/dropout.h"
#include "layers/norm.h"
#include "layers/tensor_parallel.h"

namespace ferry {

struct BlockConfig {
  int64_t hidden = 0;
  double norm_eps = 1e-5;
  double dropout = 0;  // of both residual branches
  DType dtype = DType::F32;
};

class Block final : public Module {
 public:
  /// `name`: "layers/7". `mlp` is a dense MLP or a MoE layer: the block cannot tell. x and y are
  /// what lies between the regions of `tensor`.
  Block(const std::string& name, const BlockConfig& config, std::unique_ptr<Module> attention,
        std::unique_ptr<Module> mlp, const TensorParallel& tensor = {});

  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  void visit(const ParameterVisitor& visitor) override;

 private:
  RmsNorm attn_norm_;
  std::unique_ptr<Module> attention_;
  Dropout attn_dropout_;
  RmsNorm mlp_norm_;
  std::unique_ptr<Module> mlp_;
  Dropout mlp_dropout_;
};

}  // namespace ferry
