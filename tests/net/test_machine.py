"""What identifies the machine."""

from pathlib import Path

import pytest

from nsquark.net import machine


def test_processes_of_one_kernel_have_one_boot_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "boot_id"
    told.write_text("one-boot\n")
    monkeypatch.setattr(machine, "_BOOT_ID", told)
    machine.boot_id.cache_clear()
    assert machine.boot_id() == "one-boot"
    told.unlink()
    assert machine.boot_id() == "one-boot"
    machine.boot_id.cache_clear()
    assert machine.boot_id() == ""
    machine.boot_id.cache_clear()
