"""The quick bound of how deep a page nests is one, and tells deep pages from flat ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from common.web.soup import _depth, _depth_bound

_NAMES = st.sampled_from(
    [b"div", b"/div", b"b", b"/b", b"li", b"/li", b"p", b"br", b"/br", b"img", b"/p", b"td"]
)
_RUNS = st.lists(st.tuples(st.lists(_NAMES, min_size=1, max_size=6), st.integers(1, 200)))


@given(_RUNS)
def test_no_page_is_deeper_than_the_bound(runs: list[tuple[list[bytes], int]]) -> None:
    names = [name for some, times in runs for name in some * times]
    assert _depth(names) <= _depth_bound(names)


def test_a_long_page_without_nesting_has_a_small_bound() -> None:
    row = [b"tr", b"td", b"a", b"/a", b"/td", b"td", b"br", b"/td", b"/tr"]
    assert _depth_bound([b"table", *row * 10_000, b"/table"]) < 1_000


def test_a_page_that_only_nests_has_a_bound_of_its_depth() -> None:
    names = [b"div"] * 20_000
    assert 20_000 == _depth(names)
    assert 20_000 <= _depth_bound(names) <= 20_256
