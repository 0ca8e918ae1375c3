"""Run cleaning jobs on a Dask cluster instead of in local processes."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from model.common.errors import UserError, missing_package
from tasks.cluster.dask_cluster import DaskEndpoint
from tasks.project.parallel import check_stop

_POLL_SECONDS = 0.05
_LOOK_SECONDS = 1.0  # between two looks at the workers


@dataclass(frozen=True)
class DaskCluster:
    """A Dask cluster. Workers need the same version of Cloze and access to the shared folders or S3 exchange."""

    open: Callable[[], DaskEndpoint]
    """Opens the cluster; called once, when there is something to do."""
    as_task: Callable[[Callable[[Any], Any]], Any] | None = None
    """Makes a Prefect task of the function, so that the flow run shows each item."""

    @functools.cached_property
    def endpoint(self) -> DaskEndpoint:
        """The open cluster."""
        return self.open()

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield (item, result) pairs as they finish. A stop or an error cancels items that have not started.

        Raises:
            Paused: a stop was requested, or all workers were lost.
            UserError: the scheduler is unreachable or has no workers, or several workers died on the same item.
        """
        if not items:
            return
        try:
            from distributed import Client, KilledWorker

            if self.as_task is not None:
                from prefect_dask.client import PrefectDaskClient as Client
        except ImportError as error:
            raise missing_package(error, self.endpoint.setting) from None

        with self.endpoint.client(Client) as client:
            task = function if self.as_task is None else self.as_task(function)
            wait, looked = self.endpoint.patience(), -math.inf
            rest = iter(items)
            waiting: dict[Any, Any] = {}
            try:
                while True:
                    if time.monotonic() - looked > _LOOK_SECONDS:
                        looked = time.monotonic()
                        num_threads = self.endpoint.num_threads(client)
                        wait.check(bool(num_threads))
                        num_ahead = 2 * sum(num_threads.values()) + 2
                    for item in itertools.islice(rest, num_ahead - len(waiting)):
                        waiting[client.submit(task, item, pure=False)] = item
                    if not waiting:
                        return
                    check_stop("finished items are kept")
                    done = [future for future in waiting if future.done()]
                    if not done:
                        time.sleep(_POLL_SECONDS)
                    for future in done:
                        yield waiting.pop(future), future.result()
            except KilledWorker as error:
                raise UserError(
                    f"{self.endpoint.address}: several Dask workers died on the same partition, probably out of memory "
                    f"({' '.join(str(error).split())[:200]}); give the workers more memory"
                ) from None
            finally:
                client.cancel(list(waiting))
