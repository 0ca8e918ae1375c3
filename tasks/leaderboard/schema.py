"""Schema of leaderboard.json, of board.json (over all recorded runs), and of the history's record.json.

Fields whose key in the file differs from the attribute have an alias. Scores are from 0 to 100.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import pydantic
from pydantic import AliasChoices, Field, FiniteFloat

from model.benchmarks.table import Benchmark
from tasks.project.workspace import run_id, run_label
from tasks.stats.selection import FileRecord

RECORD_FORMAT = 1
Kind = Literal["pretrained", "scratch", "external"]
Points = list[dict[str, int | float]]
"""Points of a learning curve: step and values."""
Cost = dict[str, int | float]
"""num_jobs, num_timed (jobs with timing on this machine) and, if every timed job reports them, the sums of seconds,
cpu_seconds and energy_joules and the maxima of peak_memory_bytes and peak_device_memory_bytes."""


class FileModel(FileRecord):
    """Model of a file whose keys may be aliases."""

    model_config = pydantic.ConfigDict(populate_by_name=True)

    def content(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)


class ScoreSummary(FileRecord):
    """One metric of a system on a benchmark, over the runs that count."""

    mean: FiniteFloat
    std: FiniteFloat | None
    """Sample standard deviation of the runs, or of the means of several pre-trainings; None for one run."""
    median: FiniteFloat
    best: FiniteFloat
    num_runs: int | None
    """None for scores from the paper, which does not report the number."""


class EvaluationData(FileRecord):
    """Rows that a run was trained and scored on."""

    num_train_rows: int
    num_dev_rows: int
    """Dev rows that the scores are reported on."""
    num_selection_rows: int = 0
    """Other dev rows, for selection; 0 if the reported rows also select."""
    num_all_train_rows: int | None = None
    """Rows of the whole training file; missing in results of older versions."""
    num_all_dev_rows: int | None = None
    num_skipped_rows: int = 0
    dev_digest: str = ""
    """Digest of the reported dev rows."""

    @property
    def dev_rows(self) -> tuple[int, str]:
        """Identity of the dev rows. Scores are compared only on the same rows."""
        return self.num_dev_rows, self.dev_digest


def dev_rows_differ(one: tuple[int, str], other: tuple[int, str]) -> str:
    """Describe how two sets of dev rows (`EvaluationData.dev_rows`) differ; empty if they are the same."""
    if one[0] != other[0]:
        return f"other dev rows: {one[0]:,} against {other[0]:,}"
    return "" if one[1] == other[1] else "other dev rows of the same number"


class SelectionGap(FileRecord):
    """The chosen recipe's mean score on the rows that selected it, compared with the reported score."""

    mean: FiniteFloat
    """Mean headline score over seeds on the rows for selection."""
    difference: FiniteFloat
    """`mean` minus the reported mean, in points."""
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    """95 % interval over dev rows; None if predictions are not available."""


class CellRecord(EvaluationData):
    """A measured system on one benchmark: the chosen recipe, its runs and the data."""

    recipe: dict[str, Any]
    num_recipes: int
    seeds: list[int]
    """Fine-tuning seeds of the recipe's runs."""
    values: list[FiniteFloat]
    """Their headline scores."""
    runs: list[str]
    """Their digests."""
    pretrain_seeds: list[int] = []
    """Their pre-training seeds, if the system has several pre-trainings."""
    encoders: list[str] = []
    """Their encoders, if the system has several pre-trainings."""
    jobs: list[str]
    """Digests of all runs of all recipes."""
    num_degenerate: int
    all_degenerate: bool
    learned_mean: FiniteFloat | None = None
    """Mean of the runs that are not degenerate, if there are both kinds."""
    best_run: str
    selected: list[str] = []
    """What was selected by dev scores: recipe, epoch, threshold."""
    selection: SelectionGap | None = None
    """None if the reported rows also select."""
    num_pruned: int = 0
    after: list[str] = []
    """Benchmarks on which it was fine-tuned before."""
    ensemble: dict[str, FiniteFloat] | None = None

    @property
    def num_pretrainings(self) -> int:
        return len(set(self.pretrain_seeds)) or 1

    @property
    def num_runs(self) -> int:
        """Runs of the recipe, degenerate ones included. Records before version 3 list only the others in `seeds`."""
        listed_apart = self.num_degenerate and not self.all_degenerate and self.learned_mean is None
        return len(self.seeds) + (self.num_degenerate if listed_apart else 0)


class System(FileRecord):
    """A system of the table: a measured encoder, or one from the paper."""

    name: str
    kind: str
    split: str
    average: FiniteFloat | None
    glue_average: FiniteFloat | None
    scores: dict[str, dict[str, ScoreSummary]]
    """benchmark → metric → score"""

    def score(self, task: str, metric: str) -> ScoreSummary | None:
        """Return a score, or None if the system does not have it."""
        return self.scores.get(task, {}).get(metric)


class QuotedSystem(System):
    """A system whose scores the BERT paper reports."""

    kind: Literal["quoted"] = "quoted"
    paper_name: str
    average_of: str | None
    prominent: bool
    """Show by default; the other quoted systems are folded."""
    source: dict[str, str]
    """benchmark → table of the paper"""


class MeasuredSystem(System):
    """An encoder that was fine-tuned."""

    kind: Kind
    digest: str
    """Identifies the fine-tuning jobs; systems with the same digest are identical."""
    cells: dict[str, CellRecord]

    encoder: str = Field(default="", exclude=True)
    """Name of the encoder in params.yaml, if it differs from `name`."""
    cost: SystemCost | None = Field(default=None, exclude=True)

    @pydantic.model_validator(mode="after")
    def _whole(self) -> MeasuredSystem:
        if set(self.scores) != set(self.cells):
            raise ValueError(f"system '{self.name}': scores and cells are of different benchmarks")
        return self


class RunSystem(MeasuredSystem):
    average_of: str | None = None
    pretrain_jobs: dict[str, str] = {}
    """Pre-training job of each encoder of the system, by its name; empty for an external encoder."""
    pretrainings: list[RunSystem] = []
    """The encoders of a system with several pre-trainings."""


class SystemCost(FileRecord):
    """Cost of a system's jobs over all recipes, because finding the best one requires them all."""

    total: Cost
    """Fine-tuning on all benchmarks."""
    tasks: dict[str, Cost]
    pretraining: Cost = {}
    """Pre-training, if its timing is on this machine."""

    @property
    def seconds(self) -> float | None:
        """Pre-training and fine-tuning; None if the timing of a job is missing."""
        parts = [self.total, *([self.pretraining] if self.pretraining else [])]
        if any(part["num_timed"] < part["num_jobs"] or "seconds" not in part for part in parts):
            return None
        return sum(part["seconds"] for part in parts)


class CombinedSystem(MeasuredSystem):
    """A system of one or more recorded runs."""

    encoder: str
    runs: list[str]
    """Digests of the records, latest first."""
    cost: SystemCost | None


class MajorityBaseline(FileRecord):
    """Scores of always predicting the majority label."""

    split: str = "dev"
    average: FiniteFloat | None = None
    scores: dict[str, dict[str, FiniteFloat]] = {}


Verdict = Literal["ahead", "behind", "perhaps ahead", "perhaps behind", "level", "untested", "none"]


class ReferenceComparison(FileRecord):
    """A system compared with the reference on one benchmark."""

    reason: str = ""
    """Reason why the systems are not compared; empty if they are."""
    difference: FiniteFloat | None = None
    """Difference in points; positive if the system is better than the reference."""
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    """95 % interval over dev rows."""
    pretrain_low: FiniteFloat | None = None
    pretrain_high: FiniteFloat | None = None
    """95 % interval over dev rows and pre-training seeds; None if a system has a single pre-training."""
    row_p: FiniteFloat | None = None
    seed_p: FiniteFloat | None = None
    """None if the test is not possible."""
    p: FiniteFloat | None = None
    """The largest p-value of the tests."""
    p_corrected: FiniteFloat | None = None
    verdict: Verdict = "none"
    """ahead, behind: significant after Holm's correction; perhaps …: only before; level: not significantly different;
    untested: no test is possible; none: not compared."""


Comparisons = dict[str, dict[str, ReferenceComparison]]
"""system → benchmark → comparison"""


class GapInterval(FileRecord):
    """Mean difference over benchmarks with its 95 % interval."""

    mean: FiniteFloat | None
    low: FiniteFloat | None
    high: FiniteFloat | None
    num_benchmarks: int
    num_ahead: int


class LargeGapInterval(GapInterval):
    """Mean difference over benchmarks with many training rows."""

    min_train_rows: int
    tasks: list[str]


class TaskGap(FileRecord):
    """Headline means on one benchmark."""

    pretrained: FiniteFloat
    scratch: FiniteFloat
    difference: FiniteFloat
    standard_error: FiniteFloat | None
    """Standard error over seeds; None if a system has one run."""
    num_train_rows: int


class GapToScratch(FileRecord):
    pretrained: str
    scratch: str
    split: str
    confidence: float
    per_task: dict[str, TaskGap]
    all: GapInterval
    large: LargeGapInterval


class PretrainCurve(FileRecord):
    encoder: str
    """Name of the encoder: of a system with several pre-trainings, the first."""
    num_steps: int
    num_tokens_seen: int
    train: Points
    heldout: Points


class FinetuneCurve(FileRecord):
    """Learning curve of a fine-tuning run: training loss, and headline scores on dev."""

    seed: int
    loss: Points
    scores: Points


class Curves(FileRecord):
    """Learning curves by encoder, those of fine-tuning also by benchmark."""

    pretrain: dict[str, PretrainCurve]
    finetune: dict[str, dict[str, list[FinetuneCurve]]]


class ErrorRow(FileRecord):
    """A dev row that a run got wrong."""

    id: str
    part: str = ""
    value: float
    """Value that ranks the rows."""
    texts: list[tuple[str, str]]
    prediction: str
    label: str


class SystemErrors(FileRecord):
    """Dev rows that a system's best run on a benchmark got wrong (errors.json of
    model.benchmarks.scoring.error_examples), and the identity of the run."""

    ranked_by: str
    num_rows: int
    num_wrong: int | None
    rows: list[ErrorRow]
    system: str
    seed: int
    score: FiniteFloat


class ClassScores(FileRecord):
    """A class of a benchmark, or a type of entity, as one run predicts it. Scores are from 0 to 100."""

    name: str
    num_rows: int
    """Rows (or entities) of this class in the data."""
    num_predicted: int
    precision: FiniteFloat
    recall: FiniteFloat
    f1: FiniteFloat


class ClassReport(FileRecord):
    """The classes of a benchmark as a system's best run predicts them, on the reported dev rows."""

    system: str
    seed: int
    num_rows: int
    classes: list[ClassScores]
    confusion: list[list[int]] | None
    """Rows by class, then by predicted class; None for entities, and for many classes."""


class FlaggedRun(FileRecord):
    """A degenerate run."""

    encoder: str
    benchmark: str
    seed: int
    recipe: dict[str, Any]
    reason: str
    score: FiniteFloat
    chosen_recipe: bool
    """True if it is a run of the chosen recipe, so that its score counts."""


class BoardModel(FileModel):
    """Content that leaderboard.json and board.json share."""

    format: int = 3
    systems: Sequence[System]
    tasks: list[str]
    titles: dict[str, str]
    headline: dict[str, str]
    """benchmark → headline metric"""
    baselines: dict[Literal["majority"], MajorityBaseline]
    reference: str | None = Field(validation_alias=AliasChoices("reference", "champion"))  # the name before format 3
    """The system that the others are compared with."""
    comparisons: Comparisons
    gap: GapToScratch | None = Field(validation_alias="lead", serialization_alias="lead")
    """The best pre-trained encoder and the best from scratch."""
    gaps: list[GapToScratch] = Field(validation_alias="leads", serialization_alias="leads")
    """All pairs of a pre-trained encoder and one from scratch."""
    missing: list[dict[str, str]]
    """Missing metrics.json files: {encoder, benchmark, file}."""
    runs: dict[Literal["total", "degenerate"], int]
    """Numbers of fine-tuning runs."""
    notes: list[str]

    @property
    def measured(self) -> Sequence[MeasuredSystem]:
        return [one for one in self.systems if isinstance(one, MeasuredSystem)]

    @property
    def quoted(self) -> list[QuotedSystem]:
        return [one for one in self.systems if isinstance(one, QuotedSystem)]

    @property
    def majority(self) -> dict[str, float]:
        """benchmark → headline score of the majority label, if known"""
        scores = self.baselines["majority"].scores
        return {task: scores[task][metric] for task, metric in self.headline.items() if metric in scores.get(task, {})}


class Leaderboard(BoardModel):
    """leaderboard.json: the systems of one pipeline run."""

    custom: dict[str, Benchmark] = Field(validation_alias="own", serialization_alias="own")
    systems: list[RunSystem | QuotedSystem]
    curves: Curves
    errors: dict[str, list[SystemErrors]]
    """benchmark → wrong rows of each system"""
    classes: dict[str, list[ClassReport]] = {}
    """benchmark with classes → report of each system"""
    controls: dict[str, str] = {}
    """Benchmark or metric of pre-training on which the sample is expected to show no gain → the reason."""
    flagged: list[FlaggedRun]
    skipped: list[dict[str, str | int]]
    """Benchmarks with skipped rows: {benchmark, num_skipped_rows}."""
    remarks: dict[str, dict[Literal["skipped", "odd"], list[str]]]
    """benchmark → skipped rows of its files, and unusual rows that were kept"""

    @pydantic.field_validator("errors", mode="before")
    @classmethod
    def _lists(cls, errors: Any) -> Any:
        """Before format 3, a benchmark had the errors of one system, or null."""
        if not isinstance(errors, dict):
            return errors
        return {task: found if isinstance(found, list) else [found] if found else [] for task, found in errors.items()}


class RunFacts(FileModel):
    """Provenance of a pipeline run."""

    name: str = ""
    """Name that the user gave the run."""
    written: str
    """Time as 2026-11-21T16:33:19+0000."""
    git_commit: str = ""
    data: str = ""
    """Digest that data.dvc pins."""
    params_digest: str = ""
    pipeline: str = ""
    """Key of the pipeline run (tag `cloze.run` in MLflow); its first 8 characters are the run's id."""
    workspace: str = ""
    """Directory relative to the project's home; empty for the project itself."""
    host: str = ""
    versions: dict[str, int] = {}
    """Code version of each stage."""
    stage_seconds: dict[str, float] = {}
    """Duration of each stage when it last ran."""

    @property
    def id(self) -> str:
        """Id of the pipeline run."""
        return run_id(self.pipeline)

    @property
    def title(self) -> str:
        """Name and id of the run, as in MLflow, Prefect and the workspace."""
        return run_label(self.id, self.name)


class ParameterizedRun(RunFacts):
    """Provenance and parameters of a pipeline run."""

    params: dict[str, Any] = {}
    """Parameters of the stages, with defaults; empty in records of older versions."""


class RecordedRun(RunFacts):
    """Provenance of a recorded leaderboard."""

    digest: str = Field(pattern="^[0-9a-f]{16}$")
    """Identifies the ranked jobs; name of the record's directory."""
    paper_scores: bool = True
    """True if the page shows the paper's scores next to those of the run."""
    tasks: list[str]

    @property
    def id(self) -> str:
        """Id of the pipeline run; of the record, if its run is not known."""
        return run_id(self.pipeline or self.digest)


class RunSummary(RecordedRun):
    """A recorded run, as listed on the page over all runs."""

    systems: list[str]
    repeats: list[RunFacts]
    num_jobs: int
    seconds: float | None
    energy_joules: float | None


class CombinedBoard(BoardModel):
    """board.json: the systems of all recorded runs, each once."""

    systems: list[CombinedSystem | QuotedSystem]
    records: list[RunSummary]
    settings: dict[str, dict[str, str]]
    """system → parameters in which the systems differ, with its values; empty if its run did not record them"""


class RunRecord(ParameterizedRun, RecordedRun):
    """record.json: the measured systems of one leaderboard."""

    format: int = RECORD_FORMAT
    custom: dict[str, Benchmark] = Field(default={}, validation_alias="own", serialization_alias="own")
    titles: dict[str, str]
    headline: dict[str, str]
    systems: list[RunSystem] = Field(min_length=1)
    majority: MajorityBaseline = MajorityBaseline()
    cost: dict[str, SystemCost] = {}
    notes: list[str] = []
    repeats: list[ParameterizedRun] = []
    """Other runs with the same results, such as with another license of a source."""

    def system(self, name: str) -> RunSystem | None:
        """Return the system, or the pre-training of a system, of this name."""
        there = [*self.systems, *(one for system in self.systems for one in system.pretrainings)]
        return next((one for one in there if one.name == name), None)


def rounded(value: float) -> float:
    """Round to the four decimals of leaderboard.json (the paper prints one), without a negative zero."""
    return round(value, 4) + 0.0


Means = Mapping[str, Mapping[str, float]]
"""benchmark → metric → mean"""


def means_of(scores: Mapping[str, Mapping[str, ScoreSummary]]) -> Means:
    return {task: {metric: score.mean for metric, score in row.items()} for task, row in scores.items()}


def average(means: Means, columns: Collection[tuple[str, str]]) -> float | None:
    """Average `columns` (benchmark, metric); None if one is missing.

    Every benchmark has one headline metric: for MNLI, the mean of matched and mismatched.
    """
    if not columns or any(metric not in means.get(benchmark, {}) for benchmark, metric in columns):
        return None
    return rounded(statistics.fmean(means[benchmark][metric] for benchmark, metric in columns))
