"""Benchmarks that start from what another benchmark made of the encoder (intermediate fine-tuning)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from model.benchmarks.table import Benchmark
from model.common.errors import UserError


@dataclass(frozen=True)
class Link:
    """What a benchmark's jobs start from: the best job of the benchmark `after`, or its best with the same seed."""

    after: str
    same_seed: bool = False
    keep_head: bool = False


def check_links(links: Mapping[str, Link | None], row: Callable[[str], Benchmark]) -> None:
    """Refuse chains that cannot run.

    Raises:
        UserError: a link to a benchmark that does not run, a cycle, or a head that does not fit.
    """
    for name, link in links.items():
        if link is None:
            continue
        where = f"finetune.benchmarks.{name}"
        if link.after not in links:
            row(link.after)  # a misspelt name is told so
            raise UserError(f"{where}.after: {link.after} is not among finetune.benchmarks; add it there")
        if link.keep_head and not _heads_agree(row(name), row(link.after)):
            raise UserError(
                f"{where}.keep_head: {name} and {link.after} have other heads or labels; leave keep_head out"
            )
        chain = chain_of(name, links)
        if chain[-1] in chain[:-1]:
            raise UserError(f"{where}.after: {' after '.join(chain)} is a circle; take one of them out")


def chain_of(name: str, links: Mapping[str, Link | None]) -> list[str]:
    """The benchmark, the one that it comes after, the one that that comes after ...; a circle is followed once."""
    chain = [name]
    while (link := links.get(chain[-1])) is not None:
        chain.append(link.after)
        if link.after in chain[:-1]:
            break
    return chain


def in_order(links: Mapping[str, Link | None]) -> list[str]:
    """The benchmarks in their own order, but each after what it starts from."""
    ordered: dict[str, None] = {}
    for name in links:
        ordered |= dict.fromkeys(reversed(chain_of(name, links)))
    return list(ordered)


def _heads_agree(one: Benchmark, other: Benchmark) -> bool:
    return (one.head, one.labels) == (other.head, other.labels)
