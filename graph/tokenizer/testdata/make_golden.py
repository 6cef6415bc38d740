"""Writes transformers.json: what transformers makes of odd strings with tokenizer folders of every form that is read.

Made with transformers 5.24.0, tokenizers 0.23.3, sentencepiece:

    python make_golden.py REFERENCE      # the folder of the reference set: vocabularies come from there

It also copies the vocabularies that the folders are made of to base/. A folder in transformers.json is a list of files of base/ and
the text of its JSON configs.
"""
import json
import os
import random
import shutil
import sys
import tempfile

from transformers import CLIPTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer, T5Tokenizer

reference = sys.argv[1]
here = os.path.dirname(os.path.abspath(__file__))
base = os.path.join(here, "base")
shutil.rmtree(base, ignore_errors=True)
os.makedirs(base)
for name, source in {
    "clip/vocab.json": "tiny/sd15/model/tokenizer/vocab.json",
    "clip/merges.txt": "tiny/sd15/model/tokenizer/merges.txt",
    "shapes/tokenizer.json": "shapes-flux1/model/tokenizer/tokenizer.json",
    "t5/tokenizer.json": "tiny/flux1-dev/model/tokenizer_2/tokenizer.json",
    "t5/spiece.model": "tiny/flux1-dev/model/tokenizer_2/spiece.model",
    "qwen/vocab.json": "tiny/z-image/model/tokenizer/vocab.json",
    "qwen/merges.txt": "tiny/z-image/model/tokenizer/merges.txt",
    "qwen/tokenizer.json": "tiny/z-image/model/tokenizer/tokenizer.json",
    "mistral/tokenizer.json": "tiny/flux2-dev/model/tokenizer/tokenizer.json",
    "mistral/chat_template.jinja": "tiny/flux2-dev/model/tokenizer/chat_template.jinja",
}.items():
    os.makedirs(os.path.dirname(os.path.join(base, name)), exist_ok=True)
    shutil.copyfile(os.path.join(reference, source), os.path.join(base, name))


def config(case, name):
    with open(os.path.join(reference, "tiny", case, name), encoding="utf-8") as f:
        return json.load(f)


def described(text):
    return {"__type": "AddedToken", "content": text, "lstrip": False, "normalized": True, "rstrip": False, "single_word": False}


def added(text, **flags):
    return {"content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True, **flags}


bos, eos = "<|startoftext|>", "<|endoftext|>"
vocabulary = ["clip/vocab.json", "clip/merges.txt"]
folders = {
    "clip": ("CLIPTokenizer", vocabulary, {"tokenizer_config.json": config("sd15", "model/tokenizer/tokenizer_config.json")}),
    "clip-pad-exclamation": ("CLIPTokenizer", vocabulary, {"tokenizer_config.json": config("sd2", "model/tokenizer/tokenizer_config.json")}),
    "clip-bare": ("CLIPTokenizer", vocabulary, {}),
    "clip-special-map": ("CLIPTokenizer", vocabulary, {
        "tokenizer_config.json": {"model_max_length": 77},
        "special_tokens_map.json": config("sd2", "model/tokenizer/special_tokens_map.json"),
    }),
    "clip-old-config": ("CLIPTokenizer", vocabulary, {"tokenizer_config.json": {
        "bos_token": described(bos), "eos_token": described(eos), "unk_token": described(eos), "pad_token": eos, "model_max_length": 77,
    }}),
    "clip-strip": ("CLIPTokenizer", vocabulary, {"tokenizer_config.json": {"added_tokens_decoder": {
        "0": added("!", single_word=True), "957": added(bos, lstrip=True), "958": added(eos, rstrip=True, lstrip=True),
        "959": added("Cat", normalized=True, special=False, single_word=True),
    }}}),
    "clip-tokenizer-json": ("CLIPTokenizer", ["shapes/tokenizer.json"], {}),
    "t5": ("T5Tokenizer", ["t5/tokenizer.json"], {"tokenizer_config.json": {"clean_up_tokenization_spaces": True, "extra_ids": 100, "model_max_length": 512}}),
    "t5-spiece": ("T5Tokenizer", ["t5/spiece.model"], {}),
    "t5-spiece-300": ("T5Tokenizer", ["t5/spiece.model"], {"tokenizer_config.json": {"extra_ids": 300}}),
}

qwen, mistral = config("z-image", "model/tokenizer/tokenizer_config.json"), config("flux2-dev", "model/tokenizer/tokenizer_config.json")
qwen_json, mistral_json = config("z-image", "model/tokenizer/tokenizer.json"), config("flux2-dev", "model/tokenizer/tokenizer.json")
byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
digits = {"type": "Split", "pattern": {"Regex": r"[\d]{1,3}|\w+(?=\s)|[^\S\n]+(?![^\s])|\x{21}+"}, "behavior": "Isolated", "invert": False}
plain_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
folders |= {
    "qwen": ("Qwen2TokenizerFast", ["qwen/tokenizer.json"], {"tokenizer_config.json": qwen}),
    "qwen-vocabulary": ("Qwen2Tokenizer", ["qwen/vocab.json", "qwen/merges.txt"], {"tokenizer_config.json": qwen}),
    "qwen-bare": ("Qwen2Tokenizer", ["qwen/vocab.json", "qwen/merges.txt"], {}),
    "qwen-json-alone": ("Qwen2Tokenizer", ["qwen/tokenizer.json"], {}),
    "qwen-prefix-space": ("Qwen2Tokenizer", ["qwen/vocab.json", "qwen/merges.txt"], {
        "tokenizer_config.json": {**qwen, "add_prefix_space": True, "add_eos_token": True, "truncation_side": "left"},
    }),
    "mistral": ("PixtralProcessor", ["mistral/tokenizer.json", "mistral/chat_template.jinja"], {"tokenizer_config.json": mistral}),
    "mistral-bos-eos": ("PreTrainedTokenizerFast", ["mistral/tokenizer.json"], {
        "tokenizer_config.json": {**mistral, "add_bos_token": True, "add_eos_token": True, "padding_side": "right", "truncation_side": "left"},
    }),
    "gpt2-nfkc": ("PreTrainedTokenizerFast", [], {
        "tokenizer.json": {**qwen_json, "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "NFKC"}]}, "pre_tokenizer": byte_level},
        "tokenizer_config.json": qwen,
    }),
    "other-pattern": ("PreTrainedTokenizerFast", [], {
        "tokenizer.json": {
            **mistral_json, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, plain_bytes]},
            "model": {**mistral_json["model"], "ignore_merges": False, "merges": [" ".join(m) for m in mistral_json["model"]["merges"]]},
        },
        "tokenizer_config.json": mistral,
    }),
    "bytes-missing": ("PreTrainedTokenizerFast", [], {
        "tokenizer.json": {**qwen_json, "added_tokens": [], "model": {
            **qwen_json["model"], "unk_token": "?", "fuse_unk": True, "vocab": {"?": 0, "a": 1, "b": 2, "ab": 3, "\u0120": 4, "aab": 5}, "merges": [["a", "b"], ["a", "ab"]],
        }},
        "tokenizer_config.json": {"pad_token": "?"},
    }),
    "bytes-dropped": ("PreTrainedTokenizerFast", [], {
        "tokenizer.json": {**qwen_json, "added_tokens": [], "model": {
            **qwen_json["model"], "vocab": {"?": 0, "a": 1, "b": 2, "ab": 3, "\u0120": 4, "aab": 5}, "merges": [["a", "b"], ["a", "ab"]],
        }},
        "tokenizer_config.json": {"pad_token": "?"},
    }),
}

random.seed(7)
ranges = [
    (0x20, 0x7E, 30), (0xA0, 0x24F, 8), (0x300, 0x36F, 4), (0x370, 0x3FF, 2), (0x400, 0x4FF, 2), (0x590, 0x6FF, 2), (0x900, 0x97F, 3),
    (0xE00, 0xE7F, 2), (0x1100, 0x11FF, 2), (0x1E00, 0x1FFF, 3), (0x2000, 0x206F, 4), (0x2100, 0x214F, 2), (0x2460, 0x24FF, 2),
    (0x3000, 0x30FF, 4), (0x3300, 0x33FF, 2), (0x4E00, 0x4FFF, 2), (0xAC00, 0xAD00, 3), (0xF900, 0xFAFF, 2), (0xFB00, 0xFB4F, 2),
    (0xFE00, 0xFE0F, 1), (0xFE30, 0xFEFF, 2), (0xFF00, 0xFFEF, 3), (0x1D400, 0x1D4FF, 2), (0x1F1E6, 0x1F1FF, 2), (0x1F300, 0x1F6FF, 3),
    (0, 0x1F, 1), (0x7F, 0x9F, 1),
]
pieces = [
    "<pad>", "</s>", "<unk>", "<extra_id_0>", "<extra_id_99>", bos, eos, eos.upper(), "!", "\u2581", "\r\n", "  ", "'s", "'LL", "n't",
    " a cat ", "hello", "\u00e9", "\u1e9e", "\u0130", "\u03c2", "\u03a3", "\u200d", "\ufe0f", "\ufb01", "cat", " CAT", "\uff1c/s\uff1e",
]


def string():
    out = []
    for _ in range(random.choice([1, 2, 3, 5, 8, 16])):
        if random.random() < 0.3:
            out.append(random.choice(pieces))
        else:
            low, high, _ = random.choices(ranges, [weight for *_, weight in ranges])[0]
            out.append(chr(random.randint(low, high)))
    return "".join(out)


texts = pieces + [string() for _ in range(200)]
texts += [
    "don't DON'T I'LL you\u2019re it'\u017f '\u212a", "  two  spaces", "tail   ", " \n \n\n x", "\r\n\r\n", "\t\ta\tb", "a\u0085b\u00a0c\u3000d\u200be\u001cf",
    "1234567 12,345.67 \u0661\u0662 \u2167", "\u01c5\u01c8 \u02b0\u02b1 \u0301x", "path/to/file.txt//\n", "!!! ?!\n\n...", "caf\u00e9 cafe\u0301 \u212b",
    "aababab zz ab?ba", "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f", "<|im_start|>user\nhi<|im_end|>", "[INST] a [/INST]</s><s>", "<think>\n\n</think>",
    "HTTPServer iPhone \u00c5ngstr\u00f6m\u00c4", "",
]
result = {"texts": texts, "folders": {}}
classes = {
    "CLIPTokenizer": CLIPTokenizer, "T5Tokenizer": T5Tokenizer, "Qwen2Tokenizer": Qwen2Tokenizer, "Qwen2TokenizerFast": Qwen2Tokenizer,
    # The processor needs torchvision; it hands text to this class.
    "PixtralProcessor": PreTrainedTokenizerFast, "PreTrainedTokenizerFast": PreTrainedTokenizerFast,
}
for name, (cls, files, configs) in folders.items():
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            shutil.copyfile(os.path.join(base, file), os.path.join(folder, os.path.basename(file)))
        for file, content in configs.items():
            with open(os.path.join(folder, file), "w", encoding="utf-8") as f:
                json.dump(content, f)
        tokenizer = classes[cls].from_pretrained(folder)
        rows = []
        for text in texts:
            ids = tokenizer(text).input_ids
            short = tokenizer(text, padding="max_length", max_length=9, truncation=True)
            rows.append([ids, short.input_ids, sum(short.attention_mask), tokenizer.decode(ids)])
        result["folders"][name] = {"class": cls, "files": files, "configs": configs, "rows": rows}
with open(os.path.join(here, "transformers.json"), "w", encoding="utf-8") as f:
    json.dump(result, f, ensure_ascii=False, separators=(",", ":"))
    f.write("\n")
