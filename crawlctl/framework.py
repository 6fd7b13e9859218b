"""How commands are made: global options in one place, lazily loaded groups, examples in every help.

Global options are accepted before and after the command, at every level; the last one given wins.
Their values are kept in the click context until :func:`settings_of` resolves them, so that the
environment and the configuration file are read once, by ``common.runtime.settings``.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from common.model.errors import UsageError

if TYPE_CHECKING:
    from common.runtime.settings import Settings
    from common.runtime.upstate import UpState

_KEY: Final = "crawlctl.options"

T = TypeVar("T")


def _remember(ctx: click.Context, param: click.Parameter, value: object) -> None:
    assert param.name is not None
    if ctx.get_parameter_source(param.name) is click.core.ParameterSource.COMMANDLINE:
        ctx.meta.setdefault(_KEY, {})[param.name] = value


def _show_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"crawlctl {version()}")
        ctx.exit()


def version() -> str:
    """Return the installed version, or the one of a checkout that was never installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("crawlctl")
    except PackageNotFoundError:
        return "0.1.0"


def _option(name: str, metavar: str, help_text: str, **more: Any) -> click.Option:
    return click.Option(
        [f"--{name}"],
        metavar=metavar,
        help=help_text,
        expose_value=False,
        callback=_remember,
        **more,
    )


def global_options() -> list[click.Parameter]:
    """Return new instances of the options every command takes."""
    return [
        _option("etcd", "HOST:PORT[,...]", "etcd endpoints  [default: 127.0.0.1:2379]"),
        _option(
            "redis",
            "URL[,...]",
            "Redis or Valkey server; several are nodes of one Redis Cluster  "
            "[default: redis://127.0.0.1:6379/0]",
        ),
        _option(
            "cluster", "NAME", "name of the installation in etcd and Redis  [default: default]"
        ),
        _option("config", "FILE", "TOML file with these options (underscores for dashes)"),
        _option("etcd-cacert", "FILE", "CA certificate for TLS to etcd"),
        _option("etcd-cert", "FILE", "client certificate for etcd"),
        _option("etcd-key", "FILE", "key of the client certificate for etcd"),
        _option("etcd-user", "NAME:PASSWORD", "login for etcd; the password as @FILE or env:NAME"),
        _option("redis-cacert", "FILE", "CA certificate for TLS to Redis (rediss://)"),
        _option("redis-cert", "FILE", "client certificate for Redis"),
        _option("redis-key", "FILE", "key of the client certificate for Redis"),
        _option("log-level", "LEVEL", "debug, info, warning or error"),
        _option("log-format", "FORMAT", "text or json  [default: text]"),
        click.Option(
            ["-q", "--quiet"],
            is_flag=True,
            help="no progress and no notes: results and errors only",
            expose_value=False,
            callback=_remember,
        ),
        click.Option(
            ["--version"],
            is_flag=True,
            help="show the version and exit",
            expose_value=False,
            is_eager=True,
            callback=_show_version,
        ),
    ]


def settings_of(ctx: click.Context, **how: Any) -> Settings:
    """Resolve the settings of this call and set up its logs accordingly.

    ``how`` is passed to ``settings.resolve``. Commands speak at level warning unless told
    otherwise: what they have to say is their output.
    """
    from common.runtime.logs import configure
    from common.runtime.settings import resolve

    how = {"default_log_level": "warning", "find_up": running_up, **how}
    settings = resolve(options_given(ctx), **how)
    configure(settings.log_level, settings.log_format)
    return settings


def running_up(cluster: str, environ: Mapping[str, str]) -> UpState | None:
    """Return the running ``up``; one that no longer holds its folder is another process by now."""
    from common.embedded.folder import holder_of
    from common.runtime import upstate

    state = upstate.load(cluster, environ)
    return state if state is not None and holder_of(state.data) == state.pid else None


def options_given(ctx: click.Context) -> Mapping[str, object]:
    """Return the global options given on the command line, by setting name."""
    given: Mapping[str, object] = ctx.meta.get(_KEY, {})
    return given


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine to its end; SIGINT and SIGTERM cancel it.

    Raises:
        KeyboardInterrupt: it was cancelled by a signal.
    """
    import asyncio

    async def interruptible() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        is_told = False

        def on_signal() -> None:
            nonlocal is_told
            is_told = True
            task.cancel()

        # Set even where the shell had SIGINT ignored, as it does for commands in the background:
        # all commands are to end alike.
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal)
        try:
            return await work
        except asyncio.CancelledError:
            if is_told:
                raise KeyboardInterrupt from None
            raise

    return asyncio.run(interruptible())


def _is_text(value: object) -> bool:
    # Python hands on what was not UTF-8 as lone surrogates, which nothing else can encode.
    return not isinstance(value, str) or not any("\ud800" <= char <= "\udfff" for char in value)


def _flat(value: object) -> Iterator[object]:
    if isinstance(value, list | tuple):
        for one in value:
            yield from _flat(one)
    else:
        yield value


class _WithGlobals(click.Command):
    """A command that takes the global options and shows examples."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.examples = tuple(examples)
        self._own = tuple(self.params)
        self.params = [*self.params, *global_options()]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, of which all have to be text.

        Raises:
            UsageError: one holds bytes that are not UTF-8; names it.
        """
        if not all(map(_is_text, args)):
            values, _, order = self.make_parser(ctx).parse_args(args=list(args))
            for param in order:
                for value in _flat(values.get(param.name)):
                    if not _is_text(value):
                        is_named = isinstance(param, click.Option)
                        name = param.opts[0] if is_named else param.make_metavar(ctx)
                        # Not shown: it may be a secret.
                        raise UsageError(f"{name.strip('[].')}: what was given is not UTF-8 text")
        self._refuse_missing_values(ctx, args)
        return super().parse_args(ctx, args)

    def _refuse_missing_values(self, ctx: click.Context, args: Sequence[str]) -> None:
        """Refuse an option in the place of another one's value, which it would be taken for."""
        options = {
            name: param
            for param in self.get_params(ctx)
            if isinstance(param, click.Option)
            for name in (*param.opts, *param.secondary_opts)
        }
        left = iter(args)
        for arg in left:
            param = options.get(arg)
            if arg == "--" or not (ctx.allow_interspersed_args or arg.startswith("-")):
                return
            if param is None or param.is_flag:
                continue
            after = next(left, "").partition("=")[0]
            if after in options:
                raise UsageError(
                    f"{arg}: it needs a value, and {after} is another option; write {arg} "
                    f"{param.make_metavar(ctx)} {after}"
                )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show own options; the global ones where they are own, at the top."""
        at_top = ctx.parent is None
        shown = self.get_params(ctx) if at_top else [*self._own, self.get_help_option(ctx)]
        records = [
            record
            for param in shown
            if isinstance(param, click.Option)
            and (record := param.get_help_record(ctx)) is not None
        ]
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)
        with formatter.section("Global options" if at_top else "Options"):
            formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the examples, and that the global options hold here too."""
        with formatter.section("Examples" if len(self.examples) > 1 else "Example"):
            for example in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")
        if ctx.parent is not None:
            formatter.write_paragraph()
            formatter.write_text("The global options (crawlctl --help) are accepted here as well.")


class Command(_WithGlobals):
    """A command of crawlctl."""


class Lazy(NamedTuple):
    """Where a command is, and what the list of commands says of it."""

    target: str
    """``module:attribute``."""
    summary: str


class Group(_WithGlobals, click.Group):
    """A group whose commands are imported when one of them is called."""

    def __init__(
        self, *args: Any, lazy: Mapping[str, Lazy] | None = None, **attributes: Any
    ) -> None:
        super().__init__(*args, no_args_is_help=False, **attributes)
        self.lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """Return the commands in the order they were written down: the common ones first."""
        return [*self.lazy, *(name for name in self.commands if name not in self.lazy)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, imported now if it was not yet."""
        if cmd_name in self.lazy and cmd_name not in self.commands:
            module, _, attribute = self.lazy[cmd_name].target.partition(":")
            self.commands[cmd_name] = getattr(import_module(module), attribute)
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; an unknown one is answered with those of similar names."""
        from difflib import get_close_matches

        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            near = get_close_matches(name, self.list_commands(ctx), n=2)
            hint = f" (did you mean {' or '.join(near)}?)" if near else ""
            ctx.fail(f"there is no command {name!r}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show each command with its summary, without importing the lazy ones."""
        rows = [
            (
                name,
                self.lazy[name].summary
                if name in self.lazy
                else self.commands[name].get_short_help_str(80),
            )
            for name in self.list_commands(ctx)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


F = TypeVar("F", bound=Callable[..., Any])


def json_option(function: F) -> F:
    """Add ``--json`` to a listing."""
    return click.option("--json", "as_json", is_flag=True, help="one JSON document on stdout")(
        function
    )
