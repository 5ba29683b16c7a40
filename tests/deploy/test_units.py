"""The files for systemd, containers and Kubernetes: the daemons take the flags and keys in them."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nsquark.nsqadmin import options as nsqadmin
from nsquark.nsqd import options as nsqd
from nsquark.nsqlookupd import options as nsqlookupd

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
PARSE: dict[str, Callable[[list[str]], Any]] = {
    "nsqd": nsqd.parse,
    "nsqlookupd": nsqlookupd.parse,
    "nsqadmin": nsqadmin.parse,
}
ROUTES = {"nsqd": {"/live", "/ready"}, "nsqlookupd": {"/live", "/ready"}, "nsqadmin": {"/ping"}}


def check(program: str, flags: list[str]) -> Any:
    """The options, of a command line that nothing is wrong with."""
    options = PARSE[program](flags)
    assert options.warnings == []
    return options


# ---- systemd


def section(path: Path, name: str) -> dict[str, list[str]]:
    """The settings of a section; a setting may be there several times."""
    settings: dict[str, list[str]] = {}
    current = ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            current = line.strip("[]")
        elif current == name and "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            settings.setdefault(key, []).append(value)
    return settings


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_its_daemon_with_a_config_that_it_knows(unit: Path) -> None:
    service = section(unit, "Service")
    assert service["Type"] == ["notify"]
    assert int(service["LimitNOFILE"][0]) >= 65536
    command, *flags = shlex.split(service["ExecStart"][0])
    assert Path(command).name == unit.stem
    config = DEPLOY / "systemd" / f"{unit.stem}.cfg"
    flags = [f"--config={config}" if flag.startswith("--config=") else flag for flag in flags]
    options = check(unit.stem, flags)
    assert options.log_format == "json"


def test_the_three_units_are_hardened_alike() -> None:
    hardening = [path.read_text().partition("# What it cannot do.\n")[2] for path in UNITS]
    assert hardening[0].count("\n") > 25
    assert len(set(hardening)) == 1
    assert len(UNITS) == 3
    for path in UNITS:
        configparser.RawConfigParser(strict=False).read_string(path.read_text())


def test_nsqd_has_time_to_drain() -> None:
    service = section(DEPLOY / "systemd" / "nsqd.service", "Service")
    stop = float(service["TimeoutStopSec"][0].removesuffix("s"))
    assert stop > 2 * nsqd.Options().drain_timeout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for unit in UNITS:
        # The programs need not be installed where this runs.
        (tmp_path / unit.name).write_text(
            unit.read_text().replace(f"/opt/nsquark/bin/{unit.stem}", "/bin/true")
        )
    command = ["systemd-analyze", "verify", *(str(tmp_path / unit.name) for unit in UNITS)]
    done = subprocess.run(command, capture_output=True, text=True)
    told = [line for line in done.stderr.splitlines() if str(tmp_path) in line]
    assert told == []


# ---- containers


def test_the_services_of_the_compose_file_start() -> None:
    services = yaml.safe_load((DEPLOY / "container" / "compose.yaml").read_text())["services"]
    assert set(services) == {"nsqlookupd", "nsqd-1", "nsqd-2", "nsqadmin"}
    for service in services.values():
        program, *flags = service["command"]
        check(program, flags)
        probe = " ".join(service.get("healthcheck", {}).get("test", ()))
        assert not probe or any(route in probe for route in ROUTES[program])
    volumes = [volume for each in services.values() for volume in each.get("volumes", ())]
    assert len(volumes) == len(set(volumes)) == 2  # no two nsqds share a data path


def test_the_image_has_what_the_build_reads() -> None:
    text = (DEPLOY / "container" / "Containerfile").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("COPY pyproject.toml")]
    for name in line.split()[1:-1]:
        assert (DEPLOY.parent / name).exists(), name
    assert "'.[admin]'" in text  # the image is nsqadmin's, too
    check("nsqd", yaml.safe_load(text.rpartition("CMD ")[2])[1:])


# ---- Kubernetes


def documents() -> Iterator[dict[str, Any]]:
    folder = DEPLOY / "kubernetes"
    for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]:
        yield from yaml.safe_load_all((folder / name).read_text())


def workloads() -> dict[str, dict[str, Any]]:
    kinds = ("StatefulSet", "Deployment")
    return {each["metadata"]["name"]: each for each in documents() if each["kind"] in kinds}


@pytest.mark.parametrize("name", ["nsqd", "nsqlookupd", "nsqadmin"])
def test_a_workload_starts_and_is_probed(name: str) -> None:
    workload = workloads()[name]
    spec = workload["spec"]
    pod = spec["template"]
    assert spec["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    (program,) = container["command"]
    check(program, container["args"])
    ports = {port["name"] for port in container["ports"]}
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe in container:
            get = container[probe]["httpGet"]
            assert get["path"] in ROUTES[name]
            assert get["port"] in ports
    assert {"livenessProbe", "readinessProbe"} <= container.keys()
    assert container["securityContext"]["readOnlyRootFilesystem"]


def test_nsqds_keep_their_data_and_have_time_to_drain() -> None:
    nsqd_set = workloads()["nsqd"]
    assert nsqd_set["kind"] == "StatefulSet"
    spec = nsqd_set["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    options = check("nsqd", container["args"])
    assert pod["terminationGracePeriodSeconds"] > options.drain_timeout
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    (claim,) = spec["volumeClaimTemplates"]
    assert mounts[claim["metadata"]["name"]] == options.data_path
    services = {each["metadata"]["name"]: each["spec"] for each in documents() if each["kind"] == "Service"}
    assert services[spec["serviceName"]]["clusterIP"] == "None"
    replicas = workloads()["nsqlookupd"]["spec"]["replicas"]
    assert len(options.lookupd_tcp_address) == replicas
