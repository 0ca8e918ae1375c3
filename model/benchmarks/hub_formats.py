"""The hub's Parquet files of the thirteen benchmarks: paths of the splits, columns, and names of label numbers.

Label orders are those of the ClassLabel features of nyu-mll/glue (its glue.py and dataset card; MNLI's is not the
alphabetical order of GLUE's files), allenai/swag and eriktks/conll2003 (its conll2003.py). Class names that `datasets`
wrote into a Parquet file take precedence.
"""

from __future__ import annotations

from model.benchmarks.benchmark import HubFormat

NER_TAGS = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC")
_MNLI_CLASSES = {name: name for name in ("entailment", "neutral", "contradiction")}
_ENTAILMENT = {name: name for name in ("entailment", "not_entailment")}
_PAIR = ("matched", "mismatched")


def _split(folder: str, first: str, second: str | None = None, classes: dict[str, str] | None = None) -> HubFormat:
    return HubFormat(
        train=f"{folder}/train",
        dev={"": f"{folder}/validation"},
        test={"": f"{folder}/test"},
        first=first,
        second=second,
        label="label",
        identity="idx",
        classes=classes or {},
    )


def _numbered(zero: str, one: str) -> dict[str, str]:
    """The hub's names of labels that GLUE's files call 0 and 1."""
    return {zero: "0", one: "1"}


def _squad(folder: str) -> HubFormat:
    return HubFormat(
        train=f"{folder}/train",
        dev={"": f"{folder}/validation"},
        first="question",
        second="context",
        label="answers",
        identity="id",
    )


def _conll(folder: str) -> HubFormat:
    return HubFormat(
        train=f"{folder}/train",
        dev={"": f"{folder}/validation"},
        test={"": f"{folder}/test"},
        first="tokens",
        label="ner_tags",
        identity="id",
        classes={tag: tag for tag in NER_TAGS},
    )


HUB_FORMATS: dict[str, tuple[HubFormat, ...]] = {
    "cola": (_split("glue/cola", "sentence", None, _numbered("unacceptable", "acceptable")),),
    "sst2": (_split("glue/sst2", "sentence", None, _numbered("negative", "positive")),),
    "mrpc": (_split("glue/mrpc", "sentence1", "sentence2", _numbered("not_equivalent", "equivalent")),),
    "qqp": (_split("glue/qqp", "question1", "question2", _numbered("not_duplicate", "duplicate")),),
    "stsb": (_split("glue/stsb", "sentence1", "sentence2"),),
    "mnli": (
        # The labeled diagnostic set has the same rows as diagnostic.tsv, in the same order.
        HubFormat(
            test={"diagnostic": "glue/diagnostic/diagnostic-full.tsv"},
            first="Premise",
            second="Hypothesis",
            label="Label",
            comes_first=True,
        ),
        HubFormat(
            train="glue/mnli/train",
            dev={part: f"glue/mnli/validation_{part}" for part in _PAIR},
            test={**{part: f"glue/mnli/test_{part}" for part in _PAIR}, "diagnostic": "glue/ax/test"},
            first="premise",
            second="hypothesis",
            label="label",
            identity="idx",
            classes=_MNLI_CLASSES,
        ),
        # two configs with only the dev and test files of MNLI
        HubFormat(
            dev={part: f"glue/mnli_{part}/validation" for part in _PAIR},
            test={part: f"glue/mnli_{part}/test" for part in _PAIR},
            first="premise",
            second="hypothesis",
            label="label",
            identity="idx",
            classes=_MNLI_CLASSES,
        ),
    ),
    "qnli": (_split("glue/qnli", "question", "sentence", _ENTAILMENT),),
    "rte": (_split("glue/rte", "sentence1", "sentence2", _ENTAILMENT),),
    "wnli": (_split("glue/wnli", "sentence1", "sentence2", _numbered("not_entailment", "entailment")),),
    "squad1": (_squad("squad/plain_text"),),
    "squad2": (_squad("squad/squad_v2"),),
    "swag": (
        HubFormat(
            train="swag/regular/train",
            dev={"": "swag/regular/validation"},
            test={"": "swag/regular/test"},
            classes={label: label for label in "0123"},
        ),
    ),
    "ner": (_conll("conll2003/conll2003"), _conll("conll2003")),
}
