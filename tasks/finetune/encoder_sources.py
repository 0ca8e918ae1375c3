"""The encoders of a fan-out: those that the pre-training stage left, and external ones below data/."""

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
_MOST_PADDING = 127  # a vocabulary is padded to a multiple of 8, 64 or 128


@dataclass(frozen=True)
class EncoderSource:
    """An encoder in the layout of `transformers`; `digest` is that of all that fine-tuning reads of it."""

    name: str
    folder: Path
    kind: Kind
    digest: str

    @property
    def weight_bytes(self) -> int:
        """The size of its weights on disk."""
        return weight_bytes(self.folder)


def find_encoders(external: Sequence[ExternalEncoder], pretrain_dir: Path, data_dir: Path) -> list[EncoderSource]:
    """Our encoders by name, then the external ones in their order.

    Raises:
        UserError: an external encoder lacks a file, has another's tokenizer, or the name of one of ours.
    """
    ours = [folder for folder in sorted(pretrain_dir.iterdir()) if RunDir(folder).metrics.exists()]
    found = [EncoderSource(folder.name, folder, _kind(folder), _digest(folder, ENCODER_FILES)) for folder in ours]
    for encoder in external:
        if any(other.name == encoder.name for other in found):
            raise UserError(f"finetune.encoders: pretrain has an encoder '{encoder.name}', too; give it another name")
        found.append(_external(encoder.name, data_dir / encoder.path))
    return found


def weight_bytes(folder: Path) -> int:
    """The size of an encoder's weights on disk."""
    return max(path.stat().st_size for path in folder.iterdir() if path.suffix in (".safetensors", ".bin"))


def _kind(folder: Path) -> Kind:
    """`pretrained`, or `scratch` for an encoder of zero steps."""
    return "pretrained" if read_json(RunDir(folder).metrics)["num_steps"] > 0 else "scratch"


def _external(name: str, folder: Path) -> EncoderSource:
    from model.formats.hf_bert import load_config  # with torch, which a run without external encoders need not import
    from model.tokenizer.wordpiece import load_tokenizer

    where = f"finetune.encoders: {name}"
    if not folder.is_dir():
        raise UserError(f"{where}: {folder} is no folder; put the encoder there or correct its path")
    weights = "model.safetensors" if (folder / "model.safetensors").exists() else "pytorch_model.bin"
    for needed in ("config.json", weights, "tokenizer.json"):
        if not (folder / needed).is_file():
            missing = "model.safetensors" if needed == weights else needed
            raise UserError(
                f"{where}: {folder} has no {missing}; save model and fast tokenizer of `transformers` there"
            )
    size, rows = load_tokenizer(folder).get_vocab_size(), load_config(folder).vocab_size
    if not 0 <= rows - size <= _MOST_PADDING:
        raise UserError(
            f"{where}: {folder}: the tokenizer has {size} tokens, the encoder {rows}; take both from one model"
        )
    files = [weights if file == "model.safetensors" else file for file in ENCODER_FILES]
    return EncoderSource(name, folder, "external", _digest(folder, files))


def _digest(folder: Path, names: Sequence[str]) -> str:
    return digest_of([(name, digest_of_file(folder / name)) for name in names if (folder / name).exists()])
