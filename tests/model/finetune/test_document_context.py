"""Tags with document context: what the windows hold, and that they help where the document decides, and only there."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from model.benchmarks.readers.examples import TagExample
from model.benchmarks.splits import read_dev, read_train
from model.benchmarks.table import BENCHMARKS
from model.common.errors import UserError
from model.common.state_files import read_state
from model.config.finetuning import FinetuneRecipe
from model.finetune.job import Job
from model.finetune.run import run_job
from model.heads.head import EvalDataset
from model.heads.token_classification import TagsDataset
from model.inference.predictor import load_finetuned
from model.ops.fused_cpu import IGNORED
from tests.model.conftest import READABLE_PIECES

MakeJob = Callable[..., Job]
NER = BENCHMARKS["ner"]
pytestmark = pytest.mark.usefixtures("torch_as_it_was")


def texts_of(dataset: EvalDataset, tokenizer: Tokenizer) -> list[str]:
    """The sequences without [CLS] and [SEP]; words with a label are in upper case."""
    sequences, targets = dataset.features.sequences, dataset.features.targets
    found = []
    for begin, end in zip(sequences.offsets, sequences.offsets[1:]):
        pieces = [tokenizer.id_to_token(int(token)) for token in sequences.values[begin:end]]
        shown = [piece if target == IGNORED else piece.upper() for piece, target in zip(pieces, targets[begin:end])]
        assert (shown[0], shown[-1]) == ("[CLS]", "[SEP]")
        found.append(" ".join(shown[1:-1]))
    return found


def write_documents(folder: Path, part: str, documents: list[list[list[tuple[str, str]]]]) -> None:
    lines = []
    for document in documents:
        lines += ["-DOCSTART- -X- -X- O", ""]
        for sentence in document:
            lines += [*(f"{word} X X {tag}" for word, tag in sentence), ""]
    (folder / "conll2003").mkdir(parents=True, exist_ok=True)
    (folder / "conll2003" / f"{part}.txt").write_text("\n".join(lines) + "\n")


def untagged(*sentences: str) -> list[list[tuple[str, str]]]:
    return [[(word, "O") for word in sentence.split()] for sentence in sentences]


def test_windows_are_filled_on_both_sides_within_the_document(tmp_path: Path, tokenizer: Tokenizer) -> None:
    first = untagged("the cat sat on a mat", "a dog ran", "walked in paris , france", "who is big ?")
    write_documents(tmp_path, "train", [first, untagged("a b c", "d e x y z")])
    examples = read_train(NER, tmp_path).examples
    recipe = FinetuneRecipe(max_length=10, document_context=True)
    assert texts_of(TagsDataset(NER, examples, tokenizer, recipe), tokenizer) == [
        "THE CAT SAT ON A MAT a dog",
        "a mat A DOG RAN walk ##ed in",
        "ran WALK ##ed IN PARIS , FRANCE who",
        "in paris , france WHO IS BIG ?",
        "A B C d e x y z",
        "a b c D E X Y Z",
    ]
    alone = texts_of(TagsDataset(NER, examples, tokenizer, FinetuneRecipe(max_length=10)), tokenizer)
    assert alone[:2] == ["THE CAT SAT ON A MAT", "A DOG RAN"]
    some = [examples[4], examples[1]]  # as `max_train_rows` selects them: neighbors need not be rows
    assert texts_of(TagsDataset(NER, some, tokenizer, recipe), tokenizer) == [
        "A B C d e x y z",
        "a mat A DOG RAN walk ##ed in",
    ]


def test_random_documents_fill_their_windows(tokenizer: Tokenizer) -> None:
    chance = random.Random(3)
    words = [*(word for word in READABLE_PIECES[5:] if not word.startswith("##")), "walked", "rans"]
    documents = [
        [tuple(chance.choices(words, k=chance.randrange(1, 15))) for _ in range(chance.randrange(1, 7))]
        for _ in range(60)
    ]
    examples = [
        TagExample(f"{number}-{index}", sentence, tuple(chance.choices(NER.labels, k=len(sentence))), document, index)
        for number, document in enumerate(documents)
        for index, sentence in enumerate(document)
    ]
    prepared = TagsDataset(NER, examples, tokenizer, FinetuneRecipe(max_length=40, document_context=True))
    assert prepared.features.num_rows == len(examples)
    num_pieces = [
        sum(len(tokenizer.encode(word, add_special_tokens=False)) for words in document for word in words)
        for document in documents
        for _ in document
    ]
    full = np.minimum(num_pieces, 38) + 2
    lengths = prepared.features.row_lengths
    assert (lengths <= full).all() and (lengths >= full - 2).all()  # a word of two pieces may not fit on either side
    targets = prepared.features.targets
    certain = np.eye(len(NER.labels))[np.maximum(targets, 0)].astype(np.float32)
    predicted = [record["prediction"] for record in prepared.evaluate(certain).predictions]
    assert predicted == [list(example.tags) for example in examples]
    assert (targets != IGNORED).sum() == sum(len(example.words) for example in examples)


def test_files_without_documents_are_refused_before_training(make_job: MakeJob, tmp_path: Path) -> None:
    write_documents(tmp_path, "train", [untagged("good film")])
    (tmp_path / "conll2003" / "valid.txt").write_text("good X X O\n")
    with pytest.raises(UserError, match=r"valid.txt: no documents, which document_context needs; .* recipe of ner"):
        run_job(make_job("ner", data_dir=tmp_path, document_context=True))


def named(chance: random.Random, num_documents: int, context_decides: bool) -> list[list[list[tuple[str, str]]]]:
    """Documents that are about persons (good) or organizations (bad), as their first or last sentence says.

    The names in the sentences between have the type of their document, or that of the name itself; a tenth have none.
    """
    documents = []
    for _ in range(num_documents):
        is_person = chance.random() < 0.5
        sentences = []
        for _ in range(2):
            name = chance.choice(["anna", "ben", "york", "rome"])
            tag = "B-PER" if (is_person if context_decides else name in ("anna", "ben")) else "B-ORG"
            tag = "O" if chance.random() < 0.1 else tag
            sentences.append([("the", "O"), ("scene", "O"), ("of", "O"), (name, tag), (".", "O")])
        says = untagged(" ".join(chance.choices(["good", "fine"] if is_person else ["bad", "poor"], k=5)))
        documents.append(says + sentences if chance.random() < 0.5 else sentences + says)
    return documents


def scores(make_job: MakeJob, data_dir: Path, document_context: bool) -> list[float]:
    """F1 on dev of two seeds."""
    found = []
    for seed in (1, 2):
        job = make_job(
            "ner",
            f"{data_dir.name}-{document_context}-{seed}",
            data_dir=data_dir,
            seed=seed,
            judge_share=0,
            document_context=document_context,
            num_epochs=10,
            max_length=24,
        )
        run_job(job)
        found.append(read_state(job.result_path)["scores"]["f1"])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("context_decides", [True, False])
def test_context_helps_where_it_decides_and_only_there(
    make_job: MakeJob, tmp_path: Path, context_decides: bool
) -> None:
    chance, data_dir = random.Random(1), tmp_path / "data"
    write_documents(data_dir, "train", named(chance, 150, context_decides))
    write_documents(data_dir, "valid", named(chance, 100, context_decides))
    differences = np.subtract(scores(make_job, data_dir, True), scores(make_job, data_dir, False))
    if context_decides:
        assert differences.min() > 20  # without it, the better type is guessed: half of the names are right
    else:
        assert np.abs(differences).max() < 3


def test_files_are_tagged_with_context_and_single_texts_without(make_job: MakeJob, small_data: Path) -> None:
    job = make_job("ner", document_context=True)
    run_job(job)
    published = load_finetuned(job.run_dir / "model")
    words = ("the", "actor", "was", "anna", "in", "york")
    alone = published.evaluate([TagExample("", words, ("O",) * len(words))])
    assert published.predict([" ".join(words)])[0]["prediction"] == alone.predictions[0]["prediction"]
    [part] = read_dev(NER, small_data).values()
    with_context = published.evaluate(part.examples)
    assert with_context.scores == read_state(job.result_path)["scores"]
    found = published.predict(part.examples)  # as from a file with documents
    assert [one["prediction"] for one in found] == [record["prediction"] for record in with_context.predictions]
