"""Where settings come from, and which of them counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsquark.errors import UsageError
from nsquark.tools.people.flags.settings import Settings, default_path, gather
from tests.daemon import Nsqd
from tests.tools.people.command import failure, output


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_without_any_it_is_this_machine() -> None:
    assert gather({}, {"HOME": "/nonexistent"}) == Settings(("127.0.0.1:4151",), ("127.0.0.1:4150",))


def test_flags_beat_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    config = write(tmp_path / "c.toml", 'nsqd_http = "file:1"\ntimeout = "3s"\ntls_insecure = true\n')
    environment = {"NSQUARK_CONFIG": config}
    assert gather({}, environment).nsqd_http == ("file:1",)
    environment["NSQUARK_NSQD_HTTP"] = "env:1, env:2"
    assert gather({}, environment).nsqd_http == ("env:1", "env:2")
    found = gather({"nsqd_http": ("flag:1",)}, environment)
    assert (found.nsqd_http, found.timeout, found.tls_insecure) == (("flag:1",), 3.0, True)
    assert gather({"timeout": "250ms"}, environment).timeout == 0.25


def test_addresses_of_two_sources_are_not_mixed(tmp_path: Path) -> None:
    config = write(tmp_path / "c.toml", 'nsqd_http = "file:1"\nnsqd_tcp = ["file:2"]\n')
    found = gather({"lookupd_http": ("l:1",)}, {}, config)
    assert (found.nsqd_http, found.nsqd_tcp, found.lookupd_http) == ((), (), ("l:1",))


def test_an_address_counts_once() -> None:
    assert gather({"nsqd_http": ("a:1", "b:1", "a:1")}, {}).nsqd_http == ("a:1", "b:1")


def test_the_file_is_where_xdg_says(tmp_path: Path) -> None:
    assert default_path({"HOME": "/home/ann"}) == "/home/ann/.config/nsquark.toml"
    assert (
        default_path({"HOME": "/home/ann", "XDG_CONFIG_HOME": "relative"}) == "/home/ann/.config/nsquark.toml"
    )
    write(tmp_path / "nsquark.toml", 'lookupd_http = ["a:1", "b:1"]\n')
    assert gather({}, {"XDG_CONFIG_HOME": str(tmp_path)}).lookupd_http == ("a:1", "b:1")


def test_the_nearest_secret_counts_and_is_never_shown(tmp_path: Path) -> None:
    write(tmp_path / "s", "from the file\n")
    config = write(tmp_path / "c.toml", 'secret_file = "s"\n')  # beside the config file
    assert gather({}, {}, config).secret == "from the file"
    found = gather({}, {"NSQUARK_SECRET": "from the environment"}, config)
    assert found.secret == "from the environment"
    assert "environment" not in repr(found)
    assert gather({"secret_file": str(tmp_path / "s")}, {"NSQUARK_SECRET": "x"}).secret == "from the file"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nsqd_htpp = 'x'", "nsqd_htpp"),
        ("nsqd_http = 1", "nsqd_http = 1"),
        ("nsqd_http = [1]", r"nsqd_http = \[1\]"),
        ("tls = 'yes'", "tls = 'yes'"),
        ("timeout = 'soon'", "soon"),
        ("timeout = 0", "timeout"),
        ("= broken", "c.toml"),
        ("secret_file = 'nowhere'", "nowhere"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        gather({}, {}, write(tmp_path / "c.toml", text))


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(UsageError, match="NSQUARK_TLS='maybe'"):
        gather({}, {"NSQUARK_TLS": "maybe", "HOME": "/nonexistent"})


def test_the_command_uses_them(tmp_path: Path, nsqd: Nsqd) -> None:
    config = write(tmp_path / "c.toml", f'nsqd_http = "{nsqd.http_address}"\n')
    assert "no topics" in output("stat", "--config", config)
    assert "no topics" in output("stat", NSQUARK_CONFIG=config)
    assert "no topics" in output("stat", NSQUARK_NSQD_HTTP=nsqd.http_address)
    home = tmp_path / "home"
    write(home / ".config" / "nsquark.toml", f'nsqd_http = "{nsqd.http_address}"\n')
    assert "no topics" in output("stat", HOME=str(home))
    # the file is right, the environment is wrong, and the flag is right again
    assert "127.0.0.1:1 " in failure("stat", HOME=str(home), NSQUARK_NSQD_HTTP="127.0.0.1:1")
    assert "no topics" in output(
        "stat", "--nsqd-http", nsqd.http_address, HOME=str(home), NSQUARK_NSQD_HTTP="127.0.0.1:1"
    )
    assert "no such file" in failure("stat", "--config", str(tmp_path / "none"), status=2)
