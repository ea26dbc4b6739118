#pragma once

// The tables [model] and [model.mla] of a configuration. The members have the names of the keys.

#include <cstdint>
#include <string>
#include <string_view>

#include "core/dtype.h"
#include "core/fields.h"
#include "moe/moe_config.h"

namespace ferry {

/// [model.mla]: widths of multi-head latent attention.
struct MlaConfig {
  int64_t q_lora_rank = 0;
  int64_t kv_lora_rank = 512;
  int64_t qk_nope_dim = 128;
  int64_t qk_rope_dim = 64;
  int64_t v_head_dim = 128;

  template <class Visitor>
  static void visit_fields(Visitor&& visit) {
    visit(Field{.key = "q_lora_rank",
                .doc = "rank of the query projection",
                .range = closed(0, 1e6),
                .zero = "a full projection"},
          &MlaConfig::q_lora_rank);
    visit(Field{.key = "kv_lora_rank",
                .doc = "rank of the key and value projection",
                .range = closed(1, 1e6)},
          &MlaConfig::kv_lora_rank);
    visit(Field{.key = "qk_nope_dim",
                .doc = "channels of a query or key head without rotary embedding",
                .range = closed(1, 1e6)},
          &MlaConfig::qk_nope_dim);
    visit(Field{.key = "qk_rope_dim",
                .doc = "channels of a query or key head with rotary embedding",
                .range = closed(2, 1e6)},
          &MlaConfig::qk_rope_dim);
    visit(Field{.key = "v_head_dim", .doc = "channels of a value head", .range = closed(1, 1e6)},
          &MlaConfig::v_head_dim);
  }
};

/// [model]: a decoder-only transformer: RMSNorm, rotary embedding, SwiGLU, no biases.
struct ModelConfig {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t ffn = 0;
  int64_t vocab = 0;
  int64_t seq = 0;
  std::string norm = "rmsnorm";
  double norm_eps = 1e-5;
  double rope_theta = 10000.0;
  std::string qk_norm = "none";
  bool tie_embeddings = true;
  double init_std = 0.02;
  double hidden_dropout = 0.0;
  double attention_dropout = 0.0;
  std::string attention = "gqa";
  std::string precision = "bf16";
  MlaConfig mla;

  /// Channels of all query heads, and of all key (or value) heads.
  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }

  template <class Visitor>
  static void visit_fields(Visitor&& visit) {
    visit(Field{.key = "layers",
                .doc = "transformer layers",
                .range = closed(1, 1e5),
                .required = true},
          &ModelConfig::layers);
    visit(Field{.key = "hidden",
                .doc = "width of the residual stream",
                .range = closed(1, 1e7),
                .required = true},
          &ModelConfig::hidden);
    visit(Field{.key = "heads", .doc = "query heads", .range = closed(1, 1e6), .required = true},
          &ModelConfig::heads);
    visit(Field{.key = "kv_heads",
                .doc = "key and value heads",
                .range = closed(0, 1e6),
                .zero = "as many as heads"},
          &ModelConfig::kv_heads);
    visit(Field{.key = "head_dim",
                .doc = "channels of a head",
                .range = closed(0, 1e6),
                .zero = "hidden / heads"},
          &ModelConfig::head_dim);
    visit(Field{.key = "ffn",
                .doc = "inner width of a dense MLP",
                .range = closed(0, 1e7),
                .zero = "8/3 of hidden, rounded down to a multiple of 64"},
          &ModelConfig::ffn);
    visit(Field{.key = "vocab",
                .doc = "rows of the embedding; at least the size of the tokenizer",
                .range = closed(2, 1e8),
                .required = true},
          &ModelConfig::vocab);
    visit(
        Field{.key = "seq", .doc = "tokens of a sample", .range = closed(1, 1e8), .required = true},
        &ModelConfig::seq);
    visit(Field{.key = "norm", .doc = "normalisation", .allowed = {"rmsnorm"}}, &ModelConfig::norm);
    visit(Field{.key = "norm_eps", .doc = "added to the mean square", .range = above(0)},
          &ModelConfig::norm_eps);
    visit(Field{.key = "rope_theta", .doc = "base of the rotary embedding", .range = above(0)},
          &ModelConfig::rope_theta);
    visit(Field{.key = "qk_norm",
                .doc = "RMSNorm of queries and keys before the rotary embedding: one weight for "
                       "every channel of a head (head; also written true), or of all heads (full)",
                .allowed = {"none", "head", "full"},
                .if_true = "head"},
          &ModelConfig::qk_norm);
    visit(
        Field{.key = "tie_embeddings", .doc = "the output layer uses the weight of the embedding"},
        &ModelConfig::tie_embeddings);
    visit(Field{.key = "init_std",
                .doc = "standard deviation of initial weights; layers that write to the residual "
                       "stream use it divided by sqrt(2 * layers)",
                .range = above(0)},
          &ModelConfig::init_std);
    visit(Field{.key = "hidden_dropout",
                .doc = "dropout on what each block adds to the residual stream",
                .range = half_open(0, 1)},
          &ModelConfig::hidden_dropout);
    visit(Field{.key = "attention_dropout",
                .doc = "dropout on attention probabilities",
                .range = half_open(0, 1)},
          &ModelConfig::attention_dropout);
    visit(Field{.key = "attention",
                .doc = "grouped-query or multi-head latent attention",
                .allowed = {"gqa", "mla"}},
          &ModelConfig::attention);
    visit(Field{.key = "precision",
                .doc = "of weights and activations; master weights, gradients and moments are "
                       "fp32 (fp64 for fp64, which is for the CPU only)",
                .allowed = {"bf16", "fp32", "fp64"}},
          &ModelConfig::precision);
    visit(Table{.key = "mla", .doc = "Widths of multi-head latent attention."}, &ModelConfig::mla);
  }
};

/// Everything that decides which tensors a model has, and how it computes.
struct GptConfig {
  ModelConfig model;
  MoeConfig moe;
  bool deterministic = true;  // the same bits in every run
};

/// Fills what was left at 0 from other values: kv_heads, head_dim, model.ffn, moe.ffn. Returns the
/// paths that it filled.
std::vector<std::string> derive_defaults(ModelConfig& model, MoeConfig& moe);

/// The dtype of weights and activations named by `precision`: F32 for "fp32", ...
DType dtype_of(std::string_view precision);

}  // namespace ferry
