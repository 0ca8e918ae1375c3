"""Parameters of promotion and retraining."""

from __future__ import annotations

from pydantic import Field

from model.common.config_base import Settings


class PromotionSettings(Settings):
    """Rules by which a new encoder becomes the champion, and names of registered models."""

    model: str = Field(default="cloze", pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")
    """Prefix of the names of registered models: MODEL-encoder, and MODEL-TASK for each fine-tuned model."""
    margin: float = Field(default=1.0, ge=0, le=100)
    """Points by which the average may be lower at worst; with 0 an encoder must be shown to be no worse at all."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Confidence of the one-sided limits of the average and of the tasks that must not fall."""
    must_not_fall: tuple[str, ...] = ()
    """Tasks that must not be significantly worse than the champion's, whatever the average says."""
    may_be_degenerate: tuple[str, ...] = ("wnli",)
    """Tasks on which one answer for every row is accepted: on WNLI nothing else scores better, and the paper leaves it
    out."""
    licence: str = ""
    """License of the model card, as the hub spells it (apache-2.0); empty for none (`other`)."""
    cost_per_hour: float = Field(default=0.0, ge=0)
    """Price per hour of the machine, for the model card; 0 for no price."""


class RetrainSettings(Settings):
    """Retraining, on a schedule or on demand."""

    cron: str = "0 3 * * 0"
    """Time as five cron fields (default: Sundays at 3:00); `never` for on demand only."""
    timezone: str = "UTC"
    """Time zone of `cron`, such as Europe/Berlin."""
    fetch: bool = True
    """First look for new files in fetch.sources."""
    accept_data: bool = True
    """Pin data/ in data.dvc if it has changed."""
    push: bool = True
    """Run `dvc push` to the default remote."""
    branch: str = Field(default="retrain", pattern=r"^[A-Za-z0-9][A-Za-z0-9_./-]*$")
    """Prefix of the branches with dvc.lock: retrain/2026-01-25-3f29c1."""
