"""Tables of the encoders: BERT, RoBERTa and ModernBERT."""

from __future__ import annotations

from zoo.hf import fields
from zoo.hf.family import BLOCK, Family, renamed

ENCODER = {
    "arch.dim": "hidden_size",
    "arch.layers": "num_hidden_layers",
    "arch.heads": "num_attention_heads",
    "arch.vocab": "vocab_size",
    "ffn.hidden": "intermediate_size",
}
BERT_OPTIONS = {
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
ROBERTA = f"""{renamed(BERT_BODY, ("bert.", "roberta."))}
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

ENCODERS = {
    "BertForMaskedLM": Family(
        "BertConfig",
        "bert_base",
        BERT_OPTIONS,
        BERT,
        (fields.same("head.norm.eps", "norm.eps"),),
        {"hidden_act": "gelu", "is_decoder": False, "tie_word_embeddings": True},
    ),
    "BertModel": Family(
        "BertConfig",
        "bert_base head=pooler",
        BERT_OPTIONS,
        renamed(BERT_BODY, ("bert.", "")) + "    head.dense.@   pooler.dense.@",
        (),
        {"hidden_act": "gelu", "is_decoder": False},
    ),
    "RobertaForMaskedLM": Family(
        "RobertaConfig",
        "roberta_base",
        {key: name for key, name in BERT_OPTIONS.items() if key != "arch.length"},
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
}
