"""Quality filters of a document: script, language and repetition."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Sequence

import numpy as np

from tasks.corpus.filters.repetition import repeated_shares
from tasks.corpus.sources.file_chunks import Dropped
from tasks.corpus.sources.hashed_words import LAST_POINT, HashedWords, code_points
from tasks.params.corpus import QualitySettings

WRONG_SCRIPT, WRONG_LANGUAGE, REPEATS, BOILERPLATE = (
    "wrong script", "wrong language", "repeats itself", "boilerplate sentence"
)  # fmt: skip


def check(sentences: Sequence[str], words: HashedWords, language: str, settings: QualitySettings) -> None:
    """Apply the quality filters to a document.

    Args:
        sentences: the document.
        words: its words.
        language: code of the language that it should be in.
        settings: limits of the filters.

    Raises:
        Dropped: the document fails a filter; the message is the reason.
    """
    shares = repeated_shares(words)
    if settings.max_repeated_sentences is not None and shares.sentences > settings.max_repeated_sentences:
        raise Dropped(REPEATS)
    if settings.max_repeated_words is not None and shares.words > settings.max_repeated_words:
        raise Dropped(REPEATS)
    if settings.min_script_share is not None or settings.check_language:
        text = " ".join(sentences)
        if settings.min_script_share is not None and script_share(text, language) < settings.min_script_share:
            raise Dropped(WRONG_SCRIPT)
        if settings.check_language and is_other_language(text, language):
            raise Dropped(WRONG_LANGUAGE)


# The first word of a character's Unicode name is its script.
_SCRIPTS_OF_LANGUAGES = {
    "LATIN": (
        "af an ast az br bs ca ceb co cs cy da de diq en eo es et eu fi fo fr fy ga gd gl gn ha hr hsb ht hu ia id ig "
        "io is it jv ku la lb li ln lt lv mg mi min ms mt nap nds nl nn no nb oc pam pl pms pt qu rm ro scn sco sh "
        "simple sk sl so sq su sv sw tk tl tr uz vec vi vo wa war wo xh yo zu"
    ),
    "CYRILLIC": "av ba be bg ce cv kk kv ky mk mn os ru sah tg tt udm uk",
    "GREEK": "el",
    "ARABIC": "ar arz azb ckb fa ps sd ug ur pnb",
    "HEBREW": "he yi",
    "DEVANAGARI": "hi mr ne new sa mai bh",
    "BENGALI": "bn as bpy",
    "GURMUKHI": "pa",
    "GUJARATI": "gu",
    "ORIYA": "or",
    "TAMIL": "ta",
    "TELUGU": "te",
    "KANNADA": "kn",
    "MALAYALAM": "ml",
    "SINHALA": "si",
    "THAI": "th",
    "LAO": "lo",
    "TIBETAN": "bo dz",
    "MYANMAR": "my",
    "GEORGIAN": "ka xmf",
    "ARMENIAN": "hy hyw",
    "ETHIOPIC": "am ti",
    "KHMER": "km",
    "CJK": "zh yue wuu gan lzh ja ko",
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "HANGUL": "ko",
}
_CHARACTERS_FOR_LANGUAGE = 2_000


def scripts_of(language: str) -> frozenset[str]:
    """The scripts that a language is written in; empty for one that is not in the table (or written in several)."""
    code = language.partition("-")[0].lower()
    return frozenset(script for script, languages in _SCRIPTS_OF_LANGUAGES.items() if code in languages.split())


def script_share(text: str, language: str) -> float:
    """The share of a text's letters in the language's scripts; 1 where it has no letter or no script is known."""
    scripts = scripts_of(language)
    if not scripts or (text.isascii() and "LATIN" in scripts):
        return 1.0
    names, numbers = _scripts()
    points = code_points(text)
    counts = np.bincount(numbers[np.minimum(points, LAST_POINT)], minlength=len(names))
    num_letters = int(counts[1:].sum())
    own = sum(int(counts[number]) for number, name in enumerate(names) if name in scripts)
    return own / num_letters if num_letters else 1.0


def is_other_language(text: str, language: str) -> bool:
    """Check whether py3langid detects another language; False for languages that it does not know."""
    classify, known = _identifier()
    code = {"simple": "en", "nb": "no", "nn": "no"}.get(language, language.partition("-")[0].lower())
    if code not in known:
        return False
    found = classify(text[:_CHARACTERS_FOR_LANGUAGE])[0]
    return {"nb": "no", "nn": "no"}.get(found, found) != code


@functools.cache
def _scripts() -> tuple[list[str], np.ndarray]:
    """(Names of scripts, the first for what is no letter; (LAST_POINT + 1,) uint8: the script of each code point)."""
    names = {"": 0}
    numbers = np.zeros(LAST_POINT + 1, dtype=np.uint8)
    for point in range(LAST_POINT):
        if chr(point).isalpha():
            name = unicodedata.name(chr(point), "?").split()[0]
            numbers[point] = names.setdefault(name, min(len(names), 255))
    return list(names), numbers


@functools.cache
def _identifier():  # type: ignore[no-untyped-def]
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE)
    return identifier.classify, frozenset(identifier.labels)
