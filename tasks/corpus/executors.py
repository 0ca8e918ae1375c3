"""Cleaning on a Dask cluster, instead of in processes of this machine."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from model.common.errors import UserError
from tasks.project.parallel import check_stop

_CONNECT_SECONDS = 30
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class DaskCluster:
    """The workers of a Dask cluster; each needs this version of Cloze, and sees the folders or the S3 exchange."""

    address: str
    """Address of the scheduler: tcp://host:8786."""
    as_task: Callable[[Callable[[Any], Any]], Any] = lambda function: function
    """Makes a Prefect task of the function, so that the flow run shows each item; without it, it stays a function."""

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """(Item, `function` of it) as they are done; a stop, and a fault, take back what has not begun.

        Raises:
            Paused: the run was asked to stop.
            UserError: there is no scheduler or no worker, or workers died one after the other.
        """
        if not items:
            return
        from distributed import KilledWorker

        with self._client() as client:
            task = self.as_task(function)
            num_ahead = 2 * sum(client.nthreads().values()) + 2
            rest = iter(items)
            waiting: dict[Any, Any] = {}
            try:
                while True:
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
                    f"{self.address}: several Dask workers died on the same partition, probably out of memory "
                    f"({' '.join(str(error).split())[:200]}); give the workers more memory"
                ) from None
            finally:
                client.cancel(list(waiting))

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        try:
            from prefect_dask.client import PrefectDaskClient
        except ImportError:
            raise UserError("corpus.scheduler: needs the extra 'cluster': pip install -e '.[cluster]'") from None
        try:
            client = PrefectDaskClient(self.address, timeout=_CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"corpus.scheduler: no Dask scheduler at {self.address} ({reason}); start one") from None
        with client:
            try:
                client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
            except TimeoutError:
                raise UserError(
                    f"{self.address}: the Dask scheduler has no workers; start some (`dask worker {self.address}`)"
                ) from None
            yield client
