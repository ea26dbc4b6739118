// Stands in for the CUDA kernels where Ferry is built without CUDA. No CUDA device can be made
// there, so nothing calls these.

#include "core/ops/adamw_kernels.h"
#include "core/ops/attention_kernels.h"
#include "core/ops/cross_entropy_kernels.h"
#include "core/ops/elementwise_kernels.h"
#include "core/ops/embedding_kernels.h"
#include "core/ops/gemm_kernels.h"
#include "core/ops/grouped_gemm_kernels.h"
#include "core/ops/pages_kernels.h"
#include "core/ops/permute_kernels.h"
#include "core/ops/qk_norm_kernels.h"
#include "core/ops/reduce_kernels.h"
#include "core/ops/rmsnorm_kernels.h"
#include "core/ops/rope_kernels.h"
#include "core/ops/row_capacity_kernels.h"
#include "core/ops/sgd_kernels.h"
#include "core/ops/split_gemm_kernels.h"
#include "core/ops/swiglu_kernels.h"
#include "core/ops/topk_gate_kernels.h"

namespace ferry::cuda {
namespace {

[[noreturn]] void missing(const char* op) {
  fail(ExitCode::Internal, op, ": this build of ferry has no CUDA");
}

}  // namespace

void adamw(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
           const AdamwSettings&) {
  missing("adamw");
}
void attention_forward(Stream&, const Tensor&, const Tensor&, const Tensor&, const AttentionDims&,
                       double, const AttentionDropout&) {
  missing("attention_forward");
}
void attention_backward(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                        const Tensor&, const AttentionDims&, double, const AttentionDropout&,
                        bool) {
  missing("attention_backward");
}
void cross_entropy(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                   const Tensor&, bool) {
  missing("cross_entropy");
}
void cross_entropy_part(Stream&, const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t) {
  missing("cross_entropy_part");
}
void cross_entropy_join(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                        const Tensor&, const Tensor&, int64_t, int64_t, bool) {
  missing("cross_entropy_join");
}
void add(Stream&, const Tensor&, const Tensor&, const Tensor&) { missing("add"); }
void accumulate(Stream&, const Tensor&, const Tensor&) { missing("accumulate"); }
void scale(Stream&, const Tensor&, double) { missing("scale"); }
void cast(Stream&, const Tensor&, const Tensor&) { missing("cast"); }
void fill(Stream&, const Tensor&, double) { missing("fill"); }
void fill_normal_rows(Stream&, const Tensor&, double, const RandomKey&, uint64_t, int64_t) {
  missing("fill_normal_rows");
}
void dropout(Stream&, const Tensor&, const Tensor&, double, const RandomKey&, uint64_t) {
  missing("dropout");
}
void sigmoid_gate_forward(Stream&, const Tensor&, const Tensor&, const Tensor&) {
  missing("sigmoid_gate_forward");
}
void sigmoid_gate_backward(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                           const Tensor&) {
  missing("sigmoid_gate_backward");
}
void embedding_forward(Stream&, const Tensor&, const Tensor&, const Tensor&,
                       const VocabularyRows&) {
  missing("embedding_forward");
}
void embedding_backward(Stream&, const Tensor&, const Tensor&, const Tensor&,
                        const VocabularyRows&) {
  missing("embedding_backward");
}
void gemm(Stream&, const Tensor&, const Tensor&, Transpose, const Tensor&, Transpose, double) {
  missing("gemm");
}
void gemm_batched(Stream&, const Tensor&, const Tensor&, Transpose, const Tensor&, Transpose,
                  double) {
  missing("gemm_batched");
}
void grouped_gemm_forward(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  missing("grouped_gemm_forward");
}
bool grouped_gemm_swiglu_forward(Stream&, const Tensor&, const Tensor&, const Rows&, const Tensor&,
                                 const Tensor&, const Tensor&) {
  missing("grouped_gemm_swiglu_forward");
}
bool grouped_gemm_swiglu_backward(Stream&, const Tensor&, const Tensor&, const Tensor&,
                                  const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  missing("grouped_gemm_swiglu_backward");
}
void grouped_gemm_dgrad(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  missing("grouped_gemm_dgrad");
}
void grouped_gemm_wgrad(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  missing("grouped_gemm_wgrad");
}
void reset_pages(Stream&, const PagePool&) { missing("reset_pages"); }
void stash_pages(Stream&, const PagePool&, const PageList&, const Tensor&, const Tensor&,
                 const Tensor&) {
  missing("stash_pages");
}
void unstash_pages(Stream&, const Tensor&, const PagePool&, const PageList&, const Tensor&) {
  missing("unstash_pages");
}
void make_routing_plan(Stream&, const RoutingPlan&, const Tensor&) { missing("make_routing_plan"); }
void find_destinations(Stream&, const Tensor&, const Tensor&, int64_t, int64_t, int64_t) {
  missing("find_destinations");
}
void localise_experts(Stream&, const Tensor&, const Tensor&, int64_t, int64_t) {
  missing("localise_experts");
}
void permute_rows(Stream&, const Tensor&, const Tensor&, const RoutingPlan&) {
  missing("permute_rows");
}
void gather_rows(Stream&, const Tensor&, const Tensor&, const Tensor&, int64_t) {
  missing("gather_rows");
}
void combine_rows(Stream&, const Tensor&, const Tensor&, const Tensor&, const RoutingPlan&) {
  missing("combine_rows");
}
void gather_scalars(Stream&, const Tensor&, const Tensor&, const Tensor&) {
  missing("gather_scalars");
}
void qk_norm_forward(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                     const Tensor&, const AttentionDims&, QkNormKind, double) {
  missing("qk_norm_forward");
}
void qk_norm_backward(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                      const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                      const AttentionDims&, QkNormKind) {
  missing("qk_norm_backward");
}
void qk_norm_squares(Stream&, const Tensor&, const Tensor&, const AttentionDims&) {
  missing("qk_norm_squares");
}
void qk_norm_apply(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                   const Tensor&, const Tensor&, const AttentionDims&, int64_t, double) {
  missing("qk_norm_apply");
}
void qk_norm_products(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                      const Tensor&, const AttentionDims&) {
  missing("qk_norm_products");
}
void qk_norm_apply_backward(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                            const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                            const Tensor&, const AttentionDims&, int64_t) {
  missing("qk_norm_apply_backward");
}
void sum_squares(Stream&, const Tensor&, const Tensor&) { missing("sum_squares"); }
void mean_square(Stream&, const Tensor&, const Tensor&, double) { missing("mean_square"); }
void column_sums(Stream&, const Tensor&, const Tensor&) { missing("column_sums"); }
void accumulate_counts(Stream&, const Tensor&, const Tensor&) { missing("accumulate_counts"); }
void rmsnorm_forward(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, double) {
  missing("rmsnorm_forward");
}
void add_rmsnorm_forward(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                         const Tensor&, const Tensor&, double) {
  missing("add_rmsnorm_forward");
}
void rmsnorm_backward(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                      const Tensor&, const Tensor&, const Tensor&) {
  missing("rmsnorm_backward");
}
void rope_table(Stream&, const Tensor&, const Tensor&, double) { missing("rope_table"); }
void rope(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const AttentionDims&,
          Rotation) {
  missing("rope");
}
void limit_rows(Stream&, const Tensor&, const Tensor&, const RoutingPlan&, int64_t) {
  missing("limit_rows");
}
void sgd(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const SgdSettings&) {
  missing("sgd");
}
void split_rows(Stream&, const Tensor&, const Tensor&, SplitOrder) { missing("split_rows"); }
void sum_places(Stream&, const Tensor&, const Tensor&) { missing("sum_places"); }
void swiglu_forward(Stream&, const Tensor&, const Tensor&, const Tensor&) {
  missing("swiglu_forward");
}
void swiglu_backward(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                     const Tensor&) {
  missing("swiglu_backward");
}
void topk_gate_forward(Stream&, const GateResult&, const Tensor&, bool) {
  missing("topk_gate_forward");
}
void topk_gate_backward(Stream&, const Tensor&, const Tensor&, const GateResult&, const Tensor&,
                        double, bool) {
  missing("topk_gate_backward");
}
void load_balance_loss(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t,
                       int64_t, double) {
  missing("load_balance_loss");
}

}  // namespace ferry::cuda
