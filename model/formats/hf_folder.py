"""Encoders on disk in the layout of `transformers`: config.json, model.safetensors and the tokenizer files.

Each model family is a class like `BertFormat` in its own module. To support another family, write such a class and
add it to `FORMATS`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from model.common.digests import check_digests
from model.common.errors import UserError
from model.common.files import load_json, write_bytes, write_json
from model.config.encoder import EncoderConfig
from model.encoder.encoder import Encoder
from model.encoder.init import initialize
from model.formats.hf_bert import BertFormat
from model.objectives.masked_lm import MaskedLanguageHead, NextSentenceHead

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json")

_MOST_PADDING_ROWS = 127  # a vocabulary is padded to a multiple of 8, 64 or 128

FORMATS = {"bert": BertFormat()}
"""The formats by `model_type` in config.json."""
_FORMAT = FORMATS["bert"]  # used for all encoders that `EncoderConfig` can describe


def to_published(
    encoder: Encoder,
    masked: MaskedLanguageHead | None = None,
    next_sentence: NextSentenceHead | None = None,
    *,
    has_pooler: bool = True,
) -> dict[str, Tensor]:
    """Return all parameters under their `transformers` names, as fp32 tensors on the CPU.

    A pooler that is missing (`Encoder.has_pooler`) or left out has no tensors.
    """
    has_pooler = has_pooler and encoder.has_pooler
    published: dict[str, Tensor] = {}
    names = _FORMAT.names(encoder)
    for name, tensor in encoder.state_dict().items():
        if name.startswith("pooler.") and not has_pooler:
            continue
        published |= dict(zip(names[name], tensor.chunk(len(names[name]))))
    for head, head_names in ((masked, _FORMAT.masked), (next_sentence, _FORMAT.next_sentence)):
        if head is not None:
            published |= {head_names[name]: tensor for name, tensor in head.state_dict().items()}
    return {name: tensor.detach().to("cpu", torch.float32).clone() for name, tensor in published.items()}


def save_encoder(
    encoder: Encoder,
    directory: str | Path,
    tokenizer_dir: Path | None = None,
    *,
    masked: MaskedLanguageHead | None = None,
    next_sentence: NextSentenceHead | None = None,
    sentence_objective: str = "next_sentence",
    has_pooler: bool = True,
) -> None:
    """Write the encoder (and its pre-training heads, where given) for `transformers` and for `load_encoder`.

    Equal weights give equal bytes. The tokenizer's files are copied from `tokenizer_dir`.

    Args:
        sentence_objective: the objective that trained `next_sentence`. config.json names it and its classes, because
            `transformers` has one name for the heads of all such objectives.
        has_pooler: False leaves the pooler out, as in a BertForMaskedLM.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = to_published(encoder, masked, next_sentence, has_pooler=has_pooler)
    write_bytes(directory / "model.safetensors", save(tensors, metadata={"format": "pt"}))
    architecture = "BertModel"
    if masked is not None:
        architecture = "BertForMaskedLM" if next_sentence is None else "BertForPreTraining"
    config = _FORMAT.to_hf(encoder.config, architecture)
    if next_sentence is not None:
        labels = _FORMAT.sentence_labels[sentence_objective]
        config |= {"sentence_objective": sentence_objective, "sentence_labels": labels}
    write_json(directory / "config.json", config)
    for name in TOKENIZER_FILES:
        if tokenizer_dir is not None and (tokenizer_dir / name).is_file():
            shutil.copyfile(tokenizer_dir / name, directory / name)


def load_config(directory: Path) -> EncoderConfig:
    """Read the configuration from a published folder.

    Raises:
        UserError: config.json is missing or damaged, or does not describe BERT.
    """
    path = directory / "config.json"
    values = load_json(path, "; expected a folder with config.json and model.safetensors")
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected an object, found {type(values).__name__}")
    family = FORMATS.get(str(values.get("model_type", "bert")), _FORMAT)  # rejects unsupported model types
    try:
        return family.from_hf(values, str(path))
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def load_tensors(directory: Path, vocab_size: int) -> dict[str, Tensor]:
    """Load the published tensors of a folder, under the names of `to_published`.

    Accepts weights without the `bert.` prefix and with the old names gamma and beta. Rows that pad the vocabulary
    beyond `vocab_size` are removed.

    Raises:
        UserError: the weights are missing or damaged, differ from digests.json, or contain more than tensors.
    """
    path = weights_path(directory)
    check_digests(directory, (path.name, "config.json").__contains__)
    try:
        found = load_file(path) if path.suffix == ".safetensors" else _load_pickled(path)
    except SafetensorError as error:
        raise UserError(f"{path}: damaged ({error}); fetch or train the encoder again") from None
    tensors = {_FORMAT.canonical(name): tensor for name, tensor in found.items()}
    for name in (_FORMAT.token_embedding, *_FORMAT.tied, *_FORMAT.tied.values()):
        if name in tensors and tensors[name].ndim and 0 < len(tensors[name]) - vocab_size <= _MOST_PADDING_ROWS:
            tensors[name] = tensors[name][:vocab_size]
    for name, tied in _FORMAT.tied.items():  # a file with one of two tied tensors may contain either
        if name in tensors:
            tensors.setdefault(tied, tensors[name])
    return tensors


def weights_path(directory: Path) -> Path:
    """Find the file with a folder's weights.

    Raises:
        UserError: there is no such file.
    """
    safe, pickled = directory / "model.safetensors", directory / "pytorch_model.bin"
    if not safe.is_file() and not pickled.is_file():
        raise UserError(f"{safe}: missing; expected the weights of an encoder")
    return safe if safe.is_file() else pickled


def _load_pickled(path: Path) -> dict[str, Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged pickles raise anything
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"{path}: damaged or not only tensors ({type(error).__name__}: {reason}); expected weights that load "
            "without running code; fetch the encoder again, as model.safetensors"
        ) from None
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in found.items()
    ):
        raise UserError(f"{path}: expected only named tensors; save the model's state_dict() to this file")
    size = path.stat().st_size
    for name, value in found.items():  # a view may repeat one number, and a sparse tensor may have wrong indices
        if value.layout != torch.strided or value.device.type != "cpu" or value.nbytes > size:
            raise UserError(f"{path}: '{name}' is sparse, without values, or larger than the file; expected weights")
    return found


def fill(module: nn.Module, names: Mapping[str, list[str]], tensors: Mapping[str, Tensor], source: Path) -> None:
    """Copy published tensors into a module; `names` maps each parameter to its tensors, concatenated by rows."""
    check_shapes(module, names, tensors, source)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.cat([tensors[part] for part in names[name]]))


def check_shapes(
    module: nn.Module, names: Mapping[str, list[str]], tensors: Mapping[str, Tensor], source: Path
) -> None:
    """Raise a UserError unless the tensors fit the module, which may be on the meta device; see `fill`."""
    for name, parameter in module.named_parameters():
        expected = (parameter.shape[0] // len(names[name]), *parameter.shape[1:])
        for part in names[name]:
            value = tensors.get(part)
            if value is None:
                raise UserError(f"{source}: no tensor '{part}'; expected the weights of a matching model")
            if value.shape != expected:
                found = f"has shape {tuple(value.shape)}, expected {expected} by config.json"
                raise UserError(f"{source}: '{part}' {found}")
            if not value.is_floating_point():
                raise UserError(f"{source}: '{part}' has {value.dtype}; expected floating-point numbers")


def load_encoder(directory: str | Path) -> Encoder:
    """Load the encoder from a published folder, in evaluation mode and without heads.

    An encoder saved without a pooler (sentence-embedding models, BertForMaskedLM) gets a pooler of zeros.

    Raises:
        UserError: a file is missing or damaged, or a shape differs from config.json.
    """
    directory = Path(directory)
    config = load_config(directory)
    return encoder_of(config, load_tensors(directory, config.vocab_size), weights_path(directory))


def encoder_of(config: EncoderConfig, tensors: dict[str, Tensor], source: Path) -> Encoder:
    """Build the encoder from the tensors that `load_tensors` read from `source`; see `load_encoder`."""
    if config.num_hidden_layers > len(tensors):
        raise UserError(f"{source}: {len(tensors)} tensors; expected num_hidden_layers {config.num_hidden_layers}")
    try:
        with torch.device("meta"):  # initial weights would only be overwritten
            encoder = Encoder(config)
    except (RuntimeError, TypeError):  # beyond 64 bits
        raise UserError(f"{source}: expected weights of the sizes in config.json, which no file can have") from None
    for name, parameter in encoder.pooler.named_parameters():  # views of one zero, until they are copied
        tensors.setdefault(f"{_FORMAT.pooler}.{name}", torch.zeros(()).expand(parameter.shape))
    check_shapes(encoder, _FORMAT.names(encoder), tensors, source)  # before memory for the sizes of config.json
    encoder.to_empty(device="cpu")
    fill(encoder, _FORMAT.names(encoder), tensors, source)
    return encoder.eval()


def load_heads(
    directory: str | Path, config: EncoderConfig, *, seed_of_missing: int | None = None
) -> tuple[MaskedLanguageHead, NextSentenceHead]:
    """Load the pre-training heads from a published folder, in evaluation mode.

    Args:
        seed_of_missing: seed of the initial weights of heads that the folder lacks (a BertModel has none, a
            BertForMaskedLM only one); None raises an error instead.

    Raises:
        UserError: a head is missing or incomplete, or the output matrix is not the token embedding.
    """
    tensors, source = _load_tied(directory, config)
    heads = nn.ModuleDict({"masked": MaskedLanguageHead(config), "next_sentence": NextSentenceHead(config)})
    if seed_of_missing is not None:
        initialize(heads, seed_of_missing, config.initializer_range)
    for head, names in ((heads["masked"], _FORMAT.masked), (heads["next_sentence"], _FORMAT.next_sentence)):
        if seed_of_missing is None or not tensors.keys().isdisjoint(names.values()):
            fill(head, {name: [published] for name, published in names.items()}, tensors, source)
    masked, next_sentence = heads.eval().values()
    assert isinstance(masked, MaskedLanguageHead) and isinstance(next_sentence, NextSentenceHead)
    return masked, next_sentence


def load_parts(
    directory: str | Path,
    encoder: Encoder,
    *,
    masked: MaskedLanguageHead | None = None,
    next_sentence: NextSentenceHead | None = None,
    sentence_objective: str = "next_sentence",
    has_pooler: bool = True,
) -> list[str]:
    """Copy a checkpoint into an encoder and heads with initial weights; the arguments are those of `save_encoder`.

    A sentence head that another objective has trained is not copied, because its classes have another meaning.

    Returns:
        The parts that the checkpoint lacks, which keep their initial weights.

    Raises:
        UserError: a file is missing or damaged, or a shape differs.
    """
    tensors, source = _load_tied(directory, encoder.config)
    values = load_json(Path(directory) / "config.json")
    missing = []
    pooler = {f"{_FORMAT.pooler}.{name}": parameter for name, parameter in encoder.pooler.named_parameters()}
    if tensors.keys().isdisjoint(pooler):
        tensors |= pooler
        missing += ["pooler"] if has_pooler else []
    fill(encoder, _FORMAT.names(encoder), tensors, source)
    has_trained = values.get("sentence_objective", "next_sentence") == sentence_objective
    for title, head, names, is_usable in (
        ("masked language modeling head", masked, _FORMAT.masked, True),
        (f"{sentence_objective.replace('_', ' ')} head", next_sentence, _FORMAT.next_sentence, has_trained),
    ):
        if head is None:
            continue
        if not is_usable or tensors.keys().isdisjoint(names.values()):
            missing.append(title)
        else:
            fill(head, {name: [published] for name, published in names.items()}, tensors, source)
    return missing


def load_masked_head(directory: str | Path, config: EncoderConfig) -> MaskedLanguageHead:
    """Load only the masked language modeling head, as in a BertForMaskedLM; see `load_heads`."""
    tensors, source = _load_tied(directory, config)
    if tensors.keys().isdisjoint(_FORMAT.masked.values()):
        raise UserError(f"{source}: no masked language modeling head; choose an encoder that was pre-trained with one")
    head = MaskedLanguageHead(config)
    fill(head, {name: [published] for name, published in _FORMAT.masked.items()}, tensors, source)
    return head.eval()


def _load_tied(directory: str | Path, config: EncoderConfig) -> tuple[dict[str, Tensor], Path]:
    directory = Path(directory)
    tensors, source = load_tensors(directory, config.vocab_size), weights_path(directory)
    for name, tied in _FORMAT.tied.items():
        if name in tensors and not torch.equal(tensors[name], tensors[tied]):
            raise UserError(f"{source}: '{name}' differs from '{tied}'; expected equal (tied) tensors, as in BERT")
    return tensors, source
