"""Encoders to fine-tune: those that the pre-training stage published, and external ones below data/."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from model.common.errors import UserError
from model.common.files import digest_of, digest_of_file, read_json
from model.common.run_dir import RunDir
from tasks.params.finetune import ExternalEncoder

Kind = Literal["pretrained", "scratch", "external"]
ENCODER_FILES = ("config.json", "model.safetensors", "tokenizer.json", "vocab.txt")
_MAX_PADDING = 127  # vocabularies are padded to a multiple of 8, 64 or 128


@dataclass(frozen=True)
class EncoderSource:
    """An encoder in the `transformers` layout; `digest` is the hash of the files that fine-tuning reads."""

    name: str
    folder: Path
    kind: Kind
    digest: str


def find_encoders(external: Sequence[ExternalEncoder], pretrain_dir: Path, data_dir: Path) -> list[EncoderSource]:
    """List the pre-trained encoders by name, then the external ones in their given order.

    Raises:
        UserError: an external encoder lacks a file, does not match its tokenizer, or has the name of another encoder.
    """
    ours = [folder for folder in sorted(pretrain_dir.iterdir()) if RunDir(folder).metrics.exists()]
    found = [EncoderSource(folder.name, folder, _kind(folder), _digest(folder, ENCODER_FILES)) for folder in ours]
    for encoder in external:
        if any(other.name == encoder.name for other in found):
            raise UserError(f"finetune.encoders: pretrain also has an encoder '{encoder.name}'; rename one")
        found.append(_external(encoder.name, data_dir / encoder.path))
    return found


def weight_bytes(folder: Path) -> int:
    """Size of an encoder's weights on disk."""
    return max(path.stat().st_size for path in folder.iterdir() if path.suffix in (".safetensors", ".bin"))


def _kind(folder: Path) -> Kind:
    """Return `pretrained`, or `scratch` for an encoder with zero training steps."""
    return "pretrained" if read_json(RunDir(folder).metrics)["num_steps"] > 0 else "scratch"


def _external(name: str, folder: Path) -> EncoderSource:
    from model.formats.hf_folder import load_config  # imports torch, which other runs do not need
    from model.tokenizer.wordpiece import load_tokenizer

    where = f"finetune.encoders: {name}"
    if not folder.is_dir():
        raise UserError(f"{where}: {folder} is not a directory; put the encoder there or correct `path`")
    weights = "model.safetensors" if (folder / "model.safetensors").exists() else "pytorch_model.bin"
    for needed in ("config.json", weights, "tokenizer.json"):
        if not (folder / needed).is_file():
            missing = "model.safetensors" if needed == weights else needed
            raise UserError(
                f"{where}: {folder} has no {missing}; save the model and the fast tokenizer there with `transformers`"
            )
    size, rows = load_tokenizer(folder).get_vocab_size(), load_config(folder).vocab_size
    if not 0 <= rows - size <= _MAX_PADDING:
        raise UserError(
            f"{where}: {folder}: the tokenizer has {size} tokens, the encoder {rows}; use the encoder's own tokenizer"
        )
    files = [weights if file == "model.safetensors" else file for file in ENCODER_FILES]
    return EncoderSource(name, folder, "external", _digest(folder, files))


def _digest(folder: Path, names: Sequence[str]) -> str:
    return digest_of([(name, digest_of_file(folder / name)) for name in names if (folder / name).exists()])
