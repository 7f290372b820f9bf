"""Tables of the encoder-decoders: T5 and BART."""

from __future__ import annotations

from zoo.hf import fields
from zoo.hf.family import Family, renamed

T5_STACK = """
    STACK.positions.0.weight    STACK.block.0.layer.0.SelfAttention.relative_attention_bias.weight
    STACK.blocks.*.attn.norm.weight         STACK.block.*.layer.0.layer_norm.weight
    STACK.blocks.*.attn.sublayer.qkv.weight STACK.block.*.layer.0.SelfAttention.{q,k,v}.weight
    STACK.blocks.*.attn.sublayer.out.weight STACK.block.*.layer.0.SelfAttention.o.weight
    STACK.norm.weight                       STACK.final_layer_norm.weight
    STACK.blocks.*.ffn.norm.weight          STACK.block.*.layer.LAST.layer_norm.weight
    STACK.blocks.*.ffn.sublayer.gate.weight STACK.block.*.layer.LAST.DenseReluDense.wi_0.weight
    STACK.blocks.*.ffn.sublayer.up.weight   STACK.block.*.layer.LAST.DenseReluDense.UP.weight
    STACK.blocks.*.ffn.sublayer.out.weight  STACK.block.*.layer.LAST.DenseReluDense.wo.weight
"""
CROSS = "decoder.block.*.layer.1"
T5 = f"""
    embed.weight                               shared.weight
{renamed(T5_STACK, ("STACK", "encoder"), ("LAST", "1"), ("UP", "wi"))}
{renamed(T5_STACK, ("STACK", "decoder"), ("LAST", "2"), ("UP", "wi"))}
    decoder.blocks.*.cross.norm.weight         {CROSS}.layer_norm.weight
    decoder.blocks.*.cross.sublayer.q.weight   {CROSS}.EncDecAttention.q.weight
    decoder.blocks.*.cross.sublayer.kv.weight  {CROSS}.EncDecAttention.{{k,v}}.weight
    decoder.blocks.*.cross.sublayer.out.weight {CROSS}.EncDecAttention.o.weight
    head.weight                                lm_head.weight
"""
T5_OPTIONS = {
    "arch.dim": "d_model",
    "arch.layers": "num_layers",
    "arch.decoder_layers": "num_decoder_layers",
    "arch.heads": "num_heads",
    "arch.vocab": "vocab_size",
    "attn.head_dim": "d_kv",
    "ffn.hidden": "d_ff",
    "pos.buckets": "relative_attention_num_buckets",
    "pos.farthest": "relative_attention_max_distance",
    "norm.eps": "layer_norm_epsilon",
    "arch.dropout": "dropout_rate",
}
BART_STACK = """
    STACK.positions.0.weight          model.STACK.embed_positions.weight
    STACK.opening_norm.@              model.STACK.layernorm_embedding.@
    STACK.blocks.*.attn.sublayer.qkv.@  model.STACK.layers.*.self_attn.{q,k,v}_proj.@
    STACK.blocks.*.attn.sublayer.out.@  model.STACK.layers.*.self_attn.out_proj.@
    STACK.blocks.*.attn.norm.@        model.STACK.layers.*.self_attn_layer_norm.@
    STACK.blocks.*.ffn.sublayer.up.@  model.STACK.layers.*.fc1.@
    STACK.blocks.*.ffn.sublayer.out.@ model.STACK.layers.*.fc2.@
    STACK.blocks.*.ffn.norm.@         model.STACK.layers.*.final_layer_norm.@
"""
BART = f"""
    embed.weight                            model.shared.weight
{renamed(BART_STACK, ("STACK", "encoder"))}
{renamed(BART_STACK, ("STACK", "decoder"))}
    decoder.blocks.*.cross.sublayer.q.@     model.decoder.layers.*.encoder_attn.q_proj.@
    decoder.blocks.*.cross.sublayer.kv.@    model.decoder.layers.*.encoder_attn.{{k,v}}_proj.@
    decoder.blocks.*.cross.sublayer.out.@   model.decoder.layers.*.encoder_attn.out_proj.@
    decoder.blocks.*.cross.norm.@           model.decoder.layers.*.encoder_attn_layer_norm.@
"""
BART_OPTIONS = {
    "arch.dim": "d_model",
    "arch.layers": "encoder_layers",
    "arch.decoder_layers": "decoder_layers",
    "arch.heads": "encoder_attention_heads",
    "arch.vocab": "vocab_size",
    "arch.length": "max_position_embeddings",
    "ffn.hidden": "encoder_ffn_dim",
    "arch.dropout": "dropout",
    "attn.dropout": "attention_dropout",
}

ENCODER_DECODERS = {
    "T5ForConditionalGeneration": Family(
        "T5Config",
        "t5_small",
        T5_OPTIONS,
        T5,
        (
            fields.same("arch.cross.head_dim", "attn.head_dim"),
            fields.TIED_SCALED,
            fields.same("attn.dropout", "arch.dropout"),
            fields.same("arch.cross.dropout", "arch.dropout"),
        ),
        {"feed_forward_proj": "relu"},
    ),
    "T5ForConditionalGeneration gated": Family(
        "T5Config",
        "t5_v1_1_base",
        T5_OPTIONS,
        T5.replace(".DenseReluDense.wi.", ".DenseReluDense.wi_1."),
        (
            fields.same("arch.cross.head_dim", "attn.head_dim"),
            fields.TIED_SCALED,
            fields.same("attn.dropout", "arch.dropout"),
            fields.same("arch.cross.dropout", "arch.dropout"),
        ),
        {"feed_forward_proj": "gated-gelu"},
    ),
    "BartForConditionalGeneration": Family(
        "BartConfig",
        "bart_base",
        BART_OPTIONS,
        BART,
        (fields.same("arch.cross.dropout", "attn.dropout"), fields.BOTH_STACKS),
        {
            "activation_function": "gelu",
            "scale_embedding": False,
            "tie_word_embeddings": True,
            "activation_dropout": 0.0,
        },
        ("final_logits_bias",),
    ),
}
