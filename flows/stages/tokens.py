"""The tokens stage: turns the corpus into flat arrays of token ids."""

from __future__ import annotations

from flows.stage_flow import stage_flow, stage_run
from model.common.files import write_json
from tasks.prefect_tasks import step
from tasks.project.progress import echo
from tasks.project.workspace import folder_bytes, require_space
from tasks.tokens.tokens import build_tokens


@stage_flow("tokens")
def tokens() -> None:
    """Tokenize every document and split off the held-out documents."""
    from tasks.tokens.example_pair import example_pair  # imports torch, which the pipeline process does not need

    with stage_run("tokens") as run:
        build = run.project.build
        require_space(build, 3 * folder_bytes(build / "corpus"), "the tokens")
        bar = run.add_bar("tokens")
        tokenize = step(build_tokens, name="build-tokens")
        summary = tokenize(run.params.tokens, build / "corpus", build / "tokenizer", run.out_dir, bar.update)
        example = example_pair(run.out_dir, build / "tokenizer")
        write_json(run.out_dir / "example.json", example)
        echo(f"  {example['pair'] or 'packed'}: {example['text']}")
        echo(f"  answers: {' '.join(example['answers'])}")
        run.tracking.note(
            metrics={f"tokens/{part}": float(counts["num_tokens"]) for part, counts in summary["parts"].items()}
        )
