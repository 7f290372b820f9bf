"""What transformers calls things: for each of its model classes the configuration's numbers and the weights, as tables.

In a table of weights `*` is the number of a layer, `#` that of an expert, `@` weight or bias; `{q,k,v}` stands for several
names, whose rows are one below the other, `a|b` for the one that there is; ᵀ for a matrix kept transposed. The zoo's name is on
the left.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from zoo.hf import fields
from zoo.hf.fields import Field

BLOCK = "stack.blocks.*"


@dataclass(frozen=True)
class Family:
    """How a model class of transformers is the zoo's: which named model has its parts, and what each number and weight is."""

    config: str  # transformers' configuration class
    model: str  # the zoo's named model with the same parts
    numbers: dict[str, str]  # the zoo's word: the configuration's attribute
    weights: str
    fields: tuple[Field, ...] = ()  # what is more than one number
    fixed: dict[str, object] = field(
        default_factory=dict
    )  # the configuration's attributes that must be as here
    buffers: tuple[str, ...] = ()  # of transformers, all zero, which the zoo has not


def swapped(table: str, *pairs: tuple[str, str]) -> str:
    """A table with some words exchanged."""
    for old, new in pairs:
        table = table.replace(old, new)
    return table


DECODER = {
    "arch.dim": "hidden_size",
    "arch.layers": "num_hidden_layers",
    "arch.heads": "num_attention_heads",
    "arch.length": "max_position_embeddings",
    "arch.vocab": "vocab_size",
    "attn.kv_heads": "num_key_value_heads",
    "attn.dropout": "attention_dropout",
    "norm.eps": "rms_norm_eps",
    "head.tied": "tie_word_embeddings",
}
DENSE = {**DECODER, "ffn.hidden": "intermediate_size", "attn.head_dim": "head_dim"}
SILU: dict[str, object] = {"hidden_act": "silu"}

COMMON = f"""
    embed.weight                           model.embed_tokens.weight
    {BLOCK}.attn.norm.weight               model.layers.*.input_layernorm.weight
    {BLOCK}.ffn.norm.weight                model.layers.*.post_attention_layernorm.weight
    {BLOCK}.ffn.sublayer.gate.@            model.layers.*.mlp.gate_proj.@
    {BLOCK}.ffn.sublayer.up.@              model.layers.*.mlp.up_proj.@
    {BLOCK}.ffn.sublayer.out.@             model.layers.*.mlp.down_proj.@
    stack.norm.weight                      model.norm.weight
    head.weight                            lm_head.weight
"""
LLAMA = f"""{COMMON}
    {BLOCK}.attn.sublayer.qkv.@            model.layers.*.self_attn.{{q,k,v}}_proj.@
    {BLOCK}.attn.sublayer.q_norm.weight    model.layers.*.self_attn.q_norm.weight
    {BLOCK}.attn.sublayer.k_norm.weight    model.layers.*.self_attn.k_norm.weight
    {BLOCK}.attn.sublayer.out.@            model.layers.*.self_attn.o_proj.@
"""
EXPERTS = f"""
    {BLOCK}.ffn.sublayer.router.weight               model.layers.*.mlp.gate.weight
    {BLOCK}.ffn.sublayer.balance                     model.layers.*.mlp.gate.e_score_correction_bias
    {BLOCK}.ffn.sublayer.experts.#.{{gate,up}}.weight  model.layers.*.mlp.experts.gate_up_proj
    {BLOCK}.ffn.sublayer.experts.#.out.weight        model.layers.*.mlp.experts.down_proj
    {BLOCK}.ffn.sublayer.shared.gate.weight          model.layers.*.mlp.shared_experts.gate_proj.weight
    {BLOCK}.ffn.sublayer.shared.up.weight            model.layers.*.mlp.shared_experts.up_proj.weight
    {BLOCK}.ffn.sublayer.shared.out.weight           model.layers.*.mlp.shared_experts.down_proj.weight
"""
LATENT = f"""{COMMON}{EXPERTS}
    {BLOCK}.attn.sublayer.down.@           model.layers.*.self_attn.{{q_proj|q_a_proj,kv_a_proj_with_mqa}}.@
    {BLOCK}.attn.sublayer.q_norm.weight    model.layers.*.self_attn.q_a_layernorm.weight
    {BLOCK}.attn.sublayer.q.weight         model.layers.*.self_attn.q_b_proj.weight
    {BLOCK}.attn.sublayer.kv_norm.weight   model.layers.*.self_attn.kv_a_layernorm.weight
    {BLOCK}.attn.sublayer.up.weight        model.layers.*.self_attn.kv_b_proj.weight
    {BLOCK}.attn.sublayer.out.@            model.layers.*.self_attn.o_proj.@
"""
LATENT_NUMBERS = {
    **{key: name for key, name in DECODER.items() if key != "attn.kv_heads"},
    "attn.kv_rank": "kv_lora_rank",
    "attn.q_rank": "q_lora_rank",
    "attn.nope_dim": "qk_nope_head_dim",
    "attn.rope_dim": "qk_rope_head_dim",
    "attn.value_dim": "v_head_dim",
    "attn.bias": "attention_bias",
    "ffn.experts": "n_routed_experts",
    "ffn.top_k": "num_experts_per_tok",
    "ffn.expert.hidden": "moe_intermediate_size",
    "ffn.gate_scale": "routed_scaling_factor",
}
GPT2 = f"""
    embed.weight                    transformer.wte.weight
    stack.positions.0.weight        transformer.wpe.weight
    {BLOCK}.attn.norm.@             transformer.h.*.ln_1.@
    {BLOCK}.attn.sublayer.qkv.@     transformer.h.*.attn.c_attn.@ᵀ
    {BLOCK}.attn.sublayer.out.@     transformer.h.*.attn.c_proj.@ᵀ
    {BLOCK}.ffn.norm.@              transformer.h.*.ln_2.@
    {BLOCK}.ffn.sublayer.up.@       transformer.h.*.mlp.c_fc.@ᵀ
    {BLOCK}.ffn.sublayer.out.@      transformer.h.*.mlp.c_proj.@ᵀ
    stack.norm.@                    transformer.ln_f.@
    head.weight                     lm_head.weight
"""
ENCODER = {
    "arch.dim": "hidden_size",
    "arch.layers": "num_hidden_layers",
    "arch.heads": "num_attention_heads",
    "arch.vocab": "vocab_size",
    "ffn.hidden": "intermediate_size",
}
BERT_NUMBERS = {
    **ENCODER,
    "arch.length": "max_position_embeddings",
    "embed.segments": "type_vocab_size",
    "norm.eps": "layer_norm_eps",
    "arch.dropout": "hidden_dropout_prob",
    "attn.dropout": "attention_probs_dropout_prob",
}
BERT_BODY = f"""
    embed.weight                    bert.embeddings.word_embeddings.weight
    stack.positions.0.weight        bert.embeddings.position_embeddings.weight
    embed.segment.weight            bert.embeddings.token_type_embeddings.weight
    stack.opening_norm.@            bert.embeddings.LayerNorm.@
    {BLOCK}.attn.sublayer.qkv.@     bert.encoder.layer.*.attention.self.{{query,key,value}}.@
    {BLOCK}.attn.sublayer.out.@     bert.encoder.layer.*.attention.output.dense.@
    {BLOCK}.attn.norm.@             bert.encoder.layer.*.attention.output.LayerNorm.@
    {BLOCK}.ffn.sublayer.up.@       bert.encoder.layer.*.intermediate.dense.@
    {BLOCK}.ffn.sublayer.out.@      bert.encoder.layer.*.output.dense.@
    {BLOCK}.ffn.norm.@              bert.encoder.layer.*.output.LayerNorm.@
"""
BERT = f"""{BERT_BODY}
    head.transform.@                cls.predictions.transform.dense.@
    head.norm.@                     cls.predictions.transform.LayerNorm.@
    head.bias                       cls.predictions.bias
"""
ROBERTA = f"""{swapped(BERT_BODY, ("bert.", "roberta."))}
    head.transform.@                lm_head.dense.@
    head.norm.@                     lm_head.layer_norm.@
    head.bias                       lm_head.bias
"""
MODERNBERT = f"""
    embed.weight                    model.embeddings.tok_embeddings.weight
    stack.opening_norm.@            model.embeddings.norm.@
    {BLOCK}.attn.norm.@             model.layers.*.attn_norm.@
    {BLOCK}.attn.sublayer.qkv.@     model.layers.*.attn.Wqkv.@
    {BLOCK}.attn.sublayer.out.@     model.layers.*.attn.Wo.@
    {BLOCK}.ffn.norm.@              model.layers.*.mlp_norm.@
    {BLOCK}.ffn.sublayer.{{gate,up}}.@  model.layers.*.mlp.Wi.@
    {BLOCK}.ffn.sublayer.out.@      model.layers.*.mlp.Wo.@
    stack.norm.@                    model.final_norm.@
    head.transform.@                head.dense.@
    head.norm.@                     head.norm.@
    head.bias                       decoder.bias
"""
T5_STACK = """
    STACK.positions.0.weight                STACK.block.0.layer.0.SelfAttention.relative_attention_bias.weight
    STACK.blocks.*.attn.norm.weight         STACK.block.*.layer.0.layer_norm.weight
    STACK.blocks.*.attn.sublayer.qkv.weight STACK.block.*.layer.0.SelfAttention.{q,k,v}.weight
    STACK.blocks.*.attn.sublayer.out.weight STACK.block.*.layer.0.SelfAttention.o.weight
    STACK.norm.weight                       STACK.final_layer_norm.weight
    STACK.blocks.*.ffn.norm.weight          STACK.block.*.layer.LAST.layer_norm.weight
    STACK.blocks.*.ffn.sublayer.gate.weight STACK.block.*.layer.LAST.DenseReluDense.wi_0.weight
    STACK.blocks.*.ffn.sublayer.up.weight   STACK.block.*.layer.LAST.DenseReluDense.UP.weight
    STACK.blocks.*.ffn.sublayer.out.weight  STACK.block.*.layer.LAST.DenseReluDense.wo.weight
"""
T5 = f"""
    embed.weight                                shared.weight
{swapped(T5_STACK, ("STACK", "encoder"), ("LAST", "1"), ("UP", "wi"))}
{swapped(T5_STACK, ("STACK", "decoder"), ("LAST", "2"), ("UP", "wi"))}
    decoder.blocks.*.cross.norm.weight          decoder.block.*.layer.1.layer_norm.weight
    decoder.blocks.*.cross.sublayer.q.weight    decoder.block.*.layer.1.EncDecAttention.q.weight
    decoder.blocks.*.cross.sublayer.kv.weight   decoder.block.*.layer.1.EncDecAttention.{{k,v}}.weight
    decoder.blocks.*.cross.sublayer.out.weight  decoder.block.*.layer.1.EncDecAttention.o.weight
    head.weight                                 lm_head.weight
"""
T5_NUMBERS = {
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
{swapped(BART_STACK, ("STACK", "encoder"))}
{swapped(BART_STACK, ("STACK", "decoder"))}
    decoder.blocks.*.cross.sublayer.q.@     model.decoder.layers.*.encoder_attn.q_proj.@
    decoder.blocks.*.cross.sublayer.kv.@    model.decoder.layers.*.encoder_attn.{{k,v}}_proj.@
    decoder.blocks.*.cross.sublayer.out.@   model.decoder.layers.*.encoder_attn.out_proj.@
    decoder.blocks.*.cross.norm.@           model.decoder.layers.*.encoder_attn_layer_norm.@
"""
BART_NUMBERS = {
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

FAMILIES = {
    "LlamaForCausalLM": Family(
        "LlamaConfig",
        "llama3_8b",
        {**DENSE, "attn.bias": "attention_bias", "ffn.bias": "mlp_bias"},
        LLAMA,
        (fields.ROPE,),
        SILU,
    ),
    "MistralForCausalLM": Family(
        "MistralConfig",
        "mistral_7b",
        {**DENSE, "attn.window": "sliding_window"},
        LLAMA,
        (fields.ROPE,),
        SILU,
    ),
    "Qwen3ForCausalLM": Family(
        "Qwen3Config",
        "qwen3_0_6b",
        {**DENSE, "attn.bias": "attention_bias"},
        LLAMA,
        (fields.ROPE, fields.WINDOWS, fields.same("attn.qk_norm.eps", "norm.eps")),
        SILU,
    ),
    "Olmo2ForCausalLM": Family(
        "Olmo2Config",
        "olmo2_7b attn=gqa",
        {key: name for key, name in DENSE.items() if key != "attn.head_dim"},
        swapped(
            LLAMA,
            ("post_attention_layernorm", "post_feedforward_layernorm"),
            ("input_layernorm", "post_attention_layernorm"),
        ),
        (fields.ROPE, fields.same("attn.qk_norm.eps", "norm.eps")),
        {**SILU, "attention_bias": False},
    ),
    "Gemma2ForCausalLM": Family(
        "Gemma2Config",
        "gemma2_2b",
        {
            **DENSE,
            "attn.bias": "attention_bias",
            "attn.softcap": "attn_logit_softcapping",
            "head.softcap": "final_logit_softcapping",
        },
        swapped(LLAMA, ("post_attention_layernorm", "pre_feedforward_layernorm"))
        + f"""
    {BLOCK}.attn.out_norm.weight           model.layers.*.post_attention_layernorm.weight
    {BLOCK}.ffn.out_norm.weight            model.layers.*.post_feedforward_layernorm.weight
""",
        (fields.ROPE, fields.WINDOWS, fields.QUERY_SCALAR),
        {"hidden_activation": "gelu_pytorch_tanh"},
    ),
    "MixtralForCausalLM": Family(
        "MixtralConfig",
        "mixtral_8x7b",
        {
            **DECODER,
            "attn.head_dim": "head_dim",
            "attn.window": "sliding_window",
            "ffn.expert.hidden": "intermediate_size",
            "ffn.experts": "num_local_experts",
            "ffn.top_k": "num_experts_per_tok",
        },
        LLAMA + EXPERTS,
        (fields.ROPE,),
        SILU,
    ),
    "DeepseekV2ForCausalLM": Family(
        "DeepseekV2Config",
        "deepseek_v2_lite",
        LATENT_NUMBERS,
        LATENT,
        (fields.ROPE, fields.LATENT, fields.GROUPS),
        SILU,
    ),
    "DeepseekV3ForCausalLM": Family(
        "DeepseekV3Config",
        "deepseek_v3",
        {
            **LATENT_NUMBERS,
            "ffn.renormalize": "norm_topk_prob",
            "ffn.groups": "n_group",
            "ffn.top_groups": "topk_group",
        },
        LATENT,
        (fields.ROPE, fields.LATENT),
        SILU,
    ),
    "GPT2LMHeadModel": Family(
        "GPT2Config",
        "gpt2",
        {
            "arch.dim": "n_embd",
            "arch.layers": "n_layer",
            "arch.heads": "n_head",
            "arch.length": "n_positions",
            "arch.vocab": "vocab_size",
            "ffn.hidden": "n_inner",
            "norm.eps": "layer_norm_epsilon",
            "arch.dropout": "resid_pdrop",
            "attn.dropout": "attn_pdrop",
            "head.tied": "tie_word_embeddings",
        },
        GPT2,
        (),
        {
            "activation_function": "gelu_new",
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
    ),
    "BertForMaskedLM": Family(
        "BertConfig",
        "bert_base",
        BERT_NUMBERS,
        BERT,
        (fields.same("head.norm.eps", "norm.eps"),),
        {"hidden_act": "gelu", "is_decoder": False, "tie_word_embeddings": True},
    ),
    "BertModel": Family(
        "BertConfig",
        "bert_base head=pooler",
        BERT_NUMBERS,
        swapped(BERT_BODY, ("bert.", "")) + "    head.dense.@   pooler.dense.@",
        (),
        {"hidden_act": "gelu", "is_decoder": False},
    ),
    "RobertaForMaskedLM": Family(
        "RobertaConfig",
        "roberta_base",
        {key: name for key, name in BERT_NUMBERS.items() if key != "arch.length"},
        ROBERTA,
        (fields.same("head.norm.eps", "norm.eps"), fields.PADDED_POSITIONS),
        {"hidden_act": "gelu", "is_decoder": False, "tie_word_embeddings": True},
    ),
    "ModernBertForMaskedLM": Family(
        "ModernBertConfig",
        "modernbert_base",
        {
            **ENCODER,
            "arch.length": "max_position_embeddings",
            "attn.bias": "attention_bias",
            "ffn.bias": "mlp_bias",
            "norm.eps": "norm_eps",
            "norm.bias": "norm_bias",
            "attn.dropout": "attention_dropout",
            "head.transform_bias": "classifier_bias",
            "head.bias": "decoder_bias",
        },
        MODERNBERT,
        (
            fields.LOCAL_ROPE,
            fields.same("head.norm.eps", "norm.eps"),
            fields.same("head.norm.bias", "norm.bias"),
        ),
        {
            "hidden_activation": "gelu",
            "classifier_activation": "gelu",
            "tie_word_embeddings": True,
            "embedding_dropout": 0.0,
            "mlp_dropout": 0.0,
        },
    ),
    "T5ForConditionalGeneration": Family(
        "T5Config",
        "t5_small",
        T5_NUMBERS,
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
        T5_NUMBERS,
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
        BART_NUMBERS,
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
