#!/usr/bin/env python3
"""Transformers' side of tests/e2e/huggingface.sh; for developers who have torch and transformers.

    huggingface_loss.py make DIR KIND           a tiny random model: mixtral, qwen3_moe or olmoe
    huggingface_loss.py loss DIR TOKENS...      the mean loss of each file of uint16 tokens, one a line
"""

import array
import sys

import torch
import transformers

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


def loss(directory, files):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        directory, torch_dtype=torch.float32, attn_implementation="eager",
        output_loading_info=True)
    wrong = {key: value for key, value in report.items() if value}
    if wrong:
        sys.exit(f"{directory} did not load as it is: {wrong}")
    model.eval()
    for file in files:
        tokens = array.array("H")
        with open(file, "rb") as stream:
            tokens.frombytes(stream.read())
        ids = torch.tensor([list(tokens)])
        with torch.no_grad():
            logits = model(ids[:, :-1]).logits[0].double()
        print(repr(torch.nn.functional.cross_entropy(logits, ids[0, 1:]).item()))


def main():
    torch.set_num_threads(1)
    command, directory, *more = sys.argv[1:]
    if command == "make":
        make(directory, *more)
    else:
        loss(directory, more)


if __name__ == "__main__":
    main()
