"""Beside `transformers`: the same numbers from the same weights, and the weights there and back."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer, BertConfig, BertForPreTraining, BertModel

from model.config.encoder import PRESETS, EncoderShape
from model.data.collator import PretrainBatch
from model.encoder.encoder import Encoder
from model.formats.hf_folder import load_encoder, load_heads, save_encoder, to_published
from model.objectives.masked_lm import PretrainingModule
from model.ops.keyed_dropout import DropoutKey

VOCABULARY = 30_522
# RECIPE.md, encoder and pooler at that vocabulary (tiny to medium: Turc et al. 2019).
PARAMETERS = {
    "tiny": 4_385_920,
    "mini": 11_170_560,
    "small": 28_763_648,
    "medium": 41_373_184,
    "base": 109_482_240,
    "large": 335_141_888,
}
NUM, LENGTH = 4, 40
LENGTHS = torch.tensor([40, 20, 33, 8])  # padding follows
MAX_DIFFERENCE = 1e-5
"""Of hidden states, pooled output and logits, absolute; of losses and gradients, relative."""


class Pair:
    """One preset with one set of random weights, as `transformers`' model and as ours, read from its files."""

    def __init__(self, preset: str, folder: Path) -> None:
        self.config = EncoderShape(preset=preset).build(VOCABULARY)
        torch.manual_seed(0)
        self.theirs = BertForPreTraining(BertConfig(**self.config.model_dump(), attn_implementation="eager")).eval()
        with torch.no_grad():  # biases start at 0 and scales at 1, where a mix-up would not show
            for parameter in self.theirs.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.02)
        self.folder = folder
        self.theirs.save_pretrained(folder)
        with torch.device("meta"):
            self.ours = PretrainingModule(self.config).eval()
        self.ours.encoder = load_encoder(folder)
        self.ours.masked, self.ours.next_sentence = load_heads(folder, self.config)


@pytest.fixture(
    scope="module",
    params=[pytest.param(preset, marks=pytest.mark.slow if preset == "base" else ()) for preset in list(PRESETS)[:5]],
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    yield Pair(request.param, tmp_path_factory.mktemp("theirs"))


def inputs() -> dict[str, Tensor]:
    """(4, 40) ids, segments and mask, as `transformers` names them, with padding in three of the four."""
    ids = torch.randint(0, VOCABULARY, (NUM, LENGTH), generator=torch.Generator().manual_seed(1))
    place = torch.arange(LENGTH).expand(NUM, LENGTH)
    mask = (place < LENGTHS[:, None]).long()
    return {"input_ids": ids, "token_type_ids": (place > LENGTHS[:, None] // 2).long(), "attention_mask": mask}


def hidden_states(encoder: Encoder, batch: dict[str, Tensor]) -> tuple[list[Tensor], Tensor]:
    """What the embeddings and each layer give, as `transformers`' hidden_states, and the pooled output."""
    states: list[Tensor] = []
    parts = [encoder.embeddings, *encoder.layers]
    shape = batch["input_ids"].shape
    hooks = [
        part.register_forward_hook(lambda _, given, state: states.append(state.view(*shape, -1))) for part in parts
    ]
    pooled = encoder(*batch.values()).pooler_output
    for hook in hooks:
        hook.remove()
    return states, pooled


def test_hidden_states_and_logits(pair: Pair) -> None:
    batch = inputs()
    with torch.no_grad():
        expected = pair.theirs(**batch, output_hidden_states=True)
        expected_pooled = pair.theirs.bert.pooler(expected.hidden_states[-1])
        states, pooled = hidden_states(pair.ours.encoder, batch)
        logits = pair.ours.masked(states[-1], pair.ours.encoder.embeddings.token.weight)
        following = pair.ours.next_sentence(pooled)
    real = batch["attention_mask"].bool()  # what stands at padding is nobody's business
    assert len(states) == len(expected.hidden_states)
    differences = {
        "hidden": max((ours - their)[real].abs().max() for ours, their in zip(states, expected.hidden_states)),
        "pooled": (pooled - expected_pooled).abs().max(),
        "mlm": (logits - expected.prediction_logits)[real].abs().max(),
        "nsp": (following - expected.seq_relationship_logits).abs().max(),
    }
    measured = {name: difference.item() for name, difference in differences.items()}
    print(measured)
    assert max(measured.values()) <= MAX_DIFFERENCE


def test_loss_and_every_gradient(pair: Pair) -> None:
    batch = inputs()
    positions = torch.tensor([[0, 3, 9, 17], [0, 1, 5, 12], [0, 2, 30, 31], [0, 6, 7, 0]])  # [CLS] first
    labels = torch.randint(0, VOCABULARY, (NUM, 3), generator=torch.Generator().manual_seed(2))
    labels[3, 2] = -100  # a prediction that is not used
    not_next = torch.tensor([0, 1, 1, 0])
    everywhere = torch.full((NUM, LENGTH), -100)
    for row in range(NUM):
        for position, label in zip(positions[row, 1:].tolist(), labels[row].tolist()):
            if label != -100:
                everywhere[row, position] = label
    expected = pair.theirs(**batch, labels=everywhere, next_sentence_label=not_next)
    expected.loss.backward()
    following = F.cross_entropy(expected.seq_relationship_logits, not_next).item()
    their = {name: parameter.grad for name, parameter in pair.theirs.named_parameters()}
    pair.theirs.zero_grad()

    ids, segments, _ = batch.values()
    keys = DropoutKey(1, 1, torch.arange(NUM)).expand(pair.ours.encoder.num_dropouts)  # unused in evaluation mode
    weights = torch.tensor([1 / 11, 0.0, 1 / NUM, 0.0])
    nothing = torch.zeros(NUM, 0), torch.zeros(0), torch.zeros(0)  # neither packed nor without padding
    fixed = LENGTHS, positions, labels, not_next, keys
    loss, sums = pair.ours(PretrainBatch(ids, segments, *fixed, *nothing), weights)
    loss.backward()
    gradients = copy.deepcopy(pair.ours)
    for copied, parameter in zip(gradients.parameters(), pair.ours.parameters(), strict=True):
        assert parameter.grad is not None
        copied.data = parameter.grad
    pair.ours.zero_grad()
    ours = to_published(gradients.encoder, gradients.masked, gradients.next_sentence)

    assert ours.keys() == their.keys()  # the tied embedding once
    relative = {}
    for name, gradient in their.items():
        scale = gradient.norm()
        if name.endswith("self.key.bias"):
            # Adding to all keys alike leaves the softmax as it is: this gradient is 0 but for rounding, so its error is
            # measured by that of the queries' bias.
            scale = their[name.replace("key", "query")].norm()
        relative[name] = ((ours[name] - gradient).norm() / scale).item()
    worst = max(relative, key=lambda name: relative[name])
    print({"loss": abs(loss.item() / expected.loss.item() - 1), worst: relative[worst]})
    assert loss.item() == pytest.approx(expected.loss.item(), rel=MAX_DIFFERENCE)
    assert sums[0].item() / 11 == pytest.approx(expected.loss.item() - following, rel=MAX_DIFFERENCE)
    assert sums[2].item() / NUM == pytest.approx(following, rel=MAX_DIFFERENCE)
    assert relative[worst] <= MAX_DIFFERENCE, worst


def test_theirs_to_ours_to_theirs_is_bit_equal(pair: Pair, tmp_path: Path) -> None:
    ours = pair.ours
    save_encoder(ours.encoder, tmp_path, masked=ours.masked, next_sentence=ours.next_sentence)
    there, back = load_file(pair.folder / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert there.keys() == back.keys()
    for name, tensor in there.items():
        assert torch.equal(back[name], tensor), name
    again = BertForPreTraining.from_pretrained(tmp_path)
    for name, tensor in pair.theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_have_the_papers_number_of_parameters(preset: str) -> None:
    config = EncoderShape(preset=preset).build(VOCABULARY)
    with torch.device("meta"):
        encoders = Encoder(config), BertModel(BertConfig(**config.model_dump()))
    counts = [sum(parameter.numel() for parameter in encoder.parameters()) for encoder in encoders]
    assert counts == [PARAMETERS[preset]] * 2


SENTENCES = [
    "The cat sat on the mat.",
    "Where does the river end?",
    "It rained for three days, and on the fourth the bridge was gone.",
    "Yes.",
    "A checkpoint is a folder that is either whole or not there.",
    "In 1953 Wilson Taylor proposed the cloze procedure as a measure of readability.",
    "She said that he had said that nobody would say anything.",
    "Prices rose by 2.5 % in May, after 3 % in April.",
    "The quick brown fox jumps over the lazy dog while the hens look on in silence.",
    "Naïve readers of the café's menu were surprised by the crème brûlée.",
    "Unbelievably, antidisestablishmentarianism fits on one line.",
    "Open the door, please!",
    "Nothing that was written on the first page could be found on the last one.",
    "Berlin, Paris and Rome are capitals; Milan is not.",
    "He paid $1,200 for it (plus tax).",
    "The encoder reads both sides of a word at once, which is why it cannot simply be asked for the next one.",
    "Why not?",
    "Water boils at a lower temperature in the mountains than it does at the sea.",
    "email addresses such as someone@example.org are split into many pieces",
    "If the answer is longer than the question, then the question was probably too short to begin with.",
]


@pytest.mark.slow
def test_a_real_checkpoint_gives_the_same_hidden_states(tmp_path: Path) -> None:
    """CLOZE_REAL_CHECKPOINT names a folder with a published BERT: config.json, weights and the tokenizer's files."""
    folder = os.environ.get("CLOZE_REAL_CHECKPOINT")
    if not folder:
        pytest.skip("CLOZE_REAL_CHECKPOINT names no folder with a published BERT (config.json, model.safetensors)")
    theirs = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    encoder = load_encoder(folder)
    batch = AutoTokenizer.from_pretrained(folder)(SENTENCES, return_tensors="pt", padding=True)
    batch = {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
    with torch.no_grad():
        expected = theirs(**batch, output_hidden_states=True)
        states, pooled = hidden_states(encoder, batch)
    real = batch["attention_mask"].bool()
    assert not real.all()

    def error(ours: Tensor, their: Tensor) -> float:  # of the vectors, the worst
        return ((ours - their).norm(dim=-1) / their.norm(dim=-1)).max().item()

    pairs = zip(states, expected.hidden_states, strict=True)
    relative = [error(ours[real], their[real]) for ours, their in pairs]
    relative.append(error(pooled, expected.pooler_output))
    print({"hidden": max(relative[:-1]), "pooled": relative[-1]})
    assert max(relative) <= MAX_DIFFERENCE
    save_encoder(encoder, tmp_path)
    again = BertModel.from_pretrained(tmp_path)
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
