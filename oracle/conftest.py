"""Fixtures of the oracle tests: the packages of the zoo, and the `coremill` command."""

import fcntl
import logging
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oracle.support.cargo import TARGET, example
from oracle.support.served import Runtime
from oracle.zoo.generate import ensure
from oracle.zoo.table import ENTRIES

#: Whether this process is a worker of pytest-xdist, which reports its results to another process.
SERVES = "PYTEST_XDIST_WORKER" in os.environ
#: The reports of all failures.
REPORTS = Path(tempfile.gettempdir()) / "coremill-oracle-failures.txt"
#: Timeout of a command. The zoo's packages are small, so none should take nearly as long.
SECONDS = 120

#: Runs `coremill` with the given arguments; fails the test unless it exits with 0, and returns its standard output.
Command = Callable[..., str]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with the fixture `package` runs once for every entry of the zoo."""
    marked = any("package" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "package" in metafunc.fixturenames and not marked:
        metafunc.parametrize("package", [entry.name for entry in ENTRIES], indirect=True, scope="session")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Writes reports to the temporary folder, so that they outlive the terminal and the clone."""
    if SERVES or not report.failed:
        return
    with REPORTS.open("a") as reports:
        reports.write(f"{report.nodeid} ({report.when}):\n{report.longreprtext}\n\n")


@pytest.fixture(autouse=True)
def company(request: pytest.FixtureRequest) -> Iterator[None]:
    """Allows tests of several processes to run concurrently, except those marked `alone`."""
    alone = request.node.get_closest_marker("alone") is not None
    with (TARGET / "oracle.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
        # Unlocked explicitly, since processes that the test forked have the file open, too.
        fcntl.flock(lock, fcntl.LOCK_UN)


@pytest.fixture(scope="session", autouse=True)
def quiet() -> Iterator[None]:
    """coremltools logs a line for each library that exists only on macOS."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="session")
def zoo(request: pytest.FixtureRequest) -> tuple[Path, dict[str, str]]:
    """The folder of the packages that the selected tests need, and the errors of their creation by name."""
    names = set()
    for item in request.session.items:
        if "all_packages" in item.fixturenames:
            names.update(entry.name for entry in ENTRIES)
        if "package" in item.fixturenames:
            names.add(item.callspec.params["package"])
    directory = TARGET / "zoo"
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print()
        return directory, ensure(directory, [entry.name for entry in ENTRIES if entry.name in names])


@pytest.fixture(scope="session")
def package(request: pytest.FixtureRequest, zoo: tuple[Path, dict[str, str]]) -> Path:
    """One package of the zoo."""
    directory, errors = zoo
    if request.param in errors:
        pytest.fail(f"coremltools did not make {request.param}:\n{errors[request.param]}")
    return directory / f"{request.param}.mlpackage"


@pytest.fixture(scope="session")
def all_packages(zoo: tuple[Path, dict[str, str]]) -> list[Path]:
    """All packages of the zoo."""
    directory, errors = zoo
    if errors:
        pytest.fail(f"coremltools did not make {', '.join(errors)}")
    return [directory / f"{entry.name}.mlpackage" for entry in ENTRIES]


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    """Our runtime for ExecuTorch's programs, built if necessary."""
    served = Runtime(tmp_path_factory.mktemp("runtime"), example("serve"))
    yield served
    served.close()


@pytest.fixture(scope="session")
def coremill() -> Command:
    """The command under test."""
    return lambda *arguments: run(arguments, 0).stdout


@pytest.fixture(scope="session")
def coremill_stderr() -> Command:
    """The command under test; returns its standard error."""
    return lambda *arguments: run(arguments, 0).stderr


@pytest.fixture(scope="session")
def coremill_fails() -> Command:
    """The command under test, which must exit with 1; returns its standard error."""
    return lambda *arguments: run(arguments, 1).stderr


def run(arguments: tuple[object, ...], code: int, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Runs `coremill`, optionally in a folder; fails the test unless it exits with the code."""
    binary = os.environ.get("COREMILL")
    if not binary:
        pytest.fail("the variable COREMILL must be the path of the `coremill` command; `cargo xtask test` sets it")
    line = [binary, *map(str, arguments)]
    # `coremill bisect` runs commands, such as this one.
    environment = dict(os.environ, PATH=f"{Path(binary).absolute().parent}{os.pathsep}{os.environ.get('PATH', '')}")
    done = subprocess.run(line, capture_output=True, text=True, timeout=SECONDS, check=False, cwd=folder, env=environment)
    if done.returncode != code:
        pytest.fail(f"{' '.join(line)}: exit code {done.returncode}\n{done.stdout}{done.stderr}", pytrace=False)
    return done
