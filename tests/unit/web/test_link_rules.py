"""Traps, cleaning, directives of pages, and hashes of their text."""

from __future__ import annotations

import html

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.web.cleaning import STEPS, Cleaner
from common.web.directives import agent_of, of_header, of_meta
from common.web.html import HtmlParser
from common.web.simhash import distance, simhash
from common.web.traps import TRAPS, Traps
from common.web.url import canonicalize

H = "http://h.test"


@pytest.mark.parametrize(
    "path",
    [
        "/a/a/a/a/a", "/x/www.o.test/p" + "/www.o.test/p" * 4 + "/", "/" + "a/b/c/" * 5,
        "/////////", "/n/" + "/".join(["deep"] * 300), "/?" + "a=1&" * 5, "/?a&a&a&a&a",
        "/?" + "&".join(f"p{n}={n}" for n in range(101)),
    ],
)  # fmt: skip
def test_urls_that_grow_by_themselves_are_refused(path: str) -> None:
    assert str(Traps(("path", "query")).refusal(H + path)).startswith("trap: ")


@pytest.mark.parametrize(
    "path",
    [
        "/", "/a/a/a/a", "/1/2/1/2/1/2/1/2", "/2024/01/01/01/x", "/a/b/c/d/e/f/g/h/i/j/k/l",
        "/?a=1&a=2&a=3&a=4&a=5&a=6", "/?q=a/a/a/a/a/a", "/cal/2150/12/",
    ],
)  # fmt: skip
def test_usual_urls_are_not(path: str) -> None:
    assert Traps(("path", "query")).refusal(H + path) is None


@pytest.mark.parametrize(
    ("path", "is_trap"),
    [
        ("/cal/2150/12/", True), ("/1492/10", True), ("/cal?year=2999&m=1", True),
        ("/cal?date=2150-01-01", True), ("/cal/2026/11/30", False), ("/cal?y=2026", False),
        ("/product/2150", False), ("/2150/13", False), ("/?width=2150", False),
    ],
)  # fmt: skip
def test_dates_far_away_are_a_calendar(path: str, is_trap: bool) -> None:
    assert (Traps(("calendar",)).refusal(H + path) is not None) is is_trap


@pytest.mark.parametrize(
    ("step", "path", "cleaned"),
    [
        ("tracking", "/a?utm_source=x&id=1&fbclid=y&GCLID=z", "/a?id=1"),
        ("tracking", "/a?utm_source=x", "/a"),
        ("tracking", "/a?", "/a?"),
        ("tracking", "/a?x=utm_source&y=1", "/a?x=utm_source&y=1"),
        ("session", "/a;jsessionid=1F?x=1&PHPSESSID=2", "/a?x=1"),
        ("session", "/a;v=1/b;sid=3", "/a;v=1/b"),
        ("order", "/a?b=2&a=1&b=1", "/a?a=1&b=1&b=2"),
    ],
)
def test_links_are_cleaned(step: str, path: str, cleaned: str) -> None:
    assert Cleaner((step,))(H + path) == H + cleaned


@given(st.text(alphabet="abc=&;?/%2Futm_sidxPHPSESSID=,-.~", max_size=80))
def test_a_cleaned_url_is_canonical_and_clean(tail: str) -> None:
    url = canonicalize(f"{H}/{tail}")
    assert url is not None
    cleaned = Cleaner(STEPS)(url)
    assert canonicalize(cleaned) == cleaned
    assert Cleaner(STEPS)(cleaned) == cleaned
    Traps(TRAPS).refusal(url)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (["noindex, NoFollow"], {"noindex", "nofollow"}),
        (["none"], {"noindex", "nofollow"}),
        (["googlebot: noindex"], set()),
        (["crawlctl: noindex, nofollow"], {"noindex", "nofollow"}),
        (["otherbot: none", "noarchive"], {"noarchive"}),
        (["unavailable_after: 25 Jun 2010 15:00:00 PST, nofollow"], {"nofollow"}),
        (["unavailable_after: Fri, 25 Jun 2010 15:00:00 GMT, nofollow"], {"nofollow"}),
        (["unavailable_after: Friday, 25-Jun-10 15:00:00 UTC, nofollow"], {"nofollow"}),
        (["otherbot: unavailable_after: Fri, 25 Jun 2010 15:00:00 GMT, nofollow"], set()),
        (["360spider: nofollow"], set()),
        (["otherbot: nofollow, crawlctl: noindex"], {"noindex"}),
        ([" , :, ,,"], set()),
    ],
)
def test_directives_of_the_header_are_read(fields: list[str], said: set[str]) -> None:
    assert of_header(fields, agent="crawlctl") == said


def test_directives_of_meta_elements_are_for_all_or_for_us() -> None:
    assert of_meta("ROBOTS", "noindex;nofollow", agent="x") == {"noindex", "nofollow"}
    assert of_meta("x", "noindex", agent="x") == {"noindex"}
    assert of_meta("googlebot", "noindex", agent="x") == frozenset()
    assert agent_of("Probe/1.0 (+http://p.test)") == "probe"


def test_a_page_tells_its_directives_canonical_url_and_nofollow_links() -> None:
    body = b"""<meta NAME=Robots CONTENT="NOFOLLOW, max-snippet:3">
    <link rel="x Canonical" href="/c">
    <a href=/both rel=nofollow>1</a><a href=/both>2</a><a href=/marked rel="ugc NoFollow">3</a>
    <a href="/marked#again" rel=nofollow>4</a><a href=/plain>5</a>"""
    page = HtmlParser().parse(body, url=f"{H}/", content_type=None, follow=frozenset("a"))
    assert page.directives == {"nofollow"}
    assert page.canonical == f"{H}/c"
    assert page.nofollow == {f"{H}/marked"}
    followed = frozenset(("canonical",))
    links = HtmlParser().parse(body, url=f"{H}/", content_type=None, follow=followed).links
    assert links == [f"{H}/c"]


@pytest.mark.parametrize("word", ["&#110;OFOLLOW", "nofollo&#x77", "&#x0006E;ofoll&#000111;w"])
def test_letters_written_as_numbers_hide_no_nofollow(word: str) -> None:
    body = f"<a href=/marked rel='{word}'>1</a><a href=/plain>2</a>".encode()
    page = HtmlParser().parse(body, url=f"{H}/", content_type=None, follow=frozenset("a"))
    assert {f"{H}/marked"} == page.nofollow


@pytest.mark.parametrize("number", [*range(0x41, 0x5B), *range(0x61, 0x7B)])
def test_letters_written_as_numbers_hide_no_canonical_url(number: int) -> None:
    for char in (f"&#{number};", f"&#x{number:x};", f"&#X00{number:X};", f"&#0{number}"):
        word = "canonical".replace(chr(number).lower(), char)
        body = f'<link rel="{word}" href=/c>{char}'.encode()
        page = HtmlParser().parse(body, url=f"{H}/", content_type=None, follow=frozenset("a"))
        assert f"{H}/c" == page.canonical


def test_an_attribute_that_only_looks_like_a_reference_says_nothing_of_the_page() -> None:
    body = b"""<svg><a xlink:href=/x rel=nofollow>1</a><link xlink:href=/c rel=canonical>
    <base xlink:href=/y/></svg><base href=/z/><a href=p>2</a><a href="">3</a>"""
    page = HtmlParser().parse(body, url=f"{H}/", content_type=None, follow=frozenset("a"))
    assert [f"{H}/z/p", f"{H}/z/"] == page.links
    assert frozenset() == page.nofollow
    assert page.canonical is None


@given(
    st.lists(st.tuples(st.sampled_from(["x", '"', "\\", "ü", "a b", "]'", "#f"]), st.booleans())),
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=6),
        max_size=40,
    ),
)
def test_a_link_counts_as_marked_where_each_of_its_elements_is(
    few: list[tuple[str, bool]], many: list[str]
) -> None:
    links = [(f"/{text}", is_marked) for text, is_marked in few]
    links += [(f"/{text}", True) for text in many]
    body = "".join(
        f'<a href="{html.escape(link)}"{" rel=nofollow" * is_marked}>x</a>'
        for link, is_marked in links
    )
    page = HtmlParser().parse(
        body.encode(), url=f"{H}/", content_type="text/html;charset=utf-8", follow=frozenset("a")
    )
    plain = {canonicalize(link, H) for link, is_marked in links if not is_marked}
    assert page.nofollow == {canonicalize(link, H) for link, _ in links} - plain - {None}


def test_marked_links_are_known_by_the_form_that_the_encoding_of_the_page_gives_them() -> None:
    body = '<a href="/?q=ü" rel=nofollow>x</a><a href="/?q=é">y</a>'.encode("latin-1")
    page = HtmlParser().parse(
        body, url=f"{H}/", content_type="text/html;charset=latin-1", follow=frozenset("a")
    )
    assert page.links == [f"{H}/?q=%FC", f"{H}/?q=%E9"]
    assert page.nofollow == {f"{H}/?q=%FC"}


def test_texts_that_are_alike_hash_alike() -> None:
    words = [f"word{number}" for number in range(300)]
    one, same = simhash(" ".join(words)), simhash("  ".join(words).upper())
    near = simhash(" ".join([*words, "and", "more"]))
    far = simhash(" ".join(f"other{number}" for number in range(300)))
    assert one is not None
    assert near is not None
    assert far is not None
    assert one == same
    assert distance(one, near) <= 6
    assert distance(one, far) >= 16
    assert simhash(" .,;") is None
    assert simhash("one") is not None
