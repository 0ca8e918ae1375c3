"""`python -P -m tasks.cluster.dask_worker CONNECTION (node|cores)`: the Dask workers of one node, for a stage.

`node` starts one worker, and `cores` one per core, because cleaning is Python code. CONNECTION is a file with the
scheduler's address and this run's credentials, written by `tasks.cluster.dask_cluster`. A worker that loses the
scheduler connects again, and ends if it does not answer. SIGTERM ends it after its jobs have saved. Exit codes: 0 done
or canceled; 75 start it again (on Slurm SIGUSR1: the time limit is near; on Kubernetes SIGTERM: the pod is evicted).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from model.common import process_guard
from model.common.files import read_json
from tasks.cluster import dask_node
from tasks.cluster.node_supervisor import DONE, RESUMABLE
from tasks.jobs.local_launcher import end, module_command, start
from tasks.jobs.resources import num_cores

_SECONDS_TO_CONNECT = 30.0
_SECONDS_TO_SAVE = 20.0


def main(arguments: list[str]) -> int:
    """Run the workers of this node, and return the exit code."""
    process_guard.guard()
    connection, kind = arguments
    cores = min(num_cores(), int(os.environ.get("SLURM_CPUS_ON_NODE", num_cores())))
    if kind == "cores" and cores > 1:
        return _run_several(connection, cores)
    return asyncio.run(_run(Path(connection)))


def _run_several(connection: str, count: int) -> int:
    command = module_command("tasks.cluster.dask_worker", connection, "node")
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _frame: asked.append(number))
    workers = [start(command, None) for _ in range(count)]
    while not asked and any(worker.poll() is None for worker in workers):
        time.sleep(0.5)
    for worker in workers:
        worker.terminate()
    for worker in workers:
        end(worker, _SECONDS_TO_SAVE)
    return _code_of(asked)


def _code_of(asked: list[int]) -> int:
    is_canceled = "SLURM_JOB_ID" in os.environ and signal.SIGUSR1 not in asked  # Kubernetes just deletes the job
    return RESUMABLE if asked and not is_canceled else DONE


async def _run(connection: Path) -> int:
    from distributed import Security, Worker

    asked: list[int] = []
    loop = asyncio.get_running_loop()
    is_asked = asyncio.Event()

    def ask(number: int) -> None:
        asked.append(number)
        is_asked.set()

    for number in (signal.SIGTERM, signal.SIGUSR1):
        loop.add_signal_handler(number, ask, number)
    while not asked:
        try:
            found = read_json(connection)
        except FileNotFoundError:  # the stage has ended
            break
        credentials: dict[str, Any] = {"tls_worker_key": found["key"], "tls_worker_cert": found["certificate"]}
        security = Security(require_encryption=True, tls_ca_file=found["certificate"], **credentials)
        try:
            async with Worker(
                found["address"],
                nthreads=1,
                security=security,
                memory_limit=0,
                dashboard=False,
                death_timeout=_SECONDS_TO_CONNECT,
                local_directory=tempfile.gettempdir(),
            ) as worker:
                waiting = [asyncio.create_task(worker.finished()), asyncio.create_task(is_asked.wait())]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if asked:
                    await asyncio.to_thread(dask_node.leave, _SECONDS_TO_SAVE)
                waiting[1].cancel()
        except (TimeoutError, OSError) as error:
            print(f"the scheduler at {found['address']} does not answer ({type(error).__name__}); this worker ends")
            break
    return _code_of(asked)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
