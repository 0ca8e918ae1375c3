"""Jobs side by side as cores, memory and GPUs allow."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from model.config.hardware import HardwareOptions
from tasks.jobs import resources
from tasks.jobs.resources import (
    DEVICE_CONTEXT_BYTES,
    MemoryEstimate,
    ResourcePool,
    available_bytes,
    find_resources,
    num_cores,
    out_of_memory_kills,
)

GB = 10**9


def test_jobs_come_in_while_their_sum_fits() -> None:
    pool = ResourcePool(num_jobs=3, memory_bytes=10 * GB)
    assert pool.allocate("a", MemoryEstimate(6 * GB)) is not None
    assert pool.allocate("b", MemoryEstimate(5 * GB)) is None
    assert pool.allocate("c", MemoryEstimate(4 * GB)) is not None
    assert pool.allocate("d", MemoryEstimate(1)) is None
    pool.release("a")
    assert pool.allocate("b", MemoryEstimate(5 * GB)) is not None
    assert pool.allocate("e", MemoryEstimate(1 * GB)) is not None
    assert pool.allocate("f", MemoryEstimate(0)) is None, "three are the most"


def test_one_that_needs_more_than_there_is_runs_when_nothing_else_does() -> None:
    pool = ResourcePool(num_jobs=4, memory_bytes=GB)
    assert pool.allocate("small", MemoryEstimate(1)) is not None
    assert pool.allocate("huge", MemoryEstimate(5 * GB)) is None
    pool.release("small")
    assert pool.allocate("huge", MemoryEstimate(5 * GB)) is not None
    assert pool.allocate("small", MemoryEstimate(1)) is None
    pool.release("huge")
    assert pool.allocate("small", MemoryEstimate(1)) is not None
    assert pool.allocate("alone", MemoryEstimate(1), alone=True) is None


def test_gpus_are_filled_evenly_as_far_as_their_memory_goes() -> None:
    need = MemoryEstimate(1, 4 * GB)
    pool = ResourcePool(8, GB, {"0": 2 * (4 * GB + DEVICE_CONTEXT_BYTES), "1": 2 * (4 * GB + DEVICE_CONTEXT_BYTES)})
    leases = [pool.allocate(str(number), need) for number in range(5)]
    assert [lease.device if lease else None for lease in leases] == ["0", "1", "0", "1", None]
    pool.release("1")
    assert pool.allocate("5", need).device == "1"


@pytest.mark.parametrize(("limit", "memory", "count"), [("auto", None, 1), (3, None, 3), (1, 100 * GB, 1)])
def test_jobs_on_one_gpu(limit: int | str, memory: int | None, count: int) -> None:
    pool = ResourcePool(8, 10 * GB, {"0": memory}, limit)
    assert sum(pool.allocate(str(number), MemoryEstimate(1, GB)) is not None for number in range(8)) == count


def test_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = find_resources(HardwareOptions(accelerator="cpu", num_threads=1), 0, 0, "auto")
    assert (pool.num_jobs, pool.devices) == (num_cores(), {})
    assert 0 < pool.memory_bytes < psutil.virtual_memory().total
    assert find_resources(HardwareOptions(accelerator="cpu"), 0, 0, "auto").num_jobs == 1, (
        "a job with all threads is alone"
    )
    assert find_resources(HardwareOptions(accelerator="cpu"), 5, 7, "auto") == ResourcePool(5, 7)
    all_cores = HardwareOptions(accelerator="cpu", num_threads=1, num_devices=num_cores())
    assert find_resources(all_cores, 0, 7, "auto").num_jobs == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    monkeypatch.setattr(resources, "free_gpu_bytes", {"0": None, "3": 100}.get)
    assert find_resources(HardwareOptions(num_threads=1), 0, 7, 2).devices == {"0": None, "3": 80}
    assert find_resources(HardwareOptions(num_devices=2, num_threads=1), 0, 7, 2) == ResourcePool(1, 7, {}, 2)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 500\ninactive_file 200\n"}, 500),
        ({"memory.max": "max", "memory.current": "700", "memory.stat": ""}, None),
        (
            {
                "memory/memory.limit_in_bytes": "1000",
                "memory/memory.usage_in_bytes": "1200",
                "memory/memory.stat": "total_inactive_file 100\n",
            },
            0,
        ),
        ({}, None),
    ],
)
def test_a_containers_limit_counts(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    found = available_bytes(tmp_path)
    assert found == expected if expected is not None else found > 10**6


def test_the_kernels_count_is_a_number() -> None:
    assert out_of_memory_kills() >= 0
