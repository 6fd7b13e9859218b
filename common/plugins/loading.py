"""Where plugins come from: ``--plugin`` of a process, or what is installed beside it.

A job only ever names a plugin. Which code that is, is said where a worker is started, since anybody
who reaches etcd may submit a job. What was named on the command line is imported at once, so that
an error shows at the start; what is installed (entry points) when the first job asks for it.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, reduce
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeVar

from common.model.errors import UsageError
from common.model.ids import checked_name
from common.plugins.api import HOOKS, Plugin, hooks_of

GROUP: Final = "crawlctl.plugins"
"""The group of entry points under which packages offer plugins."""
OPTION: Final = "--plugin"
SYNTAX: Final = "[NAME=]MODULE:OBJECT or [NAME=]FILE.py:OBJECT"

_REFERENCE: Final = re.compile(r"(?:(?P<name>[^=/:]*)=)?(?P<module>.+):(?P<object>[^:/]+)")
_MAX_SAID_CHARS: Final = 300

T = TypeVar("T")


class Reference(NamedTuple):
    """A plugin by its place."""

    name: str
    """By which jobs name it."""
    module: str
    """Its dotted name, or the absolute path of a file."""
    attribute: str
    """The class in it."""

    def __str__(self) -> str:
        """Return it as it may be given to ``--plugin``, in any folder."""
        return f"{self.name}={self.module}:{self.attribute}"


def reference(text: str) -> Reference:
    """Return what ``--plugin`` was given; without a name the object's own is meant.

    Raises:
        UsageError: it is no reference.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise UsageError(f"{OPTION}: {text!r} names no code; write {SYNTAX}")
    module, attribute = match["module"], match["object"]
    name = attribute.rpartition(".")[2] if match["name"] is None else match["name"]
    if module.endswith(".py"):
        module = str(Path(module).absolute())
    return Reference(checked_name(name, field=OPTION), module, attribute)


def load(wanted: Reference) -> type[Plugin]:
    """Import a plugin.

    Raises:
        UsageError: it cannot be imported, or is no plugin; names the remedy.
    """
    where = f"{OPTION} {wanted.name}"
    is_file = wanted.module.endswith(".py")
    if is_file and not Path(wanted.module).is_file():
        raise UsageError(f"{where}: there is no file {wanted.module}; write {SYNTAX}")
    bring = _import_file if is_file else importlib.import_module
    module = _imported(lambda: bring(wanted.module), what=wanted.module, where=where)
    try:
        found = reduce(getattr, wanted.attribute.split("."), module)
    except AttributeError as error:
        raise UsageError(
            f"{where}: {wanted.module} has no {wanted.attribute!r}; write {SYNTAX}"
        ) from error
    except Exception as error:  # a module may make what is in it when it is asked for
        raise _broken(error, what=wanted.module, where=where) from error
    return _checked(found, where=where)


class PluginSet:
    """The plugins one process has, by name."""

    def __init__(
        self,
        given: Iterable[Reference] = (),
        *,
        installed: Callable[[], Mapping[str, EntryPoint]] | None = None,
    ) -> None:
        """Import what is given.

        Args:
            given: by ``--plugin``; they hide installed ones of the same name.
            installed: finds the entry points, by name.

        Raises:
            UsageError: one cannot be imported or is no plugin, or two have one name.
        """
        self._loaded: dict[str, type[Plugin]] = {}
        for one in given:
            if one.name in self._loaded:
                raise UsageError(
                    f"{OPTION}: two plugins are named {one.name!r}; name one NAME=MODULE:OBJECT"
                )
            self._loaded[one.name] = load(one)
        self._find_installed = installed or _installed

    @cached_property
    def _installed(self) -> Mapping[str, EntryPoint]:
        """Looked for when it is first asked: that reads a file of every package there is."""
        return self._find_installed()

    @property
    def names(self) -> tuple[str, ...]:
        """What jobs may name."""
        return tuple(sorted(self._loaded.keys() | self._installed.keys()))

    def get(self, name: str) -> type[Plugin]:
        """Return a plugin, imported now if it was not yet.

        Raises:
            UsageError: there is none of this name, or it cannot be imported, or is no plugin.
        """
        found = self._loaded.get(name)
        if found is None:
            entry = self._installed.get(name)
            if entry is None:
                known = f"there are {', '.join(self.names)}" if self.names else "there is none here"
                raise UsageError(f"{OPTION}: no plugin is named {name!r}; {known}; give {SYNTAX}")
            where = f"plugin {name}"
            found = _checked(
                _imported(entry.load, what=f"installed {entry.value}", where=where), where=where
            )
            self._loaded[name] = found
        return found


def _installed() -> dict[str, EntryPoint]:
    """Return the entry points by name; of two of one name the one first on the path.

    Those that no job can name are left out, and all where a package's list of them is malformed:
    it must not keep a worker from the jobs that need none.
    """
    import structlog  # noqa: PLC0415 - takes longer to import than many a command

    log = structlog.get_logger()
    try:
        entries = entry_points(group=GROUP)
    except Exception as error:  # noqa: BLE001 - the library raises what it comes upon
        log.warning("plugins.not_found", reason=f"entry points cannot be read: {error!r}")
        return {}
    found: dict[str, EntryPoint] = {}
    for entry in entries:
        try:
            checked_name(entry.name, field=GROUP)
        except UsageError as error:
            log.warning("plugins.misnamed", reason=str(error))
            continue
        found.setdefault(entry.name, entry)
    return found


def _import_file(path: str) -> ModuleType:
    """Return the module in a file, the same one at every call.

    Its name is the path: it can be found there, and hides no other module.
    """
    if path in sys.modules:
        return sys.modules[path]
    spec = importlib.util.spec_from_file_location(path, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path] = module  # dataclasses and annotations look for it while it is made
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path]
        raise
    return module


def _imported(bring: Callable[[], T], *, what: str, where: str) -> T:
    """Return what an import brings.

    Raises:
        UsageError: it failed, in whatever way.
    """
    try:
        return bring()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # panics of extensions are no Exception
        raise _broken(error, what=what, where=where) from error


def _broken(error: BaseException, *, what: str, where: str) -> UsageError:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and f"{what}.".startswith(f"{missing}."):
        return UsageError(
            f"{where}: there is no module {what!r}; install its package, or give the file: "
            "FILE.py:OBJECT"
        )
    frame = traceback.extract_tb(error.__traceback__)[-1]
    try:
        said = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - it is the plugin's, too
        said = type(error).__name__
    said = " ".join(said.split())[:_MAX_SAID_CHARS]
    return UsageError(
        f"{where}: {what} cannot be imported ({said}, {frame.filename} line {frame.lineno}); "
        "mend it, or start without it"
    )


def _checked(found: Any, *, where: str) -> type[Plugin]:
    """Return what was found, if it is a plugin.

    Raises:
        UsageError: it is none.
    """
    if not (inspect.isclass(found) and issubclass(found, Plugin)):
        raise UsageError(
            f"{where}: {_kind(found)} is no plugin; give a class derived from "
            "crawlctl.plugins.Plugin"
        )
    if not hooks_of(found):
        raise UsageError(
            f"{where}: {found.__qualname__} has none of the hooks {', '.join(HOOKS)}; is a name "
            "misspelt?"
        )
    if inspect.iscoroutinefunction(found.refuse):
        raise UsageError(f"{where}: {found.__qualname__}.refuse is async; write a plain 'def'")
    return found


def _kind(found: Any) -> str:
    """Return what is said of an object; it may be one that cannot be written."""
    return f"class {found.__qualname__}" if inspect.isclass(found) else f"a {type(found).__name__}"
