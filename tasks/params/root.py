"""params.yaml: all parameters in one frozen tree. The larger sections have their own modules."""

from __future__ import annotations

import functools
import zoneinfo
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AliasChoices, ConfigDict, Field, field_validator, model_validator

from model.common.bounds import (
    MOST_ELEMENTS,
    NUMBER,
    Count,
    FilePath,
    Line,
    Name,
    NotNegative,
    Points,
    Processes,
    Seed,
    ShareBelowOne,
)
from model.common.config_base import Settings, SettingsError, located, placed
from model.common.errors import UserError
from model.config.encoder import EncoderShape
from model.config.hardware import HardwareOptions
from model.config.pretraining import PretrainRecipe, check_phases
from tasks.params.cluster import ClusterSettings
from tasks.params.corpus import CorpusSettings
from tasks.params.fetch import FetchSettings
from tasks.params.finetune import FinetuneParams, below_data
from tasks.project.yaml_files import line_of, read_yaml


class TokenizerSettings(Settings):
    """The section `tokenizer` of params.yaml."""

    vocab_size: Annotated[int, Field(ge=32, le=10_000_000), NUMBER] = 30_522
    """Vocabulary size, including special tokens (30,522 in BERT's uncased release). A small corpus may yield fewer."""
    lowercase: bool = True
    """Convert text to lowercase, as in BERT's uncased models."""
    strip_accents: bool | None = None
    """Remove accents; null removes them if `lowercase` is on, as BERT does."""
    min_frequency: Count = 2
    """Minimum number of occurrences for two pieces to be merged."""
    max_alphabet: Annotated[int, Field(ge=26, le=0x110000), NUMBER] = 1000
    """Number of most frequent characters to keep; words with any other character become [UNK]. Raise it for Chinese."""
    existing: FilePath | None = None
    """A vocab.txt or tokenizer.json to use instead of training one, relative to the project directory. The deps of
    tokenizer in dvc.yaml must include it. A tokenizer.json is used whole, with its own lowercasing and added tokens."""


class TokensSettings(Settings):
    """The section `tokens` of params.yaml."""

    heldout_fraction: ShareBelowOne = 0.01
    """Share of documents held out for validation. Documents are chosen by content hash, so adding documents does not
    move others between the sets, and duplicates are always in the same set."""
    heldout_sources: tuple[Line, ...] = ()
    """Sources of the corpus that are only for validation, such as general text next to text of a domain: no document of
    them is trained on, and pre-training reports the loss on each of them as heldout-SOURCE."""


class LeaderboardSettings(Settings):
    """Notes and the reference system of the leaderboard."""

    notes: tuple[str, ...] = ()
    """Notes about the data or the runs, shown below the title of the page."""
    reference: Line = Field(default="", validation_alias=AliasChoices("reference", "champion"))
    """The encoder that others are compared with; empty uses the one with the best average. (`champion`, the former name
    of this setting, still works.)"""
    paper_scores: bool | None = None
    """Show the scores that the BERT paper reports next to yours; null hides them if the benchmarks in data/ are those
    of `cloze sample`."""


class PromotionSettings(Settings):
    """Promotion rules for a new encoder to become the champion, and names of registered models."""

    model: str = Field(default="cloze", pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=64)
    """Prefix of the names of registered models: MODEL-encoder, and MODEL-TASK for each fine-tuned model."""
    margin: Points = 1.0
    """Accepted drop of the average in points from the best champion ever; with 0, the encoder must be shown to be no
    worse."""
    confidence: Annotated[float, Field(gt=0.5, lt=1), NUMBER] = 0.95
    """Confidence of the one-sided limit of the protected tasks, and of all limits of the average in `looks` decisions
    together."""
    looks: Count = 52
    """Number of gate decisions on the same dev rows that share the error rate, 1 - `confidence` (52: a year of weekly
    gates). With fewer, an encoder passes more easily."""
    must_not_fall: tuple[Line, ...] = ()
    """Protected tasks, on which the encoder must not be significantly worse than the best champion ever."""
    may_be_degenerate: tuple[Line, ...] = ("wnli",)
    """Tasks on which one answer for every row is accepted. On WNLI, nothing else scores better, and the paper excludes
    it."""
    max_collapse: ShareBelowOne = 0.2
    """Share of a task's seeds that may be degenerate although fewer were of the best champion ever."""
    license: Line = ""
    """License in the model card, as spelled on the hub (apache-2.0); empty for none (`other`)."""
    cost_per_hour: NotNegative = 0.0
    """Hourly price of the machine, for the model card; 0 omits it."""


class RetrainSettings(Settings):
    """Retraining, on a schedule or on demand."""

    cron: str = Field(default="0 3 * * 0", pattern=r"^(never|[\w*/,#-]+( +[\w*/,#-]+){4})$", max_length=200)
    """Schedule as five cron fields (default: Sundays at 3:00); `never` disables the schedule."""
    timezone: Line = "UTC"
    """Time zone of `cron`, such as Europe/Berlin."""
    fetch: bool = True
    """First check fetch.sources for new files."""
    accept_data: bool = True
    """Pin data/ in data.dvc if it has changed."""
    push: bool = True
    """Run `dvc push` to the default remote."""
    branch: str = Field(default="retrain", pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*([./][A-Za-z0-9_-]+)*$", max_length=100)
    """Prefix of the branches that contain the new dvc.lock, such as retrain/2026-01-25-3f29c1."""

    @field_validator("timezone")
    @classmethod
    def _is_known(cls, name: str) -> str:
        try:
            zoneinfo.ZoneInfo(name)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError("expected a time zone such as Europe/Berlin") from None
        return name


class TrackingSettings(Settings):
    """Artifacts of MLflow runs."""

    weights: Literal["all", "encoders", "none"] = "encoders"
    """The trained models to log as MLflow models in the runs of their training jobs, so that
    `mlflow.pyfunc.load_model("runs:/RUN_ID/model")` loads them: the encoders, the best fine-tuned models too, or none.
    In a local artifact store they are hard links; an MLflow server stores a copy."""


class CheckpointSyncSettings(Settings):
    """S3 copies of pre-training checkpoints. Credentials come only from the AWS environment variables and files."""

    url: str = Field(pattern=r"^s3://[a-z0-9][a-z0-9.-]+(/[A-Za-z0-9_=+-][A-Za-z0-9._=+-]*)*/?$")
    """s3://bucket or s3://bucket/prefix. Each job uses its own prefix below it, named by the job's digest."""
    endpoint_url: Line | None = None
    """Endpoint of an S3-compatible service; AWS_ENDPOINT_URL has the same effect."""
    num_kept: Count = 2
    """Number of checkpoints to keep per job, newest first."""
    patience_seconds: NotNegative = 120.0
    """How long to wait for S3 at the start of a job without a local checkpoint. After that the job exits with 75 rather
    than restart from scratch and risk discarding days of work."""
    drain_seconds: NotNegative = 300.0
    """How long to wait for the last upload when training has finished."""
    stop_seconds: NotNegative = 8.0
    """How long to wait for the last upload when the run was interrupted."""

    @field_validator("endpoint_url")
    @classmethod
    def _is_url(cls, address: str | None) -> str | None:
        parts = urlsplit(address or "")
        parts.port  # noqa: B018 (raises a ValueError that says what is wrong)
        if address is not None and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise UserError("mirror.endpoint_url: expected a URL that starts with https:// or http://")
        if parts.username is not None or parts.password is not None or parts.query:
            raise UserError(
                "mirror.endpoint_url: user, password and query are not allowed; set AWS_PROFILE, or"
                " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        return address


class StartParams(Settings):
    """The checkpoint that an encoder continues from."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    from_: FilePath = Field(alias="from", min_length=1)
    """Directory in the `transformers` layout, relative to data/ (the deps of pretrain in dvc.yaml must include it), or
    a model of the hub that `fetch.sources` downloads, such as google-bert/bert-base-uncased. Weights, vocabulary and
    heads are taken over."""

    @field_validator("from_")
    @classmethod
    def _below_data(cls, path: str) -> str:
        return below_data(path)


class EncoderParams(Settings):
    """One encoder to pre-train; each is a row of the leaderboard."""

    name: Name
    """Name in tables and directory names."""
    start: StartParams | None = None
    """A checkpoint to continue from, for example on text of a domain; null trains from initial weights
    (`recipe.start`)."""
    shape: EncoderShape | None = None
    """Encoder size: a preset, or explicit sizes; null uses the preset base or, with `start`, the checkpoint's size.
    With `start`, only the dropout can differ from the checkpoint."""
    recipe: dict[str, Any] = {}
    """Settings that override `pretrain.recipe` for this encoder; `phases: []` gives an untrained encoder (zero
    steps)."""
    seed: Seed | None = None
    """Seed of this encoder; null uses `pretrain.seed`."""
    seeds: list[Seed] = Field([], max_length=MOST_ELEMENTS)
    """Pre-train this encoder once per seed, as NAME-seed1, NAME-seed2, ... The leaderboard shows them as one system,
    whose comparisons also cover the pre-training seed. An empty list trains it once, with `seed`."""

    @property
    def full_shape(self) -> EncoderShape:
        """The shape of an encoder without `start`."""
        return self.shape or EncoderShape(preset="base")


class PretrainParams(Settings):
    """The encoders and how they are trained."""

    seed: Seed = 1
    """Random seed of weight initialization, sample order, masking and dropout."""
    recipe: dict[str, Any] = {}
    """PretrainRecipe settings for all encoders; anything not set uses BERT's original value."""
    encoders: list[EncoderParams] = Field(min_length=1, max_length=MOST_ELEMENTS)
    """The encoders; each is one training job, or one per seed in `seeds`."""
    num_parallel: Processes = 1
    """Number of encoders trained at the same time."""
    machine: HardwareOptions = HardwareOptions()
    """Hardware options of each job."""

    @model_validator(mode="after")
    def _check(self) -> PretrainParams:
        taken: set[str] = set()
        for index, encoder in enumerate(self.encoders):
            with located("pretrain", "encoders", index):
                self._check_names(encoder, taken)
            recipe = self.recipe_of(encoder)
            if encoder.start is None:
                with located("pretrain", "encoders", index, "shape"):
                    config = encoder.full_shape.build(vocab_size=30_522)  # raises if the sizes are inconsistent
                with located("pretrain", "encoders", index):
                    check_phases(recipe, self.machine, config, f"pretrain.encoders: {encoder.name}: ")
            elif not recipe.phases:
                with located("pretrain", "encoders", index):
                    raise UserError(
                        f"pretrain.encoders: {encoder.name} has no steps to continue with; add phases, or "
                        "list the checkpoint in finetune.encoders to fine-tune it as it is"
                    )
        return self

    def _check_names(self, encoder: EncoderParams, taken: set[str]) -> None:
        names = {encoder.name, *self.seeds_of(encoder)}
        for name in sorted(names & taken):
            raise UserError(f"pretrain.encoders: two encoders are named '{name}'")
        taken |= names
        if len(set(encoder.seeds)) < len(encoder.seeds):
            raise UserError(
                f"pretrain.encoders: {encoder.name}: seeds: expected different numbers, not {encoder.seeds}"
            )
        if encoder.seeds and encoder.seed is not None:
            raise UserError(f"pretrain.encoders: {encoder.name}: remove seed or seeds")
        if encoder.start is not None and "start" in encoder.recipe:
            raise UserError(f"pretrain.encoders: {encoder.name} has both start and recipe.start")

    def seeds_of(self, encoder: EncoderParams) -> dict[str, int]:
        """Return the name and the seed of each training of an encoder."""
        if encoder.seeds:
            return {f"{encoder.name}-seed{seed}": seed for seed in encoder.seeds}
        return {encoder.name: self.seed if encoder.seed is None else encoder.seed}

    def recipe_of(self, encoder: EncoderParams) -> PretrainRecipe:
        """Return the complete recipe of an encoder.

        Raises:
            SettingsError: a setting of it is invalid.
        """
        common = ("pretrain", "recipe")
        own = ("pretrain", "encoders", self.encoders.index(encoder), "recipe")
        values = placed(common, self.recipe) | placed(own, encoder.recipe)
        if encoder.start is not None:
            values |= placed(own, {"start": "random"})  # for heads that the checkpoint lacks
        return PretrainRecipe.combine(values, own if encoder.recipe else common)


class StageParams(Settings):
    """The sections that stages of dvc.yaml depend on; the experiment form in Prefect shows them."""

    corpus: CorpusSettings
    """Text sources, filters and de-duplication."""
    tokenizer: TokenizerSettings
    """The WordPiece vocabulary."""
    tokens: TokensSettings
    """Token arrays and the held-out share."""
    pretrain: PretrainParams
    """The encoders and how they are trained."""
    finetune: FinetuneParams
    """Fine-tuning of every encoder on every benchmark."""
    leaderboard: LeaderboardSettings = Field(default_factory=LeaderboardSettings)
    """The leaderboard page."""

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        names = [encoder.name for encoder in self.pretrain.encoders]
        names += [encoder.name for encoder in self.finetune.encoders]
        for name in self.finetune.epochs_factor:
            if name not in names:
                text = f"finetune.epochs_factor: no encoder '{name}'; known encoders: {', '.join(names)}"
                raise SettingsError((("finetune", "epochs_factor", name), text))
        sources = [source.name for source in self.corpus.sources]
        for name in self.tokens.heldout_sources:
            if name not in sources:
                text = f"tokens.heldout_sources: no source '{name}'; corpus.sources has {', '.join(sources)}"
                raise SettingsError((("tokens", "heldout_sources"), text))
        return self


class Params(StageParams):
    """All sections of params.yaml: those of the stages, and those of commands around them."""

    fetch: FetchSettings = Field(default_factory=FetchSettings)
    """Sources that `cloze fetch` downloads into data/. No stage depends on this section."""
    retrain: RetrainSettings = Field(default_factory=RetrainSettings)
    """Scheduled retraining. No stage depends on this section."""
    promotion: PromotionSettings = Field(default_factory=PromotionSettings)
    """When a new encoder becomes the champion. No stage depends on this section."""
    tracking: TrackingSettings = Field(default_factory=TrackingSettings)
    """Artifacts of MLflow runs. No stage depends on this section."""
    cluster: ClusterSettings = Field(default_factory=ClusterSettings)
    """Where jobs run. No stage depends on this section."""
    mirror: CheckpointSyncSettings | None = None
    """S3 copies of pre-training checkpoints. No stage depends on this section."""

    @property
    def pretrain_machine(self) -> HardwareOptions:
        """The machine of a pre-training job with steps: on a cluster, with the nodes and devices of its resources."""
        machine, wanted = self.pretrain.machine, self.cluster.pretrain
        if self.cluster.launcher == "local":
            return machine
        return machine.model_copy(
            update={"num_nodes": wanted.nodes, "num_devices": wanted.devices or machine.num_devices}
        )

    @model_validator(mode="after")
    def _several_nodes_have_a_launcher(self) -> Self:
        nodes = self.pretrain.machine.num_nodes
        if nodes > 1:
            text = (
                f"pretrain.machine.num_nodes: a run starts no processes on other machines by itself; set `cluster: "
                f"{{launcher: slurm, pretrain: {{nodes: {nodes}}}}}` instead"
            )
            raise SettingsError((("pretrain", "machine", "num_nodes"), text))
        return self

    @model_validator(mode="after")
    def _the_corpus_has_one_cluster(self) -> Self:
        if self.corpus.scheduler is not None and self.cluster.corpus is not None:
            text = "cluster.corpus: the corpus is cleaned on corpus.scheduler; remove one of the two"
            raise SettingsError((("cluster", "corpus"), text))
        return self

    @model_validator(mode="after")
    def _continued_text_has_a_vocabulary(self) -> Self:
        for index, encoder in enumerate(self.pretrain.encoders):
            if encoder.start is not None and self.tokenizer.existing is None:
                path = self.fetch.models.get(encoder.start.from_, encoder.start.from_)
                text = (
                    f"pretrain.encoders: {encoder.name} continues from a checkpoint, so the text needs "
                    f"its vocabulary: set `tokenizer: {{existing: data/{path}/tokenizer.json}}`"
                )
                raise SettingsError((("pretrain", "encoders", index, "start"), text))
        return self


def load_params(path: Path) -> Params:
    """Read and validate a parameter file.

    Raises:
        UserError: the file is invalid; the message names the file, the key, the expected value and the nearest key.
    """
    return Params.parse(read_yaml(path), path.name, functools.partial(line_of, path))
