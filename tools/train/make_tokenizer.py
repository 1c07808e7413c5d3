"""Trains the byte-level BPE tokenizer that both checkpoints use, on the training split of the tasks
and the licence's prose.

Writes tokenizer.json and tokenizer_config.json in models/tiny-gqa. The pre-tokeniser is Qwen2's regular expression with one change:
digits are split one by one and, like words, keep a leading space.
"""

import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tasks"))

import arithmetic  # noqa: E402
import copying  # noqa: E402
import retrieval  # noqa: E402

VOCABULARY = 2048
SPECIAL = ["<bos>", "<eos>", "<user>", "<assistant>", "<pad>"]
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '<user>' + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}{{ '<assistant>' + message['content'] + eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def texts():
    rng = random.Random("lathe tokenizer")
    # Prose fills the entries that the tasks' few words leave, so that other text still encodes well.
    yield (HERE.parent.parent / "LICENSE").read_text()
    for _ in range(20000):
        entry = arithmetic.item(rng, False)
        yield entry["prompt"]
        yield entry["response"]
    for _ in range(3000):
        yield copying.item(rng, False)["prompt"]
    for _ in range(600):
        entry = retrieval.item(rng, False, 1024, 8)
        yield entry["prompt"]
        yield "\n".join(q for q, _ in entry["turns"])


def main() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    out = HERE.parents[1] / "models/tiny-gqa"
    out.mkdir(exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    print("entries:", tokenizer.get_vocab_size())


if __name__ == "__main__":
    main()
