"""Duplicates are found however many documents there are, and choices by digest are fair and stable."""

from __future__ import annotations

import pytest

from tasks.corpus.filters import dedup
from tasks.corpus.filters.dedup import SeenDigests, document_digest, share_of


def test_case_and_blanks_do_not_count() -> None:
    assert document_digest(["A b.", "C d."]) == document_digest(["a  B. c", "D."])
    assert document_digest(["A b."]) != document_digest(["A c."])


def test_seen_over_many_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup, "_RECENT", 16)
    seen = SeenDigests()
    digests = [document_digest([f"document {number}"]) for number in range(2000)]
    assert all(seen.add(digest) for digest in digests)
    assert not any(seen.add(digest) for digest in digests)
    assert len(seen._recent) < 200  # the rest is in the sorted array


def test_shares_are_uniform_and_independent() -> None:
    digests = [document_digest([f"document {number}"]) for number in range(20_000)]
    heldout = [share_of(digest, "heldout") < 0.1 for digest in digests]
    weight = [share_of(digest, "weight") < 0.5 for digest in digests]
    assert 0.09 < sum(heldout) / len(digests) < 0.11
    both = sum(a and b for a, b in zip(heldout, weight))
    assert 0.045 < both / len(digests) < 0.055
