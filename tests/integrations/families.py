"""Every model family of the installed transformers that can be built small, tried under qkv.

`python tests/integrations/families.py` prints the table that docs/models.md keeps.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

#: Sizes that fit together, for whatever of them a configuration has.
SIZES: dict[str, Any] = {
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "emb_dim"), 32
    ),
    **dict.fromkeys(
        ("intermediate_size", "d_ff", "ffn_dim", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim",
         "hidden_dim", "feed_forward_hidden_size", "dim_ff"), 48,
    ),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers",
         "decoder_layers", "num_decoder_layers", "num_encoder_layers", "depth"), 2,
    ),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
         "decoder_attention_heads", "attention_heads"), 4,
    ),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_size"), 8),
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "n_ctx", "max_source_positions",
         "max_target_positions", "max_2d_position_embeddings"), 64,
    ),
    **dict.fromkeys(
        ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8
    ),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    "vocab_size": 61, "type_vocab_size": 2, "num_key_value_heads": 2, "rotary_dim": 4,
    "image_size": 16, "patch_size": 8, "num_channels": 3, "num_mel_bins": 16,
    "projection_dim": 16, "coordinate_size": 5, "shape_size": 6, "sliding_window": 8,
    "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "mamba_d_state": 8, "mamba_n_heads": 4, "mamba_d_head": 16,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip

#: Models of more parameters than this are not small, whatever was set.
MOST_PARAMETERS = 1_000_000


class Outcome(NamedTuple):
    family: str
    verdict: str  # "served", "refused", "not small" or what is wrong
    detail: str = ""


def families() -> list[str]:
    from transformers import MODEL_MAPPING

    return sorted({config.model_type for config in MODEL_MAPPING})


def tried(family: str) -> Outcome:
    """What becomes of one family: equal to eager, refused, not to be built small, or wrong."""
    try:
        eager = _model(family, "eager")
        asked = next(_accepted(eager))
    except Exception as error:
        return Outcome(family, "not small", f"{type(error).__name__}: {error}"[:80])
    try:
        own = _model(family, "qkv")
        own.load_state_dict(eager.state_dict())
        wrong = _difference(eager, own, asked)
        if wrong and not _difference(_model(family, "sdpa"), own, asked):
            return Outcome(family, "served", "equal to sdpa, from which eager differs")
        return Outcome(family, wrong or "served")
    except ValueError as error:
        if "cannot use attn_implementation" not in str(error):
            raise
        reason = str(error).split("'qkv': ")[1].removesuffix("; use 'eager'")
        return Outcome(family, "refused", reason)


def _model(family: str, implementation: str) -> Any:
    import transformers as hf
    from transformers.models.auto import modeling_auto as auto

    config = _small(hf.CONFIG_MAPPING[family])
    config._attn_implementation = implementation
    kind = hf.AutoModel
    if family in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        kind = hf.AutoModelForCausalLM
    elif family in auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        kind = hf.AutoModelForSeq2SeqLM
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in kind.from_config(config).parameters())
    if size > MOST_PARAMETERS:
        raise ValueError(f"{size:,} parameters")
    torch.manual_seed(7)
    return kind.from_config(config).eval()


def _small(config: Any) -> Any:
    import transformers as hf

    parts = {
        name: _sizes(part) for name, part in config.sub_configs.items() if part is not hf.AutoConfig
    }
    return config(**_sizes(config), **parts)


def _sizes(config: Any) -> dict[str, Any]:
    known = set(getattr(config, "attribute_map", {}))
    for kind in config.__mro__:
        if kind.__module__.startswith("transformers."):
            known |= set(getattr(kind, "__annotations__", {}))
            known |= set(inspect.signature(kind.__init__).parameters)
    sizes = {name: size for name, size in SIZES.items() if name in known}
    if "qk_rope_head_dim" in sizes:
        sizes.pop("head_dim", None)  # there it is the size of what is turned
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    return sizes


def _accepted(model: Any) -> Iterator[dict[str, Any]]:
    """Arguments that the model takes."""
    failed: Exception | None = None
    for arguments in _arguments(model):
        try:
            with torch.no_grad():
                _answers(_run(model, arguments))
        except Exception as error:
            failed = failed or error
        else:
            yield arguments
    assert failed is not None
    raise failed


def _arguments(model: Any) -> Iterator[dict[str, Any]]:
    random = torch.Generator().manual_seed(5)

    def ids(n: int) -> Tensor:
        return torch.randint(3, 60, (2, n), generator=random)

    def noise(*shape: int) -> Tensor:
        return torch.randn(2, *shape, generator=random)

    kept = torch.ones(2, 11, dtype=torch.long)
    kept[1, 7:] = 0  # padding
    words: dict[str, Any] = {"input_ids": ids(11), "attention_mask": kept}
    both_ways = {"decoder_input_ids": ids(7)} if model.config.is_encoder_decoder else {}
    pixels = {"pixel_values": noise(3, 16, 16)}
    if model.main_input_name == "input_ids":
        yield words | both_ways
        yield words | both_ways | pixels
        yield words | both_ways | {"use_cache": False}
        yield words | both_ways | {"bbox": torch.randint(0, 9, (2, 11, 4), generator=random)}
    elif model.main_input_name == "pixel_values":
        yield pixels
        yield words | pixels
        yield {"pixel_values": noise(8, 3, 16, 16)}  # a film
    elif model.main_input_name == "input_values":
        yield {"input_values": noise(800)}
        yield {"input_values": noise(800), "decoder_input_ids": ids(7)}
    elif model.main_input_name == "input_features":
        for n in (16, 128):
            yield {"input_features": noise(n, 16)} | both_ways
            yield {"input_features": noise(16, n)} | both_ways


def _difference(eager: Any, own: Any, asked: dict[str, Any]) -> str:
    """In what two models differ: answers, gradients or tokens they generate; empty: in nothing."""
    kept = asked.get("attention_mask")
    wanted, got = (_answers(_run(model, asked)) for model in (eager, own))
    for index, (left, right) in enumerate(zip(wanted, got, strict=True)):
        if kept is not None and left.shape[:2] == kept.shape:
            left, right = left[kept.bool()], right[kept.bool()]
        if not _close(left, right):
            return f"answer {index} is off by {float((left - right).abs().max()):.1g}"
    gradients = [_gradients(model, asked) for model in (eager, own)]
    for (name, left), right in zip(gradients[0].items(), gradients[1].values(), strict=True):
        if not _close(left, right):
            return f"the gradient of {name} is off by {float((left - right).abs().max()):.1g}"
    if own.can_generate() and "input_ids" in asked:
        words = {name: asked[name][:1, :5] for name in ("input_ids", "attention_mask")}
        options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
        for past in ({}, {"cache_implementation": "static"}):
            try:
                expected = eager.generate(**words, **options, **past)
            except Exception:
                continue  # eager cannot either
            if own.generate(**words, **options, **past).tolist() != expected.tolist():
                return f"generates other tokens {past}"
    return ""


def _run(model: Any, asked: dict[str, Any]) -> Any:
    torch.manual_seed(3)  # some models draw patches to hide
    return model(**asked)


def _answers(output: Any) -> list[Tensor]:
    """The floating tensors of an output that belong to tokens."""
    found = [each for each in output.to_tuple() if isinstance(each, Tensor)]
    found = [each for each in found if each.is_floating_point() and each.ndim > 1]
    if not found or not all(bool(each.isfinite().all()) for each in found):
        raise ValueError("no answer")
    return found


def _gradients(model: Any, asked: dict[str, Any]) -> dict[str, Tensor]:
    model.zero_grad()
    answer = _answers(_run(model, asked))[0]
    if answer.requires_grad:
        torch.manual_seed(11)
        pull = torch.randn(answer.shape)
        kept = asked.get("attention_mask")
        if kept is not None and answer.shape[:2] == kept.shape:
            pull *= kept.reshape(*kept.shape, *[1] * (answer.ndim - 2))
        (answer * pull).sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _close(left: Tensor, right: Tensor) -> bool:
    scale = float(left.detach().abs().max()) if left.numel() else 0.0
    return torch.allclose(left, right, rtol=0, atol=1e-4 * scale + 1e-6)


def table(outcomes: list[Outcome]) -> str:
    """The outcomes as docs/models.md has them, those that are not small left out."""
    lines = ["| family | under qkv |", "|---|---|"]
    for family, verdict, detail in outcomes:
        if verdict != "not small":
            lines.append(f"| `{family}` | {verdict}{': ' if detail else ''}{detail} |")
    return "\n".join(lines)


if __name__ == "__main__":
    import logging
    import warnings

    import transformers

    from qkv.integrations.transformers import register

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(logging.CRITICAL)
    register()
    sys.stdout.write(table([tried(name) for name in sys.argv[1:] or families()]) + "\n")
