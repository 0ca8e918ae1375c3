"""Run cleaning jobs on a Dask cluster instead of in local processes."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from model.common.errors import UserError, missing_package
from tasks.project.parallel import check_stop

_CONNECT_SECONDS = 30
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class DaskCluster:
    """A Dask cluster. Workers need the same version of Cloze and access to the shared folders or S3 exchange."""

    address: str
    """Scheduler address, such as tcp://host:8786."""
    as_task: Callable[[Callable[[Any], Any]], Any] = lambda function: function
    """Wraps the function, for example as a Prefect task so that the flow run shows each item."""

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield (item, result) pairs as they finish. A stop or an error cancels items that have not started.

        Raises:
            Paused: a stop was requested.
            UserError: the scheduler is unreachable or has no workers, or several workers died on the same item.
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
        except ImportError as error:
            raise missing_package(error, "corpus.scheduler") from None
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
