"""Tables of the decoders: LLaMA and its relatives, mixtures of experts, latent attention, GPT-2."""

from __future__ import annotations

from zoo.hf import fields
from zoo.hf.family import BLOCK, Family, renamed

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
MLP = "model.layers.*.mlp"
FFN = f"{BLOCK}.ffn.sublayer"
EXPERTS = f"""
    {FFN}.router.weight                 {MLP}.gate.weight
    {FFN}.balance                       {MLP}.gate.e_score_correction_bias
    {FFN}.experts.#.{{gate,up}}.weight    {MLP}.experts.gate_up_proj
    {FFN}.experts.#.out.weight          {MLP}.experts.down_proj
    {FFN}.shared.gate.weight            {MLP}.shared_experts.gate_proj.weight
    {FFN}.shared.up.weight              {MLP}.shared_experts.up_proj.weight
    {FFN}.shared.out.weight             {MLP}.shared_experts.down_proj.weight
"""
ATTENTION = "model.layers.*.self_attn"
LATENT = f"""{COMMON}{EXPERTS}
    {BLOCK}.attn.sublayer.down.@           {ATTENTION}.{{q_proj|q_a_proj,kv_a_proj_with_mqa}}.@
    {BLOCK}.attn.sublayer.q_norm.weight    {ATTENTION}.q_a_layernorm.weight
    {BLOCK}.attn.sublayer.q.weight         {ATTENTION}.q_b_proj.weight
    {BLOCK}.attn.sublayer.kv_norm.weight   {ATTENTION}.kv_a_layernorm.weight
    {BLOCK}.attn.sublayer.up.weight        {ATTENTION}.kv_b_proj.weight
    {BLOCK}.attn.sublayer.out.@            {ATTENTION}.o_proj.@
"""
LATENT_OPTIONS = {
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

DECODERS = {
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
        renamed(
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
        renamed(LLAMA, ("post_attention_layernorm", "pre_feedforward_layernorm"))
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
        LATENT_OPTIONS,
        LATENT,
        (fields.ROPE, fields.LATENT, fields.GROUPS),
        SILU,
    ),
    "DeepseekV3ForCausalLM": Family(
        "DeepseekV3Config",
        "deepseek_v3",
        {
            **LATENT_OPTIONS,
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
}
