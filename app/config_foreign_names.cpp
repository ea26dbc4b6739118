// Names that other programs give to our keys, so that people who know those are led here.

#include <span>

#include "app/config_file.h"

namespace ferry {

namespace {

constexpr ForeignName kForeignNames[] = {
    {"activation_offload_fraction", "activation_offload.fraction"},
    {"adam_eps", "optimizer.eps"},
    {"clip_grad", "optimizer.clip_norm"},
    {"context_parallel_size", "parallel.context"},
    {"cpu_offloading_num_layers", "layer_offload.layers"},
    {"cuda_graph_impl", "cuda_graph.impl"},
    {"dump_param_to_param_group_map", "optimizer.offload.dump_param_groups"},
    {"expert_model_parallel_size", "parallel.expert"},
    {"expert_tensor_parallel_size", "parallel.expert_tensor"},
    {"ffn_hidden_size", "model.ffn"},
    {"fine_grained_activation_offloading", "activation_offload.enabled"},
    {"global_batch_size", "batch.global"},
    {"hidden_size", "model.hidden"},
    {"init_method_std", "model.init_std"},
    {"intermediate_size", "model.ffn"},
    {"kv_channels", "model.head_dim"},
    {"lr_decay_iters", "optimizer.decay_steps"},
    {"lr_decay_style", "optimizer.schedule"},
    {"lr_warmup_iters", "optimizer.warmup_steps"},
    {"lr_wsd_decay_iters", "optimizer.wsd_decay"},
    {"micro_batch_size", "batch.micro"},
    {"min_offloaded_tensor_size", "activation_offload.min_tensor_elements"},
    {"moe_aux_loss_coeff", "moe.router.aux_coeff"},
    {"moe_expert_capacity_factor", "moe.capacity_factor"},
    {"moe_ffn_hidden_size", "moe.ffn"},
    {"moe_intermediate_size", "moe.ffn"},
    {"moe_layer_freq", "moe.layer_freq"},
    {"moe_paged_stash", "paged_stash.enabled"},
    {"moe_router_bias_update_rate", "moe.router.bias_rate"},
    {"moe_router_group_topk", "moe.router.group_topk"},
    {"moe_router_load_balancing_type", "moe.router.balance"},
    {"moe_router_num_groups", "moe.router.groups"},
    {"moe_router_pre_softmax", "moe.router.pre_softmax"},
    {"moe_router_score_function", "moe.router.score"},
    {"moe_router_topk", "moe.top_k"},
    {"moe_shared_expert_intermediate_size", "moe.shared_ffn"},
    {"moe_token_dispatcher_type", "moe.dispatcher"},
    {"moe_z_loss_coeff", "moe.router.z_coeff"},
    {"n_routed_experts", "moe.experts"},
    {"norm_epsilon", "model.norm_eps"},
    {"normalization", "model.norm"},
    {"num_attention_heads", "model.heads"},
    {"num_experts", "moe.experts"},
    {"num_experts_per_tok", "moe.top_k"},
    {"num_hidden_layers", "model.layers"},
    {"num_key_value_heads", "model.kv_heads"},
    {"num_layers", "model.layers"},
    {"num_local_experts", "moe.experts"},
    {"num_moe_experts", "moe.experts"},
    {"num_query_groups", "model.kv_heads"},
    {"offload_modules", "activation_offload.modules"},
    {"optimizer_cpu_offload", "optimizer.offload.enabled"},
    {"optimizer_offload_fraction", "optimizer.offload.fraction"},
    {"overlap_cpu_optimizer_d2h_h2d", "optimizer.offload.overlap_d2h_h2d"},
    {"pin_cpu_grads", "optimizer.offload.pin_grads"},
    {"pin_cpu_params", "optimizer.offload.pin_params"},
    {"pipeline_model_parallel_size", "parallel.pipeline"},
    {"qk_layernorm", "model.qk_norm"},
    {"recompute_granularity", "recompute.granularity"},
    {"recompute_method", "recompute.method"},
    {"recompute_modules", "recompute.modules"},
    {"recompute_num_layers", "recompute.num_layers"},
    {"rms_norm_eps", "model.norm_eps"},
    {"rotary_base", "model.rope_theta"},
    {"router_aux_loss_coef", "moe.router.aux_coeff"},
    {"save_interval", "checkpoint.every"},
    {"seq_length", "model.seq"},
    {"sequence_parallel", "parallel.sequence"},
    {"sgd_momentum", "optimizer.momentum"},
    {"tensor_model_parallel_size", "parallel.tensor"},
    {"tie_word_embeddings", "model.tie_embeddings"},
    {"train_iters", "run.steps"},
    {"untie_embeddings_and_output_weights", "model.tie_embeddings"},
    {"use_distributed_optimizer", "optimizer.distributed"},
    {"use_precision_aware_optimizer", "optimizer.precision_aware"},
    {"vocab_size", "model.vocab"},
};

}  // namespace

std::span<const ForeignName> foreign_names() { return kForeignNames; }

}  // namespace ferry
