"""Tests that the smallest limit of the control groups of this process counts, in both versions."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffusers_helper.machine import control_groups
from diffusers_helper.machine.control_groups import processors
from diffusers_helper.machine.local import Local
from diffusers_helper.machine.sysfs import host_memory
from diffusers_helper.runner import Runner
from tests.support.machines import GB, write, write_memory

MOUNT = "sys/fs/cgroup"
UNLIMITED = 9223372036854771712  # as version 1 writes it
SLURM = "system.slice/slurmstepd.scope/job_41/step_0"


def write_group(root: Path, path: str, limit: int, used: int, cached: int = 0) -> None:
    """Write the memory of a group of version 2; a limit of 0 is none."""
    folder = root / MOUNT / path
    write(folder / "memory.max", f"{limit or 'max'}\n")
    write(folder / "memory.current", f"{used}\n")
    stat = f"anon 5\nfile {7 * GB}\nshmem {6 * GB}\ninactive_file {cached}\nactive_file 0\nunevictable 9\n"
    write(folder / "memory.stat", stat)


def write_older(root: Path, path: str, limit: int, used: int, cached: int = 0) -> None:
    """Write the memory of a group of version 1."""
    folder = root / MOUNT / "memory" / path
    write(folder / "memory.limit_in_bytes", f"{limit}\n")
    write(folder / "memory.usage_in_bytes", f"{used}\n")
    stat = f"cache 1\nactive_file 1\ninactive_file 2\ntotal_active_file {cached}\ntotal_inactive_file 0\n"
    write(folder / "memory.stat", stat)


def room(root: Path) -> tuple[int, int]:
    memory = host_memory(root)
    return memory.total, memory.available


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_memory(tmp_path, 64 * GB, 60 * GB)
    monkeypatch.setattr(control_groups.os, "cpu_count", lambda: 16)
    return tmp_path


def test_the_limit_of_an_outer_group_and_the_room_of_another_count(machine: Path) -> None:
    write(machine / "proc/self/cgroup", f"0::/{SLURM}\n")
    write_group(machine, SLURM, 0, 3 * GB)
    write_group(machine, "system.slice/slurmstepd.scope/job_41", 32 * GB, 3 * GB, cached=GB)
    write_group(machine, "system.slice", 48 * GB, 40 * GB, cached=2 * GB)
    assert room(machine) == (32 * GB, 10 * GB)
    write_group(machine, SLURM, 16 * GB, 9 * GB, cached=2 * GB)
    assert room(machine) == (16 * GB, 9 * GB)
    write_group(machine, "system.slice/another.scope", GB, GB)  # which is not on the way
    assert room(machine) == (16 * GB, 9 * GB)


@pytest.mark.parametrize("path", ["/", "/../other", "/docker/7f3a"])
def test_a_container_that_sees_only_its_own_group_has_it_at_the_mount(machine: Path, path: str) -> None:
    write(machine / "proc/self/cgroup", f"0::{path}\n")
    write_group(machine, "", 16 * GB, 10 * GB, cached=4 * GB)
    write_group(machine, "../other", GB, GB)
    assert room(machine) == (16 * GB, 10 * GB)


def test_the_groups_of_the_first_version_count_by_their_controller(machine: Path) -> None:
    lines = ("9:name=systemd:/user.slice", "5:cpu,cpuacct:/jobs/slow", "4:memory:/jobs/41", "0::/user.slice")
    write(machine / "proc/self/cgroup", "".join(f"{line}\n" for line in lines))
    write_older(machine, "", UNLIMITED, 50 * GB)
    write_older(machine, "jobs", 24 * GB, 20 * GB, cached=GB)
    write_older(machine, "jobs/41", 20 * GB, GB)
    assert room(machine) == (20 * GB, 5 * GB)
    for folder, quota in (("jobs/slow", 350_000), ("jobs", 1_200_000), ("", -1)):
        write(machine / MOUNT / "cpu" / folder / "cpu.cfs_quota_us", f"{quota}\n")
        write(machine / MOUNT / "cpu" / folder / "cpu.cfs_period_us", "100000\n")
    assert processors(machine) == 3


def test_groups_without_limits_and_machines_without_groups_change_nothing(machine: Path) -> None:
    assert (room(machine), processors(machine)) == ((64 * GB, 60 * GB), 16)
    write(machine / "proc/self/cgroup", "0::/user.slice\nno group\n")
    write_group(machine, "user.slice", 0, 9 * GB)
    write(machine / MOUNT / "user.slice/cpu.max", "max 100000\n")
    assert (room(machine), processors(machine)) == ((64 * GB, 60 * GB), 16)


@settings(max_examples=30)  # each of which writes five files
@given(st.sets(st.integers(0, 40), min_size=1), st.integers(1, 4_000), st.integers(1, 64))
def test_the_fewest_processors_of_affinity_quota_and_machine_count(
    tmp_path_factory: pytest.TempPathFactory, allowed: set[int], quota: int, count: int
) -> None:
    root, digits = tmp_path_factory.mktemp("root"), f"{sum(1 << cpu for cpu in allowed):016x}"
    write(
        root / "proc/self/status",
        f"Name:\tx\nCpus_allowed:\t{digits[:8]},{digits[8:]}\nCpus_allowed_list:\t0\n",
    )
    write(root / "proc/self/cgroup", "0::/a/b\n")
    write(root / MOUNT / "a/cpu.max", f"{quota}000 100000\n")
    write(root / MOUNT / "a/b/cpu.max", "max 100000\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control_groups.os, "cpu_count", lambda: count)
        assert processors(root) == max(1, min(len(allowed), count, quota // 100))


def test_torch_starts_no_more_threads_than_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    before, wanted = torch.get_num_threads(), list[int]()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", wanted.append)
    for count in (3, 12):
        monkeypatch.setattr("diffusers_helper.runner.processors", lambda count=count: count)
        Runner(Local())
    assert wanted == [3, 8]
    monkeypatch.undo()
    assert torch.get_num_threads() == before
