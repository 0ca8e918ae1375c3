"""Lightning's Fabric and its strategies, imported without torchmetrics.

Fabric imports all of torchmetrics (and with it scipy.signal, matplotlib and, where it is installed, transformers) to
compare its version, for a callback that is not used here: half of what a training process takes to start.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _absent(name: str) -> Iterator[None]:
    """A module that nobody has imported yet cannot be imported here."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # the import system's own sign for it
    try:
        yield
    finally:
        del sys.modules[name]


with _absent("torchmetrics"):
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import DDPStrategy, ModelParallelStrategy, Strategy

__all__ = ["DDPStrategy", "Fabric", "ModelParallelStrategy", "Strategy"]
