"""The tokenizer stage: trains a WordPiece vocabulary on the corpus."""

from __future__ import annotations

from flows.stage_flow import stage_flow, stage_run
from tasks.prefect_tasks import step
from tasks.tokens.tokenizer import train_tokenizer


@stage_flow("tokenizer")
def tokenizer() -> None:
    """Train the vocabulary, or copy an existing one."""
    with stage_run("tokenizer") as run:
        bar = run.add_bar("tokenizer")
        train = step(train_tokenizer, name="train-tokenizer")
        train(run.params.tokenizer, run.project.build / "corpus", run.out_dir, bar.update)
        run.artifacts.append(("vocab.txt", "tokenizer"))
