"""One training stage at a time on a machine's devices, across folders, where a worker of `cloze up` runs it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from model.common.errors import Paused
from tasks.jobs.resources import gpus
from tasks.project import signals
from tasks.project.progress import say
from tasks.servers.server_plan import DEVICES_VARIABLE

TRAINING = ("pretrain", "finetune")


@contextlib.contextmanager
def devices_for(stage: str) -> Iterator[None]:
    """Hold all of this machine's slots while a stage trains; others, and runs without a worker, hold none.

    Raises:
        ConcurrencySlotAcquisitionError: the server has no such limit, which Prefect would otherwise take for none.
    """
    limit = os.environ.get(DEVICES_VARIABLE)
    if limit is None or stage not in TRAINING:
        yield
        return
    from prefect.concurrency.sync import concurrency

    said = False
    with contextlib.ExitStack() as stack:
        while True:
            held = concurrency(
                limit,
                occupy=max(1, len(gpus())),
                timeout_seconds=5,
                strict=True,
                raise_on_lease_renewal_failure=False,  # a server that is away for a while ends no training
            )
            try:
                stack.enter_context(held)
                break
            except TimeoutError:
                if signals.requested.is_set():
                    raise Paused("stopped") from None
                if not said:
                    say(f"{stage}: another run trains on this machine; waiting")
                    said = True
        yield
