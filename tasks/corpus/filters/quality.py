"""Quality gates of a document beside its length: script, language, repetition; each counted by its reason."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from model.common.config_base import Settings
from tasks.corpus.filters.languages import is_other_language, script_share
from tasks.corpus.filters.repetition import repeated_shares
from tasks.corpus.sources.documents import Dropped
from tasks.corpus.sources.hashed_words import HashedWords


class GateSettings(Settings):
    """What a document must be to stay, beside long enough; null switches a gate off."""

    min_script_share: float | None = Field(default=0.5, gt=0, le=1)
    """Drop documents fewer of whose letters are of the scripts of their source's language ("wrong script")."""
    check_language: bool = False
    """Drop documents that py3langid takes for another language than their source's ("wrong language"). Half a
    millisecond a document; errs on short ones and between near languages."""
    max_repeated_sentences: float | None = Field(default=0.3, ge=0, le=1)
    """Drop documents in which more of the sentences stood before ("repeats itself"). As Rae et al. 2021
    (arXiv:2112.11446, table A1) for lines."""
    max_repeated_words: float | None = Field(default=0.2, ge=0, le=1)
    """Drop documents in which more of the words are in sentences that stood before. As there."""
    max_documents_with_sentence: int | None = Field(default=None, ge=1)
    """Cut sentences that stand in more documents of the corpus than this ("boilerplate sentence")."""


WRONG_SCRIPT, WRONG_LANGUAGE, REPEATS, BOILERPLATE = (
    "wrong script", "wrong language", "repeats itself", "boilerplate sentence"
)  # fmt: skip


def check(sentences: Sequence[str], words: HashedWords, language: str, settings: GateSettings) -> None:
    """Let a document pass, or not.

    Args:
        sentences: the document.
        words: its words.
        language: code of the language that it should be in.
        settings: the gates.

    Raises:
        Dropped: it must go; the message is the reason.
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
