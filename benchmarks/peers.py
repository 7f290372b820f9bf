"""Models of other libraries at a given shape, as their users would make them.

Each library is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from benchmarks.shapes import Shape


class Missing(Exception):
    """Raised by a candidate that cannot be measured; the message says why."""


class Peer(NamedTuple):
    model: nn.Module
    logits: Callable[[dict[str, Tensor]], Tensor]
    decode: Callable[[Tensor, int], Tensor] | None = None


def _from_transformers(model: Any) -> Peer:
    def decode(prompt: Tensor, new: int) -> Tensor:
        return model.generate(
            prompt, max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0
        )

    return Peer(model, lambda batch: model(batch["tokens"], use_cache=False).logits, decode)


def gpt2(shape: Shape) -> Peer:
    from transformers import GPT2Config, GPT2LMHeadModel

    return _from_transformers(
        GPT2LMHeadModel(
            GPT2Config(
                n_layer=shape.layers,
                n_embd=shape.dim,
                n_head=shape.heads,
                n_positions=shape.length,
                vocab_size=shape.vocab,
                activation_function="gelu",
                resid_pdrop=0,
                embd_pdrop=0,
                attn_pdrop=0,
            )
        )
    )


def llama(shape: Shape) -> Peer:
    from transformers import LlamaConfig, LlamaForCausalLM

    return _from_transformers(
        LlamaForCausalLM(
            LlamaConfig(
                num_hidden_layers=shape.layers,
                hidden_size=shape.dim,
                num_attention_heads=shape.heads,
                num_key_value_heads=2,
                intermediate_size=8 * shape.dim // 3,
                max_position_embeddings=shape.length,
                vocab_size=shape.vocab,
                tie_word_embeddings=True,
            )
        )
    )


def bert(shape: Shape) -> Peer:
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(
        BertConfig(
            num_hidden_layers=shape.layers,
            hidden_size=shape.dim,
            num_attention_heads=shape.heads,
            intermediate_size=4 * shape.dim,
            max_position_embeddings=shape.length,
            vocab_size=shape.vocab,
            hidden_dropout_prob=0,
            attention_probs_dropout_prob=0,
        )
    )
    return Peer(
        model, lambda batch: model(batch["tokens"], attention_mask=batch["padding_mask"]).logits
    )


def t5(shape: Shape) -> Peer:
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(
        T5Config(
            num_layers=shape.layers,
            d_model=shape.dim,
            num_heads=shape.heads,
            d_kv=shape.dim // shape.heads,
            d_ff=4 * shape.dim,
            vocab_size=shape.vocab,
            dropout_rate=0,
        )
    )
    return Peer(
        model,
        lambda batch: (
            model(
                batch["tokens"], decoder_input_ids=batch["decoder_tokens"], use_cache=False
            ).logits
        ),
    )


def _x(shape: Shape, layers: Any, **how: Any) -> Peer:
    from x_transformers import AutoregressiveWrapper, TransformerWrapper

    model = TransformerWrapper(
        num_tokens=shape.vocab,
        max_seq_len=shape.length,
        attn_layers=layers,
        tie_embedding=True,
        **how,
    )
    writer = AutoregressiveWrapper(model)

    def decode(prompt: Tensor, new: int) -> Tensor:
        return writer.generate(prompt, new, temperature=0.0, cache_kv=True)

    return Peer(model, lambda batch: model(batch["tokens"], mask=batch.get("padding_mask")), decode)


def _x_layers(kind: str, shape: Shape, **how: Any) -> Any:
    import x_transformers

    sizes = {
        "dim": shape.dim,
        "depth": shape.layers,
        "heads": shape.heads,
        "attn_dim_head": shape.dim // shape.heads,
    }
    return getattr(x_transformers, kind)(**sizes, attn_flash=True, **how)


def x_gpt(shape: Shape) -> Peer:
    return _x(shape, _x_layers("Decoder", shape, ff_no_bias=True))


def x_llama(shape: Shape) -> Peer:
    layers = _x_layers(
        "Decoder",
        shape,
        use_rmsnorm=True,
        rotary_pos_emb=True,
        ff_glu=True,
        ff_swish=True,
        ff_no_bias=True,
        attn_kv_heads=2,
        ff_mult=8 / 3,
    )
    return _x(shape, layers, use_abs_pos_emb=False)


def x_bert(shape: Shape) -> Peer:
    return _x(shape, _x_layers("Encoder", shape))


def x_t5(shape: Shape) -> Peer:
    from x_transformers import XTransformer

    sizes = {
        "depth": shape.layers,
        "heads": shape.heads,
        "num_tokens": shape.vocab,
        "max_seq_len": shape.length,
        "attn_dim_head": shape.dim // shape.heads,
        "rel_pos_bias": True,
        "use_abs_pos_emb": False,
        "use_rmsnorm": True,
    }
    made = {f"{side}_{name}": value for side in ("enc", "dec") for name, value in sizes.items()}
    model = XTransformer(dim=shape.dim, tie_token_emb=True, **made)
    return Peer(
        model,
        lambda batch: model.decoder.net(
            batch["decoder_tokens"], context=model.encoder(batch["tokens"], return_embeddings=True)
        ),
    )


def _lit(shape: Shape, **how: Any) -> Peer:
    from litgpt import GPT, Config

    model = GPT(
        Config(
            block_size=shape.length,
            vocab_size=shape.vocab,
            padded_vocab_size=shape.vocab,
            n_layer=shape.layers,
            n_head=shape.heads,
            n_embd=shape.dim,
            bias=False,
            **how,
        )
    )
    model.lm_head.weight = model.transformer.wte.weight

    def decode(prompt: Tensor, new: int) -> Tensor:
        from litgpt.generate.base import generate

        model.clear_kv_cache()
        model.set_kv_cache(batch_size=1)
        return generate(
            model,
            prompt[0],
            prompt.shape[1] + new,
            temperature=0.0,
            top_p=0.0,
            include_prompt=False,
        )

    return Peer(model, lambda batch: model(batch["tokens"]), decode)


def lit_gpt(shape: Shape) -> Peer:
    return _lit(
        shape,
        norm_class_name="LayerNorm",
        mlp_class_name="GptNeoxMLP",
        rotary_percentage=1.0,
        parallel_residual=False,
        intermediate_size=4 * shape.dim,
    )


def lit_llama(shape: Shape) -> Peer:
    return _lit(
        shape,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
        rotary_percentage=1.0,
        parallel_residual=False,
        intermediate_size=8 * shape.dim // 3,
        n_query_groups=2,
    )


class _Torch(nn.Module):
    """torch's own layers between an embedding with learned positions and a tied head."""

    def __init__(self, shape: Shape, causal: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            shape.dim,
            shape.heads,
            4 * shape.dim,
            dropout=0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
            bias=not causal,
        )
        self.embed, self.places = (
            nn.Embedding(shape.vocab, shape.dim),
            nn.Embedding(shape.length, shape.dim),
        )
        self.layers = nn.TransformerEncoder(
            layer, shape.layers, nn.LayerNorm(shape.dim), enable_nested_tensor=False
        )
        self.mask = nn.Transformer.generate_square_subsequent_mask(shape.length) if causal else None

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        x = self.embed(batch["tokens"]) + self.places.weight[: batch["tokens"].shape[1]]
        hidden = ~batch["padding_mask"] if "padding_mask" in batch else None
        x = self.layers(
            x, mask=self.mask, src_key_padding_mask=hidden, is_causal=self.mask is not None
        )
        return nn.functional.linear(x, self.embed.weight)


def torch_gpt(shape: Shape) -> Peer:
    model = _Torch(shape, causal=True)
    return Peer(model, model)


def torch_bert(shape: Shape) -> Peer:
    model = _Torch(shape, causal=False)
    return Peer(model, model)
