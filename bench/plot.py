"""Pictures of what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def draw_curves(curves: Mapping[str, Mapping[int, list[dict[str, float]]]], path: Path) -> None:
    """Held-out loss over seconds of training, a line per system and seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for (system, seeds), colour in zip(curves.items(), ("tab:grey", "tab:blue")):
        for number, points in enumerate(seeds.values()):
            seconds, losses = ([point[name] for point in points] for name in ("seconds", "mlm_loss"))
            axes.plot(seconds, losses, color=colour, alpha=0.8, label=system if number == 0 else None)
    axes.set_xlabel("seconds of training (one thread)")
    axes.set_ylabel("held-out masked-word loss")
    axes.legend()
    axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
