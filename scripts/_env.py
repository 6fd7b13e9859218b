"""The private environment of a checkout, and what the scripts run in it. Standard library only.

``.venv`` holds the package as built from the checkout (a wheel, not the source tree) with its
servers, and for the development scripts its tools. It is made where there is none and brought up to
date when anything the package is built from has changed. Two locks in it: one is held while
installing, so that scripts started together install once; the other is shared by all that run from
it, also where no script started them (``common.runtime.installation``), so that nothing is replaced
under a running crawl.
"""

from __future__ import annotations

import configparser
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "install.log"
STAMP = VENV / "installed.json"
PACKAGES = ("crawlctl", "coordinator", "worker", "common")
BUILD_FILES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")
PYTEST = str(ROOT / "scripts" / "_pytest.py")
# Most tests wait for processes most of the time; those of a file share what they start.
SIDE_BY_SIDE = ("-n", "3", "--dist", "loadfile")
CONSTRAINTS = ROOT / "constraints.txt"
TIERS = ("unit", "repo", "integration", "system", "chaos")
WRONG_USE = 2
_LONG = f"it takes a minute or two, this once (what it does: tail -f {LOG})"
_SHORT = "it takes seconds"
REFUSED = 4


def fail(message: str, code: int = 1) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(code)


def source_files() -> dict[str, bytes]:
    """Return everything the package is built from, by name relative to the checkout."""
    paths = [ROOT / name for name in BUILD_FILES if (ROOT / name).exists()]
    for package in PACKAGES:
        paths += (
            path
            for path in sorted((ROOT / package).rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        )
    return {str(path.relative_to(ROOT)): path.read_bytes() for path in paths}


def digest(files: dict[str, bytes]) -> str:
    total = hashlib.sha256()
    for name, content in files.items():
        total.update(f"{name}\0{len(content)}\0".encode() + content)
    return total.hexdigest()


def dependencies(setup_cfg: str) -> str:
    """Return a digest of what must be installed beside the package."""
    settings = configparser.ConfigParser(interpolation=None)
    settings.read_string(setup_cfg)
    parts = {"required": settings.get("options", "install_requires", fallback="").encode()}
    if settings.has_section("options.extras_require"):
        parts |= {name: text.encode() for name, text in settings.items("options.extras_require")}
    if CONSTRAINTS.exists():
        parts["constraints"] = CONSTRAINTS.read_bytes()
    return digest(parts)


def lock(name: str, operation: int) -> int | None:
    """Return a descriptor that holds the lock; None when it is taken and LOCK_NB is given."""
    number = os.open(VENV / name, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(number, operation)
    except BlockingIOError:
        os.close(number)
        return None
    return number


def ensure(*extras: str) -> None:
    """Make the environment fit this checkout; afterwards this process counts as running from it."""
    if (VENV / "pyvenv.cfg").exists() and not (VENV / "install.lock").exists():
        fail(f"{VENV} was not made by these scripts; move it away")
    try:
        VENV.mkdir(exist_ok=True)
        (VENV / "install.lock").touch()
    except OSError as error:
        fail(f"{VENV} cannot be written ({error.strerror}); use a checkout you may write to")
    installing = lock("install.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
    if installing is None:
        print("crawlctl: waiting for another script to finish installing", file=sys.stderr)
        installing = lock("install.lock", fcntl.LOCK_EX)
    assert installing is not None
    files = source_files()
    wanted = {
        "python": f"{sys.version} {os.path.realpath(sys.executable)}",
        "dependencies": dependencies(files["setup.cfg"].decode()),
        "source": digest(files),
    }
    try:
        present = json.loads(STAMP.read_bytes())
    except (FileNotFoundError, ValueError):
        present = {}
    if not PYTHON.exists():
        present = {}
    elif "python" in present and not os.environ.get("PYTHON"):
        # Another one may come first on today's PATH; the one that is installed works.
        wanted["python"] = present["python"]
    missing = set(extras) - set(present.get("extras", ()))
    changed = [name for name, value in wanted.items() if present.get(name) != value]
    # New packages beside the old ones disturb nobody; replaced ones would.
    using = lock("in-use.lock", (fcntl.LOCK_EX if changed else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    if using is None:
        fail(
            "this checkout has changed, and something started before still runs from its "
            f"environment ({VENV}): let that end first ('crawlctl down' ends an 'up'), or use a "
            "second checkout",
            REFUSED,
        )
    if changed or missing:
        is_large = bool(missing) or "python" in changed or "dependencies" in changed
        extras = tuple(sorted({*extras, *present.get("extras", ())}))
        install(files, wanted, changed, extras, how_long=_LONG if is_large else _SHORT)
    fcntl.flock(using, fcntl.LOCK_SH)
    os.set_inheritable(using, True)
    os.close(installing)


def install(
    files: dict[str, bytes],
    wanted: dict[str, str],
    changed: list[str],
    extras: tuple[str, ...],
    *,
    how_long: str,
) -> None:
    """Bring the environment up to date and note what it holds."""
    started = time.monotonic()
    print(
        f"crawlctl: installing the package with its extras ({', '.join(extras)}) into {VENV}, "
        f"Python {wanted['python'].split()[0]}; {how_long} ...",
        end="",
        file=sys.stderr,
        flush=True,
    )
    LOG.unlink(missing_ok=True)
    if changed:
        STAMP.unlink(missing_ok=True)
    if "python" in changed or "dependencies" in changed:
        # From scratch, so that nothing is there which is no longer asked for.
        make_venv()
    constraints = ["-c", str(CONSTRAINTS)] if CONSTRAINTS.exists() else []
    if not changed:
        # The package itself is not replaced, since something may run from it.
        pip(*constraints, *requirements(files["setup.cfg"].decode(), extras))
        finish(wanted, extras, started)
        return
    with tempfile.TemporaryDirectory(dir=VENV, prefix="build-") as folder:
        # Built from a copy: the checkout stays clean, and no leftover of an earlier build comes in.
        for name, content in files.items():
            target = Path(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        pip("--no-build-isolation", *constraints, f"{folder}[{','.join(extras)}]")
    finish(wanted, extras, started)


def requirements(setup_cfg: str, extras: tuple[str, ...]) -> list[str]:
    """Return what extras of the package ask for."""
    settings = configparser.ConfigParser(interpolation=None)
    settings.read_string(setup_cfg)
    lines = "\n".join(settings["options.extras_require"][name] for name in extras).splitlines()
    return [line.strip() for line in lines if line.strip()]


def finish(wanted: dict[str, str], extras: tuple[str, ...], started: float) -> None:
    """Note what the environment holds now, and say how long it took."""
    STAMP.write_text(json.dumps({**wanted, "extras": extras}))
    print(f" {time.monotonic() - started:.0f} s", file=sys.stderr)


def make_venv() -> None:
    """Make an empty environment in place of what is there."""
    for entry in VENV.iterdir():
        if entry.suffix == ".lock":
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    run_logged([sys.executable, "-I", "-m", "venv", "--prompt", "crawlctl", str(VENV)])
    # What a build would otherwise download anew into an environment of its own, every time.
    pip("setuptools>=70.1")


def pip(*arguments: str) -> None:
    run_logged(
        [
            str(PYTHON),
            *("-I", "-m", "pip", "install", "--no-input", "--no-user", "--retries", "2"),
            "--disable-pip-version-check",
            *arguments,
        ]
    )


def run_logged(command: list[str]) -> None:
    """Run a step of the installation; say what is missing where it fails."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with LOG.open("a+") as log:
        done = subprocess.run(
            command, check=False, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        if done.returncode == 0:
            return
        log.seek(0)
        print(file=sys.stderr)
        fail(explain(log.read()))


def explain(log: str) -> str:
    """Return what went wrong in an installation, with a remedy."""
    see = f"(all of it: {LOG})"
    lines = [line for line in log.splitlines() if line.strip()]
    last = "\n".join(lines[-4:])
    if "ensurepip" in log and "returned non-zero" in log:
        return (
            f"Python {sys.executable} cannot make environments: install its venv package "
            f"(Debian, Ubuntu: apt-get install python3-venv) {see}"
        )
    if any(sign in log for sign in ("NewConnectionError", "ConnectTimeout", "NameResolutionError")):
        return (
            "the Python package index cannot be reached: check the network, set HTTPS_PROXY, or "
            f"name a mirror in PIP_INDEX_URL {see}"
        )
    if "No space left" in log:
        return f"the disk is full: {VENV} needs about 300 MB {see}"
    if "No matching distribution" in log:
        return (
            f"a package is not to be had for Python {platform.python_version()} on "
            f"{platform.system()} {platform.machine()}: try another Python (PYTHON=...) {see}\n"
            f"{last}"
        )
    return f"the installation failed {see}:\n{last}"


def run(*command: str) -> int:
    return subprocess.run([str(PYTHON), "-I", *command], cwd=ROOT, check=False).returncode


def run_quietly(*command: str) -> int:
    """Run a check; what it says is of interest only when it fails."""
    done = subprocess.run(
        [str(PYTHON), "-I", *command],
        cwd=ROOT,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        print(done.stdout, end="", flush=True)
    return done.returncode


def crawl(arguments: list[str]) -> NoReturn:
    ensure("embedded")
    os.execv(PYTHON, [str(PYTHON), "-I", "-m", "crawlctl", "crawl", *arguments])


def test(arguments: list[str]) -> NoReturn:
    first = arguments[0] if arguments else "all"
    if not (first in ("all", *TIERS) or first.startswith("-") or is_path(first)):
        fail(
            f"scripts/test: {first!r} is none of {', '.join(TIERS)} and all, no file, and no "
            "option of pytest",
            WRONG_USE,
        )
    ensure("embedded", "test")
    if not arguments:
        first = run(PYTEST, "-m", "not (alone or (chaos and slow))", *SIDE_BY_SIDE)
        sys.exit(run(PYTEST, "-m", "alone") or first)
    if arguments[0] == "all":
        selection = arguments[1:]
    elif arguments[0] in TIERS:
        selection = ["-m", *arguments]
    else:
        selection = arguments
    os.execv(PYTHON, [str(PYTHON), "-I", PYTEST, *selection])


def is_path(argument: str) -> bool:
    """Tell whether pytest would find it: the tests are run in the checkout."""
    return (ROOT / argument.partition("::")[0]).exists()


def chaos(arguments: list[str]) -> NoReturn:
    ensure("embedded", "test")
    os.execv(PYTHON, [str(PYTHON), str(ROOT / "scripts" / "_chaos.py"), *arguments])


def fuzz(arguments: list[str]) -> NoReturn:
    ensure("embedded", "test")
    os.execv(PYTHON, [str(PYTHON), str(ROOT / "scripts" / "_fuzz.py"), *arguments])


def check(arguments: list[str]) -> int:
    """Run all checks; with the argument ``static`` all but the tests."""
    if arguments not in ([], ["static"]):
        fail("scripts/check: expected no argument, or static (no tests)", WRONG_USE)
    ensure("embedded", "test")
    steps = {
        "format": ("-m", "ruff", "format", "--check", "."),
        "lint": ("-m", "ruff", "check", "--quiet", "."),
        "types": ("-m", "mypy", "--strict", "--no-error-summary"),
        "layers": (str(VENV / "bin" / "lint-imports"), "--no-cache"),
    }
    failed = []
    for name, command in steps.items():
        started = time.monotonic()
        if run_quietly(*command) != 0:
            failed.append(name)
        verdict = "FAILED" if name in failed else "good"
        print(f"{name}: {verdict} ({time.monotonic() - started:.1f} s)", flush=True)
    if arguments != ["static"] and run(PYTEST, "-q", "-m", "unit or repo") != 0:
        failed.append("tests")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def fmt(arguments: list[str]) -> int:
    if arguments:
        fail("scripts/fmt: expected no argument", WRONG_USE)
    ensure("embedded", "test")
    mended = run("-m", "ruff", "check", "--quiet", "--fix", ".")
    return run("-m", "ruff", "format", "--quiet", ".") or mended


if __name__ == "__main__":
    commands = {
        "crawl": crawl,
        "test": test,
        "chaos": chaos,
        "fuzz": fuzz,
        "check": check,
        "fmt": fmt,
    }
    try:
        sys.exit(commands[sys.argv[1]](sys.argv[2:]))
    except KeyboardInterrupt:
        sys.exit(130)
