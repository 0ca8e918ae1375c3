"""The memo gives the library's ids on every line, and `transformers` reads what we write."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from model.common.errors import UserError
from model.tokenizer.wordpiece import (
    SPECIAL_TOKENS,
    CachedTokenizer,
    SpecialIds,
    load_tokenizer,
    make_tokenizer,
    read_vocabulary,
    save_tokenizer,
    special_ids,
    tokenizer_digest,
    vocabulary_of,
)

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'\"-()[]é中국яßαİ$_`^"
PIECES = [
    "the",
    "##ing",
    "walk",
    "##ed",
    "un",
    "##able",
    "##ability",
    "cafe",
    "new",
    "york",
    "10",
    "##00",
    "wal",
]
VOCABULARY = [*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS if letter.isalnum()), *PIECES]

LINES = [
    "The walking man walked, unable; UNABILITY!",
    "",
    " ",
    "  two  blanks ",
    "tab\tand\nnewline\r\nand\x0bvertical\x85next\u2028line",
    "caf\u00e9 cafe\u0301 CAF\u00c9 na\u00efve \u0130stanbul stra\u00dfe \u03a3\u03a3\u03a3",
    "中文字 mixed中with국어 words",
    "no-break\u00a0space\u3000ideographic \u200bzero\u200dwidth\ufeff soft\u00adhyphen",
    "control\x00char\ufffd and \x7fdelete",
    "[CLS] is [MASK] not [SEP] a [PAD]token[UNK]",
    "a" * 100 + " " + "a" * 101 + " " + "b" * 5000,
    "don't can't U.S.A. 1,000.50 $5_000 `x^2`",
    "emoji 😀👍🏽 flags🇩🇪 and \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\u0301leading mark \u0301 alone \u0bcd",
    "mixed: Ωμέγα Привет שלום مرحبا हिन्दी ไทย",
    "\ud7ff\ue000 private \U0010ffff end",
]


def library_ids(tokenizer: Tokenizer, line: str) -> list[int]:
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.encode_special_tokens = True
    return plain.encode(line, add_special_tokens=False).ids


@pytest.mark.parametrize(("lowercase", "strip_accents"), [(True, None), (False, None), (True, False), (False, True)])
def test_ids_are_the_librarys(lowercase: bool, strip_accents: bool | None) -> None:
    tokenizer = make_tokenizer(VOCABULARY, lowercase=lowercase, strip_accents=strip_accents)
    memo = CachedTokenizer(tokenizer)
    for _ in range(2):  # the second time from memory
        tokens, lengths = memo.encode_lines(LINES)
        parts = np.split(tokens, np.cumsum(lengths)[:-1])
        for line, part in zip(LINES, parts):
            assert part.tolist() == library_ids(tokenizer, line), line
    assert tokens.dtype == np.uint16


def test_ids_on_random_unicode() -> None:
    tokenizer = make_tokenizer(VOCABULARY)
    memo = CachedTokenizer(tokenizer)
    random.seed(0)
    alphabet = [
        chr(code) for code in [*range(0x250), *range(0x300, 0x370), *range(0x2000, 0x2070), *range(0x4E00, 0x4E20)]
    ]
    alphabet += list(LETTERS * 8) + [" "] * 150
    for _ in range(400):
        line = "".join(random.choices(alphabet, k=random.randint(0, 60)))
        assert memo.encode(line).tolist() == library_ids(tokenizer, line), repr(line)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.tokenizer.word_cache._MOST_RUNS", 10)
    tokenizer = make_tokenizer(VOCABULARY)
    memo = CachedTokenizer(tokenizer)
    for number in range(500):
        line = f"walk{number} the unable {number}é {'x' * 70}{number}"
        assert memo.encode(line).tolist() == library_ids(tokenizer, line)
        assert memo._cache is not None and len(memo._cache) <= 10 + 5  # it forgets before a line, not within one


def test_tokenizers_of_other_kinds_go_to_the_library() -> None:
    other = Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    other.pre_tokenizer = pre_tokenizers.Whitespace()
    added = make_tokenizer(VOCABULARY)
    added.add_tokens(["new york"])
    for tokenizer in (other, added):
        memo = CachedTokenizer(tokenizer)
        for line in LINES:
            assert memo.encode(line + " in new york").tolist() == library_ids(tokenizer, line + " in new york")


def test_files_are_what_transformers_loads(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, BertTokenizerFast

    ours = make_tokenizer(VOCABULARY)
    save_tokenizer(ours, tmp_path)
    text, pair = "The caf\u00e9 walked, unable [MASK] 中文", "new York"
    expected = ours.encode(text, pair)
    for theirs in (AutoTokenizer.from_pretrained(str(tmp_path)), BertTokenizerFast.from_pretrained(str(tmp_path))):
        encoded = theirs(text, pair)
        assert encoded["input_ids"] == expected.ids
        assert encoded["token_type_ids"] == expected.type_ids
        assert theirs.mask_token_id == 4
        assert theirs.pad_token_id == 0
        assert len(theirs) == len(VOCABULARY)
        assert theirs.decode(encoded["input_ids"], skip_special_tokens=True).startswith("the cafe walked")


def test_saved_and_loaded_are_the_same(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(VOCABULARY)
    save_tokenizer(tokenizer, tmp_path / "a")
    loaded = load_tokenizer(tmp_path / "a")
    save_tokenizer(loaded, tmp_path / "b")
    for name in ("tokenizer.json", "vocab.txt", "tokenizer_config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert vocabulary_of(loaded) == VOCABULARY == read_vocabulary(tmp_path / "a" / "vocab.txt")
    assert special_ids(loaded) == SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
    assert tokenizer_digest(loaded) == tokenizer_digest(tokenizer)
    assert loaded.decode(loaded.encode("walked the").ids) == "walked the"


def test_digest_names_what_ids_depend_on() -> None:
    digest = tokenizer_digest(make_tokenizer(VOCABULARY))
    assert digest != tokenizer_digest(make_tokenizer([*VOCABULARY, "more"]))
    assert digest != tokenizer_digest(make_tokenizer(VOCABULARY, lowercase=False))
    truncating = make_tokenizer(VOCABULARY)
    truncating.enable_truncation(8)
    assert digest == tokenizer_digest(truncating)


def test_faults_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.json: missing; run the tokenizer stage"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json: no tokenizer\.json of the library"):
        load_tokenizer(tmp_path)
    state = json.loads(make_tokenizer(VOCABULARY).to_str())
    state["model"]["vocab"]["[mask]"] = state["model"]["vocab"].pop("[MASK]")
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] != "[MASK]"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match=r"no \[MASK\]; expected a vocabulary with"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_text("[PAD]\na\nb\na\n")
    with pytest.raises(UserError, match=r"vocab\.txt: line 4: the piece 'a' occurs twice"):
        read_vocabulary(tmp_path / "vocab.txt")
    with pytest.raises(UserError, match="missing; expected a vocab.txt"):
        read_vocabulary(tmp_path / "none.txt")
