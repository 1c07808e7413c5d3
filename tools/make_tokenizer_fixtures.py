#!/usr/bin/env python3
"""Writes tests/data/tokenizer: small vocabularies, and the results of Hugging Face's tokenizers on many texts.

Needs PyPI tokenizers (made with 0.23.3) tiktoken (0.14.0), and sentencepiece (0.2.3) with protobuf. The vocabularies are trained here on generated text; each family has the pre-tokeniser,
normaliser, post-processor and decoder of the models of its name.

    python3 tools/make_tokenizer_fixtures.py
"""

import base64
import io
import json
import pathlib
import random
import sys
import tempfile
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "tokenizer"

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
DEEPSEEK = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
            "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")

SENTENCES = """
The lathe turns a piece of wood while a chisel takes thin shavings from it, and what remains is round.
She said she'd come, they've gone, I'm here; it's what we'll do. DON'T SHOUT, IT'S LATE.
Der Fluß überquert die Straße; zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.
Le cœur déçu mais l'âme plutôt naïve, Louÿs rêva de crapaüter en canoë au delà des îles.
El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío; ¿añoraba a su querido cachorro?
Pchnąć w tę łódź jeża lub ośm skrzyń fig. Příliš žluťoučký kůň úpěl ďábelské ódy.
Съешь же ещё этих мягких французских булок, да выпей чаю. Ґанок, їжак і є.
Ο καλύμνιος σφουγγαράς ψιθύρισε πως θα βουτήξει χωρίς να διστάζει. ΟΔΥΣΣΕΥΣ
صِف خَلقَ خَودٍ كَمِثلِ الشَمسِ إِذ بَزَغَت — يَحظى الضَجيعُ بِها نَجلاءَ مِعطارِ ١٢٣٤٥
דג סקרן שט בים מאוכזב ולפתע מצא חברה. שָׁלוֹם עוֹלָם
ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश करने वाले विष्णुवतार भगवान श्रीराम १२३
เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน ๑๒๓๔
天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。寒来暑往，秋收冬藏。2024年12月31日。
いろはにほへと ちりぬるを わかよたれそ つねならむ カタカナとひらがな、漢字１２３。
키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. 다람쥐 헌 쳇바퀴
Tiếng Việt có nhiều dấu thanh: ngã, hỏi, sắc, huyền, nặng. Cà phê sữa đá.
Hello 👋🏽 world 🌍! Family 👨‍👩‍👧‍👦, flag 🇩🇪🇯🇵, heart ❤️, astronaut 🧑🏿‍🚀, keycap 5️⃣.
x² + y² = z², ∑ᵢ aᵢ ≤ ∞, ½ + ⅓ = ⅚, Ⅷ ≠ Ⅸ, ①②③, 10⁻⁹ µm, 3.14159 and 1,234,567.89
""".strip().splitlines()

CODE = [
    "def fib(n):\n    if n < 2:\n        return n\n    return fib(n - 1) + fib(n - 2)\n\n\nprint(fib(30))\n",
    "#include <cstdio>\r\n\r\nint main() {\r\n\tstd::printf(\"%d\\n\", 0x7fff'ffff);\r\n\treturn 0;\r\n}\r\n",
    "fn main() {\n    let v: Vec<u8> = (0..10).map(|x| x * 2).collect();\n    println!(\"{v:?}\");\n}\n",
    "SELECT a.id, COUNT(*) AS n FROM t_a a LEFT JOIN t_b b ON a.id = b.a_id WHERE b.x IS NULL GROUP BY 1;",
    "<div class=\"a-b\" id='c'><!-- note --><p>&nbsp;&lt;tag&gt;</p></div>",
    "{\"key\": [1, 2.5e-3, null, true], \"nested\": {\"a\": \"\\u00e9\"}}",
    "const f = async (x) => { await g?.(x ?? 0); /* done */ };\n// https://example.org/a?b=c&d=%20#e\n",
    "for i in $(seq 1 10); do echo \"$i: ${HOME}/x\" >> /dev/null 2>&1; done",
]

SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", " \n ", "\u00a0", "\u3000", "\u2009", "\u2028", "\u0085",
          "\u200b", "\ufeff", "\u180e", "\u1680", "\v", "\f", "\t\t ", "     \n"]
ODD = ["\x00", "\x01", "\x1b[0m", "\x7f", "e\u0301", "n\u0303o", "A\u030a", "\u1112\u1161\u11ab", "\u0958", "\u2126",
       "\u212b", "\ufb01", "\u1e9b\u0323", "q\u0307\u0323", "\ud7a3\u11a8", "ﾊﾟ", "\u0344", "'S", "'LL", "'\u017f",
       "don’t", "###", "...", "…", "—", "=" * 17, "0", "00", "000", "12345678901", "١٢٣", "Ⅻ", "²³", "a1b2c3", "_x_",
       "CamelCaseWord", "snake_case_word", "x" * 70, "ab" * 40, "漢字" * 20, "é" * 25, "!" * 40, "\u0301\u0301", "\ufffd",
       "\U0001f468\u200d\U0001f469", "\U00010330\U00010331", "\U0010ffff", "\ue000", "\ufffe", "ß", "İ", "ς", "ǅ", "ŉ"]


def words():
    return [w for s in SENTENCES for w in s.split()] + [w for s in CODE for w in s.split()]


def make_texts(rng, count, added):
    """Sentences, code, and random strings of words, odd pieces, white space and added tokens."""
    vocabulary, texts = words(), ["", " ", "a"] + SENTENCES + CODE + SPACES + ODD
    while len(texts) < count:
        parts = []
        for _ in range(rng.choice([1, 2, 3, 5, 8, 13])):
            kind = rng.random()
            if kind < 0.55:
                parts.append(rng.choice(vocabulary))
            elif kind < 0.70:
                parts.append(rng.choice(ODD))
            elif kind < 0.80:
                parts.append(str(rng.randrange(10 ** rng.randrange(1, 12))))
            elif kind < 0.88:
                parts.append(rng.choice(added))
            elif kind < 0.94:
                parts.append(rng.choice(CODE)[:rng.randrange(40)])
            else:
                parts.append("".join(random_char(rng) for _ in range(rng.randrange(1, 6))))
            parts.append(rng.choice([" ", " ", " ", "", rng.choice(SPACES)]))
        texts.append("".join(parts))
    return texts


def random_char(rng):
    while True:
        c = chr(rng.choice([rng.randrange(0x300), rng.randrange(0x3000), rng.randrange(0x10000), rng.randrange(0x1fbff)]))
        if is_assigned(c):
            return c


def is_assigned(c):
    """Assigned in the Unicode version of this Python, so that libraries of later versions agree."""
    return unicodedata.category(c) not in ("Cn", "Cs")


def corpus(rng):
    vocabulary = words()
    for _ in range(400):
        yield rng.choice(SENTENCES)
        yield rng.choice(CODE)
        yield " ".join(rng.choice(vocabulary) for _ in range(12))


def train(tokenizer, size, special, byte_level=True):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet()) if byte_level else []
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(corpus(random.Random(7)), trainer)
    return tokenizer


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def byte_level(regex=False, prefix=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def deepseek_v3():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([split(r"\p{N}{1,3}"), split(DEEPSEEK_CJK), split(DEEPSEEK), byte_level()])
    t.decoder = decoders.ByteLevel()
    special = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
    train(t, 2500, special)
    t.add_tokens([AddedToken(c, normalized=False) for c in ("<｜fim▁hole｜>", "<｜User｜>", "<｜Assistant｜>", "<think>")])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t, {}


def llama3():
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([split(LLAMA3), byte_level()])
    t.decoder = decoders.ByteLevel()
    train(t, 2500, [])
    t.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>"])
    bos = t.token_to_id("<|begin_of_text|>")
    template = processors.TemplateProcessing("<|begin_of_text|> $A", "<|begin_of_text|> $A $B",
                                             [("<|begin_of_text|>", bos)])
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    # A token that no merge produces, which ignore_merges still finds; and merges written as one string each.
    j = json.loads(t.to_str())
    j["model"]["merges"] = [" ".join(m) for m in j["model"]["merges"]]
    del j["model"]["merges"][1500:]
    return Tokenizer.from_str(json.dumps(j)), j


def qwen2():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([split(QWEN2), byte_level()])
    t.decoder = decoders.ByteLevel()
    train(t, 2500, [])
    t.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    t.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False)])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t, {}


def llama2():
    """Characters instead of bytes, with byte fallback."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    # Two bytes are missing, so that some characters become <unk>.
    train(t, 1200, ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256) if b not in (0xE0, 0xF3)], False)
    # The merges alone: without the split, they reach over words.
    t.pre_tokenizer = None
    t.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A $B", [("<s>", 1), ("</s>", 2)])
    j = json.loads(t.to_str())
    for token in j["added_tokens"]:
        token["special"] = token["id"] < 3
    j["added_tokens"] = j["added_tokens"][:3]
    return Tokenizer.from_str(json.dumps(j)), j


def options():
    """Every option that the families above do not use."""
    t = Tokenizer(models.BPE(unk_token="[UNK]"))
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(),
                                         normalizers.Replace(Regex(r"q\p{M}*"), "kw")])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False),
                                               pre_tokenizers.Punctuation("merged_with_previous"),
                                               byte_level(regex=True, prefix=True)])
    train(t, 900, ["[UNK]"])
    t.add_tokens([AddedToken("Lathe", single_word=True, normalized=True), AddedToken("[L]", lstrip=True, normalized=False),
                  AddedToken("[R]", rstrip=True, normalized=False), AddedToken("[LR]", lstrip=True, rstrip=True, special=True),
                  AddedToken("[LR", normalized=False), AddedToken("ÀB", normalized=True), AddedToken(" pre", normalized=False),
                  AddedToken("word", single_word=True, normalized=False, special=True)])
    # Some bytes have no symbol. Ids are given anew: the library counts added tokens on from the vocabulary's size.
    j = json.loads(t.to_str())
    kept = [k for k in sorted(j["model"]["vocab"], key=j["model"]["vocab"].get) if not any(s in k for s in "ĠzÐ")]
    j["model"]["vocab"] = {k: i for i, k in enumerate(kept)}
    j["model"]["merges"] = [m for m in j["model"]["merges"] if not any(s in "".join(m) for s in "ĠzÐ")]
    next_id = len(kept)
    for token in j["added_tokens"]:
        if token["content"] in j["model"]["vocab"]:
            token["id"] = j["model"]["vocab"][token["content"]]
        else:
            token["id"] = next_id
            next_id += 1
    return Tokenizer.from_str(json.dumps(j)), j


LLAMA2_DECODER = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                    decoders.Strip(" ", 1, 0)])


def metaspaces(llama2_json):
    """llama2's vocabulary with the pre-tokenizer that transformers 5 writes for Llama: every scheme, split or not, with
    either decoder. [(name, the keys that replace those of the file)]"""
    out = []
    for scheme in ("always", "first", "never"):
        for cut in (True, False):
            space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}
            decoder = space if cut else json.loads(LLAMA2_DECODER.__getstate__())
            out.append((f"{scheme}{'_split' if cut else ''}",
                        {"normalizer": None, "pre_tokenizer": space, "decoder": decoder}))
    old = {"type": "Metaspace", "replacement": "_", "add_prefix_space": True, "str_rep": "_"}
    out.append(("old", {"normalizer": None, "pre_tokenizer": old, "decoder": old}))
    return out


def unigram_model(llama2_json, byte_fallback):
    """llama2's vocabulary with made-up scores: longer tokens are likelier than their parts, some are equal."""
    vocab = sorted(llama2_json["model"]["vocab"].items(), key=lambda item: item[1])
    return {"type": "Unigram", "unk_id": 0, "byte_fallback": byte_fallback,
            "vocab": [[token, 0.0 if id < 3 else -(8.0 + id % 13 / 4 - len(token) / 8)] for token, id in vocab]}


def unigrams(llama2_json):
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    return [(f"unigram{'_bytes' if fallback else ''}",
             {"normalizer": None, "pre_tokenizer": space, "decoder": json.loads(LLAMA2_DECODER.__getstate__()),
              "model": unigram_model(llama2_json, fallback)}) for fallback in (False, True)]


# The pattern of tokenization_kimi.py.
KIMI_UPPER, KIMI_LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
KIMI_END = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI = "|".join([r"[\p{Han}]+", rf"[^\r\n\p{{L}}\p{{N}}]?{KIMI_UPPER}*{KIMI_LOWER}+{KIMI_END}",
                 rf"[^\r\n\p{{L}}\p{{N}}]?{KIMI_UPPER}+{KIMI_LOWER}*{KIMI_END}", r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*",
                 r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
KIMI_NAMED = {0: ("[BOS]", True), 1: ("[EOS]", True), 2: ("<|im_end|>", True), 5: ("<|tool_call_begin|>", False)}


def kimi_ranks(deepseek_json):
    """deepseek_v3's vocabulary as tiktoken.model has it: the bytes first, as tokens of one byte must merge first."""
    chars = [b for b in range(256) if 0x21 <= b <= 0x7E or b >= 0xA1 and b != 0xAD]
    code = {chr(b): b for b in chars} | {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in chars)}
    tokens = [t for t, _ in sorted(deepseek_json["model"]["vocab"].items(), key=lambda item: item[1])]
    tokens = [bytes(code[c] for c in t) for t in tokens if all(c in code for c in t)]
    return {t: i for i, t in enumerate(sorted(tokens, key=lambda t: len(t) > 1))}


def kimi_specials(first):
    names = {first + i: f"<|reserved_token_{first + i}|>" for i in range(256)}
    names.update({first + i: name for i, (name, _) in KIMI_NAMED.items()})
    return {name: id for id, name in names.items()}


def kimi_config(first):
    return {"tokenizer_class": "TikTokenTokenizer",
            "added_tokens_decoder": {str(first + i): {"content": name, "special": special}
                                     for i, (name, special) in KIMI_NAMED.items()}}


def kimi(ranks):
    import tiktoken
    return tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=kimi_specials(len(ranks)))


HOSTILE = ["▁", "▁▁", " ▁ ▁a", "▁the", " the", "  the  ", "the<s>the", "<s> the", " <s>the", "<unk>▁", "\u2581\u3000\u2581",
           "_a _b", "日本語のKanjiとABC", "漢字abc漢字", "ABCdef'S ABC'll", "ǅaǄ", "\u0301A\u0301b", "々〇〡あ", "<|im_end|> [BOS]x",
           "<|im_end", "<|tool_call_begin|>{}", "don'T we'VE\u017f", "\r\n\r\n  \n x", "123456 ٣٤٥٦", "\u00a0\u00a0a", "\U00020000\U0002a6d6x"]


def write_other_models(rng, texts):
    """Models made by rule of the vocabularies above: only ids and texts are stored."""
    read = lambda name: json.loads((OUT / name / "tokenizer.json").read_text(encoding="utf-8"))
    llama2, deepseek = read("llama2"), read("deepseek_v3")
    chosen = HOSTILE + [t[:50] for t in rng.sample(texts, 10)]
    rows = [chosen]
    for name, keys in metaspaces(llama2) + unigrams(llama2):
        tokenizer = Tokenizer.from_str(json.dumps(llama2 | keys))
        rows.append({"name": name, "keys": {k: v for k, v in keys.items() if k != "model"}})
        for text in chosen:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            cut = rng.choice([0, 0, 1, len(ids) // 2])
            rows.append([ids, cut, tokenizer.decode(ids[cut:], skip_special_tokens=False)])
    write_lines(OUT / "other_models.jsonl", rows)
    encoding, rows = kimi(kimi_ranks(deepseek)), []
    for text in HOSTILE + [t[:50] for t in rng.sample(texts, 30)]:
        ids = encoding.encode(text, allowed_special="all")
        cut = rng.choice([0, 1, len(ids) // 2])
        rows.append([text, ids, cut, encoding.decode(ids[cut:])])
    write_lines(OUT / "tiktoken.jsonl", rows)


def write_family(name, tokenizer, as_written, texts):
    path = OUT / name
    path.mkdir(parents=True, exist_ok=True)
    j = as_written or json.loads(tokenizer.to_str())
    (path / "tokenizer.json").write_text(json.dumps(j, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
    assert Tokenizer.from_file(str(path / "tokenizer.json")).get_vocab() == tokenizer.get_vocab()
    # Line i: ids of line i of texts.jsonl. The added tokens of the template are in special_texts.
    lines = [" ".join(map(str, tokenizer.encode(t, add_special_tokens=False).ids)) for t in texts]
    (path / "ids.txt").write_text("\n".join(lines) + "\n")
    rng, size, out = random.Random(11), tokenizer.get_vocab_size(), []
    for i in range(120):
        if i % 3 == 0:
            ids = [rng.randrange(size) for _ in range(rng.randrange(12))]
        else:
            # A part of a text's ids: characters are cut at both ends.
            ids = tokenizer.encode(rng.choice(texts)).ids
            start = rng.randrange(len(ids) + 1)
            ids = ids[start:start + rng.randrange(20)]
            if i % 3 == 2:
                ids.insert(rng.randrange(len(ids) + 1), rng.randrange(size))
        out.append({"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=False),
                    "skipped": tokenizer.decode(ids, skip_special_tokens=True)})
    write_lines(path / "decode.jsonl", out)
    special = [{"text": t, "ids": tokenizer.encode(t, add_special_tokens=True).ids} for t in texts[:30]]
    write_lines(path / "special.jsonl", special)


def write_lines(path, rows):
    path.write_text("".join(json.dumps(r, ensure_ascii=False, separators=(",", ":")) + "\n" for r in rows), encoding="utf-8")


def write_splits(rng, texts):
    """One Split step each: every behaviour, and classes that regular expression libraries define differently."""
    patterns = [r"\p{N}{1,3}", r"\s+", r"\w+", r"\S", r"[\s,.]", r"(?i:'s|'t|k)", r"^.", r".$", r"\d+|\D",
                r"a*", r"", r"(?=e)", r"\p{Han}+", r"\p{Lu}\p{Ll}+", r"\u3042|\x{3044}", r"\A.|\z", r"(?<=a)b|(?<!o)n",
                r"(?>a+)b?", r"\v", r"[a-c\-\]]+", r"\p{^L}+", r"\P{L}", r"(?i)THE|and", r"\s+(?!\S)|\s+", r"[^\r\n]+", r"x{2,4}?",
                r"[\S]", r"\p{Greek}+", "é|ß"]
    rows = []
    for pattern in patterns + ["LITERAL:the", "LITERAL: ", "LITERAL:.", "LITERAL:"]:
        for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
            for invert in (False, True):
                literal = pattern.removeprefix("LITERAL:") if pattern.startswith("LITERAL:") else None
                step = pre_tokenizers.Split(Regex(pattern) if literal is None else literal, behavior, invert)
                for text in rng.sample(texts, 1) + ["aab xx xxxxx\nthe End.\n"]:
                    text = text[:50]
                    pieces = [p for p, _ in step.pre_tokenize_str(text)] if text else []
                    name = "".join(w.capitalize() for w in behavior.split("_"))
                    rows.append({"pattern": pattern if literal is None else literal, "literal": literal is not None,
                                 "behavior": name, "invert": invert, "text": text, "pieces": pieces})
    write_lines(OUT / "splits.jsonl", rows)


def write_classes():
    """Code points assigned in Unicode 14 that a class matches, as [first, last, first, last ...]."""
    assigned = [c for c in map(chr, range(sys.maxunicode + 1)) if is_assigned(c)]
    rows = [{"class": "", "ranges": ranges(assigned)}]
    text = "".join(assigned)
    for pattern in (r"\s", r"\S", r"\w", r"\d", r"\p{L}", r"\p{N}", r"\p{M}", r"\p{P}", r"\p{S}", r"\p{Lu}", r"\p{Han}", r"[\s]"):
        pieces = pre_tokenizers.Split(Regex(pattern), "removed", True).pre_tokenize_str(text)
        rows.append({"class": pattern, "ranges": ranges(sorted(set("".join(p for p, _ in pieces)), key=ord))})
    write_lines(OUT / "classes.jsonl", rows)


def ranges(chars):
    """Ranges over the sequence of assigned characters' code points; gaps of unassigned ones split them."""
    out = []
    for c in map(ord, chars):
        if out and out[-1] == c - 1:
            out[-1] = c
        else:
            out += [c, c]
    return out


def write_normal_forms(rng):
    # The library's tables of normal forms are of Unicode 9; Python keeps those of 3.2 as a fixed point before.
    is_old = lambda c: unicodedata.ucd_3_2_0.category(c) not in ("Cn", "Cs")
    changed = [chr(c) for c in range(sys.maxunicode + 1)
               if is_old(chr(c)) and unicodedata.normalize("NFKD", chr(c)) != chr(c) and not 0xAC00 <= c < 0xD7A4]
    marks = [chr(c) for c in range(sys.maxunicode + 1) if is_old(chr(c)) and unicodedata.combining(chr(c))]
    jamo = [chr(c) for c in range(0x1100, 0x1200)] + ["가", "각", "힣"]
    rows = []
    for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase"):
        normalize = getattr(normalizers, name)().normalize_str
        texts = ["".join(changed[i:i + 512]) for i in range(0, len(changed), 512)] if name in ("NFC", "Lowercase") else []
        for _ in range(40):
            text = "".join(rng.choice([rng.choice(changed), rng.choice(marks), rng.choice(jamo), rng.choice("aeiouAEIONSTx \u0130"),
                                       unicodedata.normalize("NFD", rng.choice(changed))]) for _ in range(rng.randrange(1, 12)))
            texts.append(text)
        rows += [{"kind": name, "text": t, "result": normalize(t)} for t in texts]
    write_lines(OUT / "normalize.jsonl", rows)


# Replacements of clusters, of characters, of a prefix of another rule, by nothing, and by much more.
CHARSMAP = {"e\u0301": "é", "\r\n": "\n", "\u00a0": " ", "\u3000": " ", "\u200b": "", "\x01": "", "ﬁ": "fi", "Ａ": "A", "ａ": "a", "①": "1",
            "\ufdfa": "صلى الله عليه وسلم", "q": "k", "q\u0307": "ʞ", "ß": "ss", "\u1112\u1161": "하", "か\u3099": "が", "👨": "M", "\u0301": "´",
            "x\u0338\u0338": "X", "…": "...", "\u0600a": "N", "가": "ga", "İ": "i\u0307"}


def sentencepiece_charsmap(**arguments):
    """Bytes of precompiled_charsmap as the sentencepiece package makes them."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    model = io.BytesIO()
    lines = [s for s in SENTENCES if s.isascii()] * 4
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, vocab_size=80, hard_vocab_limit=False,
                                             minloglevel=2, **arguments)
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    return proto.normalizer_spec.precompiled_charsmap


def charsmaps(llama2_json):
    """A model for check_tokenizers.py, as T5 and XLM-R have it."""
    charsmap = base64.b64encode(sentencepiece_charsmap(normalization_rule_name="nmt_nfkc")).decode()
    steps = [{"type": "Precompiled", "precompiled_charsmap": charsmap}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]
    (_, keys), *_ = unigrams(llama2_json)
    return [("nmt_nfkc", keys | {"normalizer": {"type": "Sequence", "normalizers": steps}})]


def small_charsmap():
    hexes = lambda text: " ".join(f"{ord(c):X}" for c in text)
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        rules.write("".join(f"{hexes(a)}\t{hexes(b)}\n" for a, b in CHARSMAP.items()))
        rules.flush()
        return sentencepiece_charsmap(normalization_rule_tsv=rules.name)


def charsmap_texts(rng, count):
    """Keys, their parts, marks, joiners and other characters next to each other."""
    pieces = list(CHARSMAP) + sorted({c for key in CHARSMAP for c in key}) + ["\u0301", "\u200d", "\ufe0f", "\u0600", "\r", "\n", "a", "E", "🇩🇪", "क्", "क",
                                                                             "\u0e33", "ก", "\x00", "\ufeff"]
    return ["".join(rng.choice(pieces) for _ in range(rng.randrange(1, 9))) for _ in range(count)]


def write_charsmap(rng):
    charsmap = small_charsmap()
    normalize = normalizers.Precompiled(charsmap).normalize_str
    rows = [{"text": t, "result": normalize(t)} for t in charsmap_texts(rng, 200) + SENTENCES]
    write_lines(OUT / "charsmap.jsonl", [{"charsmap": base64.b64encode(charsmap).decode()}] + rows)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    families = {f.__name__: f() for f in (deepseek_v3, llama3, qwen2, llama2, options)}
    added = sorted({t.content for tok, _ in families.values() for t in tok.get_added_tokens_decoder().values()})
    added += ["<|im_start", "<｜User", "[ L]", "lathe", "Lathework", "àb", "A\u0300B", "sword", "word", "<0x41>"]
    rng = random.Random(3)
    texts = make_texts(rng, 900, added)
    write_lines(OUT / "texts.jsonl", texts)
    for name, (tokenizer, as_written) in families.items():
        write_family(name, tokenizer, as_written, texts)
    write_splits(rng, texts)
    write_classes()
    write_normal_forms(rng)
    write_other_models(rng, texts)
    write_charsmap(random.Random(5))


if __name__ == "__main__":
    main()
