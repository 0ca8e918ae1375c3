"""Pre-training objectives: `OBJECTIVES` maps the recipe's `sentence_objective` to an `Objective`."""

from __future__ import annotations

from model.objectives.masked_lm import MaskedLanguageModeling
from model.objectives.objective import Objective

OBJECTIVES: dict[str, Objective] = {
    "next_sentence": MaskedLanguageModeling("next_sentence", "nsp"),
    "sentence_order": MaskedLanguageModeling("sentence_order", "sop"),
    "pair_without_loss": MaskedLanguageModeling("next_sentence"),
    "none": MaskedLanguageModeling("none"),
}
