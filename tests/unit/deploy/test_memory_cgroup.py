"""Which version of cgroups limits the pods' memory, and what its files say."""

from pathlib import Path
from typing import Any

import pytest

from tests.pods.memory_cgroup import V1, V2, MemoryCgroup, NoCgroupError, bytes_of
from tests.pods.memory_cgroup import cgroups_of_this_machine as cgroups


def test_the_files_of_version_2_are_read(tmp_path: Path) -> None:
    for file, text in {
        "memory.peak": "300\n",
        "memory.stat": "anon 100\nfile 70\nshmem 30\n",
        "memory.events": "low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\noom_group_kill 0\n",
    }.items():
        (tmp_path / file).write_text(text)
    group = MemoryCgroup(tmp_path, V2, limit_bytes=None)
    assert (group.look(), group.peak_bytes(), group.kills()) == (130, 300, 1)
    assert group.processes_bytes_max == 130


def test_the_version_is_the_one_whose_memory_controller_is_mounted(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"

    def version(*controllers: tuple[str, str, str]) -> Any:
        lines = []
        for kind, name, text in controllers:
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "cgroup.controllers").write_text(text)
            lines.append(f"none {tmp_path / name} {kind} rw,{text if kind == 'cgroup' else ''} 0 0")
        mounts.write_text("\n".join(lines))
        return cgroups(mounts)

    first, second = (
        version(("cgroup", "memory", "memory")),
        version(("cgroup2", "all", "cpu memory")),
    )
    assert (first.files, first.root.name) == (V1, "memory")
    assert (second.files, second.root.name) == (V2, "all")
    assert (second.root / "cgroup.subtree_control").read_text() == "+memory"
    for groups in (first, second):
        [own] = [path for path in groups.root.iterdir() if path.is_dir()]
        (own / "cgroup.subtree_control").unlink(missing_ok=True)
        groups.remove()
    with pytest.raises(NoCgroupError, match="no cgroup controller of memory is mounted"):
        version(("cgroup", "cpu", "cpu"), ("cgroup2", "unified", "hugetlb"))
    (tmp_path / "closed").touch()
    mounts.write_text(f"none {tmp_path / 'closed'} cgroup rw,memory 0 0")
    with pytest.raises(NoCgroupError, match="can't be written: Not a directory"):
        cgroups(mounts)


def test_quantities_are_those_of_kubernetes() -> None:
    assert [bytes_of(text) for text in ("2720Mi", "1Gi", "5", "2G")] == [
        2720 << 20,
        1 << 30,
        5,
        2 * 10**9,
    ]
    with pytest.raises(ValueError, match="not a quantity of memory: 1Zi"):
        bytes_of("1Zi")
