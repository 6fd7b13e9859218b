"""``demo-site``: a small known site on loopback, for a first crawl without the web."""

from __future__ import annotations

import click

from crawlctl.framework import Command, run, settings_of
from crawlctl.parameters import Whole


@click.command(
    "demo-site",
    cls=Command,
    examples=["crawlctl demo-site", "crawlctl demo-site --port 9000 --pages 5000"],
)
@click.option(
    "--port",
    type=Whole(0, 65_535),
    default=8000,
    metavar="PORT",
    help="port on 127.0.0.1; 0 takes a free one  [default: 8000]",
)
@click.option(
    "--pages",
    type=Whole(1, 1_000_000),
    default=300,
    metavar="N",
    help="ordinary pages it has  [default: 300]",
)
@click.pass_context
def demo_site(ctx: click.Context, *, port: int, pages: int) -> None:
    """Serve a small site on loopback until Ctrl-C; prints its URL once it answers."""
    from common.model.errors import UsageError
    from crawlctl.demo import serve
    from crawlctl.show import note

    settings = settings_of(ctx, with_services=False)

    def on_ready(url: str) -> None:
        click.echo(url)
        if not settings.quiet:
            note(f"crawl it with: crawlctl crawl {url} -o out --allow-private --delay 0")

    try:
        run(serve(port, pages=pages, on_ready=on_ready))
    except OSError as error:
        raise UsageError(
            f"--port: cannot listen on {port} ({error.strerror}); give another one, or 0 for a "
            "free one"
        ) from error
