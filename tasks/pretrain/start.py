"""Checkpoints in the `transformers` layout: external encoders of fine-tuning, and starting points of pre-training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from model.common.errors import UserError
from model.common.files import digest_of, digest_of_file
from model.config.encoder import EncoderConfig, EncoderShape
from model.config.pretraining import StartCheckpoint
from model.tokenizer.wordpiece import load_tokenizer, tokenizer_digest
from tasks.params.root import EncoderParams

ENCODER_FILES = ("config.json", "model.safetensors", "tokenizer.json", "vocab.txt")
_MAX_PADDING = 127  # vocabularies are padded to a multiple of 8, 64 or 128


def read_checkpoint(folder: Path, where: str, remedy: str) -> tuple[EncoderConfig, str]:
    """Return the configuration of the checkpoint in `folder`, and the digest of the files that training reads.

    Args:
        where: the setting that names the checkpoint, for messages.
        remedy: what to do if there is no such directory.

    Raises:
        UserError: a file is missing, the tokenizer does not match the weights, or it is not a BERT.
    """
    from model.formats.hf_folder import load_config  # imports torch, which other runs do not need

    if not folder.is_dir():
        raise UserError(f"{where}: {folder} is not a directory; {remedy}")
    weights = "model.safetensors" if (folder / "model.safetensors").exists() else "pytorch_model.bin"
    for needed in ("config.json", weights, "tokenizer.json"):
        if not (folder / needed).is_file():
            missing = "model.safetensors" if needed == weights else needed
            raise UserError(
                f"{where}: {folder} has no {missing}; save the model and the fast tokenizer there with `transformers`"
            )
    config = load_config(folder)
    size, rows = load_tokenizer(folder).get_vocab_size(), config.vocab_size
    if not 0 <= rows - size <= _MAX_PADDING:
        raise UserError(
            f"{where}: {folder}: the tokenizer has {size} tokens, the encoder {rows}; use the encoder's own tokenizer"
        )
    return config, digest_of_encoder(
        folder, [weights if file == "model.safetensors" else file for file in ENCODER_FILES]
    )


def digest_of_encoder(folder: Path, names: Sequence[str] = ENCODER_FILES) -> str:
    """Digest of the files of an encoder that training reads."""
    return digest_of([(name, digest_of_file(folder / name)) for name in names if (folder / name).exists()])


def start_of(
    encoder: EncoderParams, data_dir: Path, models: Mapping[str, str], text_tokenizer_digest: str
) -> StartCheckpoint | None:
    """Return the checkpoint that an encoder continues from, if any.

    Args:
        models: directory below data/ of each model of the hub that `cloze fetch` downloads.
        text_tokenizer_digest: digest of the tokenizer of the pre-training text.

    Raises:
        UserError: there is no such checkpoint, or it does not fit the text's vocabulary or the encoder's shape.
    """
    if encoder.start is None:
        return None
    name, where = encoder.start.from_, f"pretrain.encoders: {encoder.name}: start.from"
    path = models.get(name, name)
    folder = data_dir / path
    remedy = (
        f"run `cloze fetch` to download {name}"
        if name in models
        else f"put the checkpoint there, or, if '{name}' is a model of the hub, add it to fetch.sources "
        f"({{name: ..., kind: model, repo: {name}, revision: ..., to: encoders/...}}) and run `cloze fetch`"
    )
    config, digest = read_checkpoint(folder, where, remedy)
    tokenizer = load_tokenizer(folder)
    if tokenizer_digest(tokenizer) != text_tokenizer_digest:
        raise UserError(
            f"{where}: the text is tokenized with another vocabulary than that of {folder}; set `tokenizer: "
            f"{{existing: data/{path}/tokenizer.json}}` in params.yaml and run `cloze run` again"
        )
    config = config.model_copy(update={"vocab_size": tokenizer.get_vocab_size()})
    config = (encoder.shape or EncoderShape()).applied_to(config, where, str(folder))
    return StartCheckpoint(name=name, directory=folder, digest=digest, config=config)
