#!/usr/bin/env python3
"""Transformers' side of tests/e2e/huggingface.sh; for developers who have torch and transformers.

    huggingface_logits.py make DIR KIND     a tiny random model: mixtral, qwen3_moe or olmoe
    huggingface_logits.py compare DIR TOKENS NPY ...
        the model's logits of each file of uint16 tokens (the last is only a label) beside those in
        the file after it, as `ferry eval --logits` writes them
"""

import array
import sys

import numpy
import torch
import transformers

# Of absolute values.
LIMIT = 1e-4

SIZES = dict(
    vocab_size=264, hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=32, rms_norm_eps=1e-5, rope_theta=5000.0,
    num_experts_per_tok=2, pad_token_id=None, bos_token_id=None, eos_token_id=None)


def make(directory, kind):
    if kind == "mixtral":
        config = transformers.MixtralConfig(
            **SIZES, num_local_experts=4, intermediate_size=48, tie_word_embeddings=False)
    elif kind == "qwen3_moe":
        config = transformers.Qwen3MoeConfig(
            **SIZES, head_dim=24, num_experts=4, intermediate_size=80, moe_intermediate_size=48,
            mlp_only_layers=[1], norm_topk_prob=True, tie_word_embeddings=True)
    else:
        config = transformers.OlmoeConfig(**SIZES, num_experts=4, intermediate_size=48)
    torch.manual_seed(11)
    model = transformers.AutoModelForCausalLM.from_config(config, torch_dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    model.save_pretrained(directory, safe_serialization=True, max_shard_size="200KB")


def compare(directory, pairs):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        directory, torch_dtype=torch.float32, attn_implementation="eager",
        output_loading_info=True)
    wrong = {key: value for key, value in report.items() if value}
    if wrong:
        sys.exit(f"{directory} did not load as it is: {wrong}")
    model.eval()
    for file, logits_file in zip(pairs[::2], pairs[1::2], strict=True):
        tokens = array.array("H")
        with open(file, "rb") as stream:
            tokens.frombytes(stream.read())
        ids = torch.tensor([list(tokens)])
        with torch.no_grad():
            theirs = model(ids[:, :-1]).logits
        ours = torch.from_numpy(numpy.load(logits_file))
        if ours.dtype != torch.float32 or ours.shape != theirs.shape:
            sys.exit(f"{logits_file}: {ours.dtype} {ours.shape}, not {theirs.shape}")
        worst = (ours - theirs).abs().max().item()
        print(f"{file}: largest difference {worst:.3g} of logits up to {theirs.abs().max():.3g}")
        # Logits that hardly vary would prove nothing.
        if not worst <= LIMIT or theirs.std() < 1000 * LIMIT:
            sys.exit(f"{file}: {worst} is more than {LIMIT}, or logits vary by {theirs.std()} only")


def main():
    torch.set_num_threads(1)
    command, directory, *more = sys.argv[1:]
    if command == "make":
        make(directory, *more)
    else:
        compare(directory, more)


if __name__ == "__main__":
    main()
