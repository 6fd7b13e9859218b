"""``completion``: code that makes a shell complete our commands and options."""

from __future__ import annotations

import click

from crawlctl.framework import Command


@click.command(
    cls=Command,
    examples=[
        'eval "$(crawlctl completion bash)"',
        "crawlctl completion fish > ~/.config/fish/completions/crawlctl.fish",
    ],
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, *, shell: str) -> None:
    """Print shell completion code."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "crawlctl", "_CRAWLCTL_COMPLETE").source())
