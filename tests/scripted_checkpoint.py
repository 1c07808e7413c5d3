"""Checkpoints that answer with texts of the caller's choice, so that a real server says exactly what a parser is to read.

A one-layer Llama: embeddings are one-hot, the layer's matrices are zero, and the head maps each token to its successor in a script.
"""

import array
import json
import pathlib
import struct

VOCAB = 1024
HEAD = 64  # of attention, which adds nothing
ONE = 0x3C00  # float16


def byte_names() -> dict[int, str]:
    """GPT-2's names of bytes in byte-level vocabularies."""
    names = {b: chr(b) for b in [*range(33, 127), *range(161, 173), *range(174, 256)]}
    for b in range(256):
        names.setdefault(b, chr(256 + len(names) - 188))
    return names


class Tokens:
    """Ids of bytes, of special tokens, and of pieces of text."""

    def __init__(self):
        self.names = byte_names()
        self.vocabulary = {name: b for b, name in self.names.items()}
        self.special = {}

    def count(self) -> int:
        return len(self.vocabulary) + len(self.special)

    def mark(self, text: str) -> int:
        return self.special.setdefault(text, self.count())

    def piece(self, text: str | bytes) -> int:
        if text in self.special:
            return self.special[text]
        data = text if isinstance(text, bytes) else text.encode()
        return self.vocabulary.setdefault("".join(self.names[b] for b in data), self.count())


def write_tensors(path: pathlib.Path, tensors: dict):
    """{name: (shape, bytes of float16)} as safetensors."""
    header, at = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, data in tensors.values():
            file.write(data)


def matrix(entries: list[tuple[int, int]]) -> tuple:
    """[VOCAB, VOCAB] of zeros, with ones at (row, column)."""
    values = array.array("H", bytes(2 * VOCAB * VOCAB))
    for row, column in entries:
        values[row * VOCAB + column] = ONE
    return [VOCAB, VOCAB], values.tobytes()


def make(folder: pathlib.Path, scripts: dict, special=(), template: str | list = "{% for m in messages %}{{ m.content }}{% endfor %}"):
    """Writes a checkpoint that answers the prompt "<name>" by the pieces of scripts[name], one token each, and then <eos>.

    A piece is text or bytes; in all scripts it has one successor. Texts in `special` are special tokens.
    """
    tokens = Tokens()
    for text in ("<eos>", "<bos>", *special):
        tokens.mark(text)
    successor = {}
    for name, pieces in scripts.items():
        at = tokens.mark(f"<{name}>")
        for next_ in [*map(tokens.piece, pieces), tokens.mark("<eos>")]:
            assert successor.setdefault(at, next_) == next_, (name, at, "has two successors")
            at = next_
    assert tokens.count() <= VOCAB
    folder.mkdir(parents=True, exist_ok=True)

    def write(name: str, value):
        (folder / name).write_text(json.dumps(value, ensure_ascii=False))

    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    write("tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "added_tokens": [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
                         for text, i in tokens.special.items()],
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": False, "vocab": tokens.vocabulary, "merges": []}})
    write("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>", "bos_token": "<bos>", "chat_template": template})
    write("config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": VOCAB, "intermediate_size": HEAD,
        "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": HEAD, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "max_position_embeddings": 4096, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float16",
        "bos_token_id": tokens.special["<bos>"], "eos_token_id": tokens.special["<eos>"]})
    ones = [VOCAB], struct.pack("<H", ONE) * VOCAB
    wide, tall = ([HEAD, VOCAB], bytes(2 * HEAD * VOCAB)), ([VOCAB, HEAD], bytes(2 * HEAD * VOCAB))
    layer = {"input_layernorm": ones, "post_attention_layernorm": ones, "self_attn.q_proj": wide, "self_attn.k_proj": wide, "self_attn.v_proj": wide,
             "self_attn.o_proj": tall, "mlp.gate_proj": wide, "mlp.up_proj": wide, "mlp.down_proj": tall}
    write_tensors(folder / "model.safetensors", {
        "model.embed_tokens.weight": matrix([(i, i) for i in range(VOCAB)]),
        "lm_head.weight": matrix([(to, token) for token, to in successor.items()]), "model.norm.weight": ones,
        **{f"model.layers.0.{name}.weight": value for name, value in layer.items()}})
