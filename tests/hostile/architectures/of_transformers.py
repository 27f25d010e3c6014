"""Models of transformers with small sizes that the seed draws: one case a model type."""

from __future__ import annotations

import functools
import importlib.util
import random
from typing import Any

import torch

from hostile.table import ABSENT, BATCH, Spec, generator, put, seed, train

# Head of the auto class -> types of models.
TYPES = {
    "CausalLM": """
        gpt2 gpt_neo gptj gpt_neox codegen gpt_bigcode bloom opt llama mistral qwen2 qwen3 gemma
        gemma2 gemma3_text phi phi3 stablelm olmo olmo2 granite starcoder2 cohere cohere2 falcon mpt
        mamba mamba2 rwkv persimmon xglm biogpt openai-gpt xlnet ctrl nemotron helium glm glm4
        smollm3 ernie4_5 exaone4 seed_oss arcee apertus bitnet diffllama mixtral qwen2_moe qwen3_moe
        olmoe phimoe granitemoe deepseek_v2 deepseek_v3 gpt_oss recurrent_gemma falcon_mamba
        """,
    "MaskedLM": """
        bert roberta xlm-roberta distilbert albert electra deberta deberta-v2 mpnet camembert
        convbert roformer fnet funnel mobilebert squeezebert longformer big_bird nystromformer ibert
        layoutlm megatron-bert rembert xlm flaubert data2vec-text ernie esm modernbert
        roberta-prelayernorm xmod
        """,
    "Seq2SeqLM": """
        t5 mt5 umt5 longt5 bart mbart pegasus pegasus_x blenderbot blenderbot-small m2m_100 marian
        led plbart prophetnet switch_transformers bigbird_pegasus fsmt nllb-moe
        """,
    "ImageClassification": """
        vit beit swin swinv2 resnet regnet mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2
        poolformer pvt pvt_v2 levit cvt segformer dinov2 focalnet efficientnet bit hiera vit_msn
        data2vec-vision imagegpt swiftformer
        """,
}
SMALL = {"depths": [1, 2, 2, 1], "hidden_sizes": [8, 16, 24, 32], "embedding_size": 8}
# What the sizes below do not make small, or not consistent.
# fmt: off
MORE: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4},
    "gptj": {"rotary_dim": 4},
    "codegen": {"rotary_dim": 4, "n_embd": 32, "n_head": 4, "hidden_size": 32, "num_attention_heads": 4},
    "mamba2": {
        "num_heads": 4,
        "head_dim": 8,
        "hidden_size": 16,
        "n_groups": 1,
        "state_size": 8,
        "chunk_size": 8,
    },
    "mpt": {"max_seq_len": 64},
    "deepseek_v2": {
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 8,
    },
    "deepseek_v3": {
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 4,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 8,
    },
    "recurrent_gemma": {"lru_width": 16, "hidden_size": 16, "num_attention_heads": 2},
    "funnel": {"block_sizes": [2, 2], "d_head": 8, "d_inner": 32},
    "mobilebert": {"embedding_size": 16, "true_hidden_size": 16, "intra_bottleneck_size": 16},
    "longformer": {"attention_window": 4},
    "big_bird": {"attention_type": "original_full"},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "led": {"attention_window": 4},
    "pegasus_x": {"block_size": 4, "num_global_tokens": 2},
    "fsmt": {"src_vocab_size": 40, "tgt_vocab_size": 40, "langs": ["en", "de"]},
    "prophetnet": {"num_encoder_layers": 3, "num_decoder_layers": 3, "ngram": 2},
    "switch_transformers": {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
    "xmod": {"languages": ["en"], "default_language": "en"},
    "xlm": {"n_langs": 1},
    "convbert": {"head_ratio": 2},
    "swin": {"depths": [2, 2], "num_heads": [2, 2], "embed_dim": 16, "patch_size": 2, "window_size": 4},
    "swinv2": {"depths": [2, 2], "num_heads": [2, 2], "embed_dim": 16, "patch_size": 2, "window_size": 4},
    "resnet": SMALL,
    "regnet": SMALL,
    "bit": {**SMALL, "num_groups": 4},
    "poolformer": {**SMALL, "depths": [1, 1, 2, 1]},
    "focalnet": {"depths": [1, 1, 2, 1], "embed_dim": 8, "patch_size": 2},
    "segformer": {
        "depths": [1, 1, 1, 1],
        "hidden_sizes": [8, 16, 24, 32],
        "num_attention_heads": [1, 2, 3, 4],
        "decoder_hidden_size": 8,
    },
    "pvt": {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32], "num_attention_heads": [1, 2, 3, 4]},
    "pvt_v2": {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32], "num_attention_heads": [1, 2, 3, 4]},
    "levit": {
        "drop_path_rate": 0,
        "hidden_sizes": [16, 24, 32],
        "num_attention_heads": [2, 3, 4],
        "depths": [1, 1, 1],
        "key_dim": [8, 8, 8],
    },
    "cvt": {"drop_path_rate": [0.0, 0.0, 0.1], "embed_dim": [8, 16, 24], "num_heads": [1, 2, 3], "depth": [1, 1, 2]},
    "hiera": {
        "patch_size": [7, 7],
        "embed_dim": 8,
        "depths": [1, 1, 2, 1], "num_heads": [1, 1, 2, 2],
        "image_size": [32, 32],
    },
    "imagegpt": {"n_embd": 16, "n_head": 2, "n_layer": 4, "vocab_size": 40, "n_positions": 64},
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320},
    "swiftformer": {"depths": [1, 1, 2, 1], "embed_dims": [8, 16, 24, 32]},
    "mobilevit": {
        "hidden_sizes": [16, 16, 16],
        "neck_hidden_sizes": [8, 8, 16, 16, 16, 16, 32],
        "image_size": 64,
        "patch_size": 2,
    },
    "mobilevitv2": {"image_size": 64, "patch_size": 2},
}
# fmt: on


def sizes(name: str) -> dict[str, Any]:
    """Sizes of a model type, by all names that configurations have for them."""
    draw = random.Random(f"{seed()} {name}")
    heads, layers = draw.choice([2, 4]), draw.choice([4, 5, 6])
    width, inner = 8 * heads, 8 * heads * draw.choice([2, 3])
    drop, kept = draw.choice([0.0, 0.1]), draw.choice([1, 2, heads])
    named = {
        "hidden_size d_model n_embd dim embed_dim emb_dim dim_model embedding_size attention_hidden_size": width,
        "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers": layers,
        "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads "
        "num_encoder_attention_heads num_decoder_attention_heads": heads,
        "num_key_value_heads": kept,
        "head_dim d_kv state_size": 8,
        "intermediate_size n_inner d_ff encoder_ffn_dim decoder_ffn_dim ffn_dim hidden_dim dff moe_intermediate_size "
        "shared_expert_intermediate_size ffn_hidden_size": inner,
        "vocab_size": 40,
        "max_position_embeddings n_positions n_ctx max_encoder_position_embeddings max_decoder_position_embeddings": 64,
        "type_vocab_size": 2,
        "num_local_experts num_experts n_routed_experts": 4,
        "num_experts_per_tok moe_topk": 2,
        "n_group topk_group n_shared_experts first_k_dense_replace": 1,
        "attention_dropout hidden_dropout_prob attention_probs_dropout_prob resid_pdrop embd_pdrop attn_pdrop dropout "
        "dropout_rate hidden_dropout activation_dropout drop_path_rate": drop,
        "layerdrop encoder_layerdrop decoder_layerdrop router_jitter_noise": 0.0,
        "sliding_window": 4,
        "image_size": 32,
        "patch_size": 8,
        "num_channels": 3,
        "use_cache": False,
        "pad_token_id": 0,
        "bos_token_id decoder_start_token_id": 1,
        "eos_token_id": 2,
    }
    found = {key: value for keys, value in named.items() for key in keys.split()}
    return {**found, "num_labels": 5, **MORE.get(name, {})}


def build(name: str, head: str) -> Any:
    """The model, ready to train; it raises where it cannot be made of these sizes."""
    import transformers

    kind = transformers.AutoConfig.for_model(name).__class__
    default = kind()
    known = {*default.to_dict(), *getattr(kind, "attribute_map", {}), "num_labels", "decoder_start_token_id"}
    own = set(kind.attribute_map.values()) if getattr(kind, "attribute_map", None) else set()
    chosen = {key: value for key, value in sizes(name).items() if key in known}
    for alias, real in getattr(kind, "attribute_map", {}).items():
        if real in own and alias in chosen and real in chosen:
            del chosen[alias]
    config = kind(**chosen)
    return getattr(transformers, f"AutoModelFor{head}").from_config(config).train()


def text(number: int, labels: bool = True) -> tuple[dict[str, torch.Tensor]]:
    """Words with padding at the ends of some rows, in some microbatches."""
    source = generator(number)
    ids = torch.randint(3, 40, (BATCH, 12), generator=source)
    mask = torch.ones_like(ids)
    for row in range(number % 2, BATCH // 2, 2):
        mask[row, -2 - row :] = 0
    ids = ids * mask
    return ({"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)},)


def pictures(number: int, size: int = 32) -> tuple[dict[str, torch.Tensor]]:
    source = generator(number)
    pixels = torch.randn(BATCH, 3, size, size, generator=source)
    return ({"pixel_values": pixels, "labels": torch.randint(0, 5, (BATCH,), generator=source)},)


def step(model: Any, batch: dict[str, torch.Tensor]) -> Any:
    loss = model(**batch).loss
    model.backward(loss)
    return loss


def run(name: str, head: str, kit: Any) -> None:
    """Two steps."""
    module = build(name, head)
    batch: Any = text
    if head == "ImageClassification":
        size = module.config.image_size if isinstance(getattr(module.config, "image_size", None), int) else 32
        batch = functools.partial(pictures, size=size)
        if name == "imagegpt":
            batch = lambda n: ({"input_ids": text(n)[0]["input_ids"], "labels": pictures(n)[0]["labels"]},)  # noqa: E731
    train(kit, Spec(module, batch, step, evaluate=None, rate=0.02, steps=2))


if importlib.util.find_spec("transformers") is None:
    ABSENT.append("transformers")
else:
    for head_, names in TYPES.items():
        for name_ in names.split():
            put(f"architectures/{head_}/{name_}", functools.partial(run, name_, head_))
