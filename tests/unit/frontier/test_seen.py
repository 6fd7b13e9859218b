"""Where a URL lies in the seen-set: stable for ever, inside its layer, evenly spread."""

from __future__ import annotations

import random
import re
import struct
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from common.frontier import seen as seen_set
from common.frontier.keys import TaskKeys
from common.frontier.offers import shard_of
from common.frontier.seen import (
    BLOCK_BYTES,
    BUCKET_BYTES,
    BUCKET_URLS,
    Mode,
    Print,
    SeenLayout,
    bits_for,
    block_span,
    capacity,
    estimated_rate,
    false_positive_rate,
    fingerprint,
    holds,
    rate_of_layer,
)
from common.model.ids import HostKey, JobId, Task

KEYS = TaskKeys("c", Task(JobId("j"), 3))
RATE = 1e-6


def layout_of(mode: Mode, rate: float = RATE) -> SeenLayout:
    return SeenLayout(KEYS, mode=mode, rate=rate)


def put(bucket: bytearray, seen: Print) -> None:
    """Set the bits of a URL in its bucket, as offer.lua does."""
    block, *pairs = struct.unpack("<B" + 6 * "Bi", seen.bits)
    for byte, mask in zip(pairs[::2], pairs[1::2], strict=True):
        first = 144 * (block - 1) + byte - 1
        (before,) = struct.unpack_from("<i", bucket, first)
        struct.pack_into("<i", bucket, first, before | mask)


def block_of(bucket: bytes | bytearray, seen: Print) -> bytes:
    """Return what GETRANGE would."""
    first, last = block_span(seen)
    return bytes(bucket[first : last + 1])


def test_the_hash_of_a_url_never_changes() -> None:
    """Part of the layout version: another hash would make every known URL new again."""
    exact = fingerprint("http://a.example/", "exact")
    bloom = fingerprint("http://a.example/", "bloom")
    assert exact.fingerprint == bloom.fingerprint == -2637652931642200953
    assert exact.bits == b""
    begin = "34018000004125002001203121000800"
    assert bloom.bits.hex() == begin + "4d0018010075000180208120004400"


def test_the_place_of_a_url_never_changes() -> None:
    exact, bloom = layout_of("exact"), layout_of("bloom")
    tag = "crawlctl:c:{j:3}:"
    seen = fingerprint("http://a.example/", "exact")
    assert exact.buckets(seen, 2) == [tag + "f:0:13", tag + "f:1:54"]
    seen = fingerprint("http://a.example/", "bloom")
    assert bloom.buckets(seen, 2) == [tag + "b:0:4", tag + "b:1:14"]


@pytest.mark.parametrize("number", range(8))
def test_a_place_lies_inside_its_layer(number: int) -> None:
    exact, bloom = layout_of("exact"), layout_of("bloom")
    assert exact.count(number) * BUCKET_URLS == capacity(number)
    last = 0
    for at in range(500):
        seen = fingerprint(f"http://a.example/{at}", "bloom")
        bucket = int(bloom.buckets(seen, number + 1)[-1].rpartition(":")[2])
        assert bucket < bloom.count(number)
        last = max(last, bucket)
        whole = bytearray(BUCKET_BYTES)
        put(whole, seen)  # raises where a word lies outside
        block = block_of(whole, seen)
        assert len(block) == BLOCK_BYTES
        assert int.from_bytes(block).bit_count() == int.from_bytes(whole).bit_count() > 6
        assert holds(block, seen)
        assert not holds(bytes(BLOCK_BYTES), seen)
        assert not holds(b"", seen)
        (key,) = exact.buckets(fingerprint(f"http://a.example/{at}", "exact"), number + 1)[-1:]
        assert int(key.rpartition(":")[2]) < exact.count(number)
    assert last > bloom.count(number) * 0.9 - 1


def test_the_script_knows_the_blocks_of_a_bucket() -> None:
    """It has their first and last bytes as constants; a wrong one would ask another block."""
    text = (Path(seen_set.__file__).parent / "lua" / "offer.lua").read_text("utf-8")
    first, last = (
        [
            int(one)
            for one in re.findall(r"\d+", text.partition(f"  {name} = {{\n")[2].partition("}")[0])
        ]
        for name in ("FIRST", "LAST")
    )
    assert first == list(range(0, BUCKET_BYTES, BLOCK_BYTES))
    assert last == [at + BLOCK_BYTES - 1 for at in first]
    assert f"local BYTES = {BLOCK_BYTES} " in text


def test_a_full_layer_fills_its_buckets_evenly_enough_to_stay_packed() -> None:
    layout = layout_of("exact")
    buckets = Counter(
        layout.buckets(fingerprint(f"http://h{at % 7}.example/{at}", "exact"), 1)[0]
        for at in range(capacity(0))
    )
    assert len(buckets) == layout.count(0)
    assert max(buckets.values()) < 512


def test_the_bits_of_urls_of_one_shard_differ_also_where_urls_are_long() -> None:
    """Half of a longer hash of them is the shorter hash, by which the shard is chosen."""
    urls = [f"http://a.example/{'x' * 300}/{at}" for at in range(20_000)]
    bits = [fingerprint(url, "bloom").bits for url in urls if shard_of(HostKey(url), 64) == 0]
    assert len(bits) > 200
    for first in range(1, 31, 5):
        assert len({one[first] for one in bits}) == 6


@pytest.mark.parametrize("rate", [8e-3, 8e-4])
def test_false_hits_of_a_full_filter_are_as_rare_as_stated(rate: float) -> None:
    """Counted on bits set as offer.lua does; one layer may use an eighth of the stated rate."""
    layout, share = layout_of("bloom", rate), rate_of_layer(rate, 0)
    buckets: dict[str, bytearray] = defaultdict(lambda: bytearray(BUCKET_BYTES))
    # Filters are whole buckets: so many URLs, and not the layer's capacity, fill these.
    urls = int(8 * BUCKET_BYTES * layout.count(0) / bits_for(share))
    assert urls >= capacity(0)
    for at in range(urls):
        seen = fingerprint(f"http://a.example/{at}", "bloom")
        put(buckets[layout.buckets(seen, 1)[0]], seen)
    probes = 60_000
    hits = 0
    for at in range(probes):
        seen = fingerprint(f"http://b.example/{at}", "bloom")
        hits += holds(block_of(buckets[layout.buckets(seen, 1)[0]], seen), seen)
    expected = probes * share
    assert abs(hits - expected) < 0.25 * expected + 3 * expected**0.5


def test_the_rates_of_all_layers_add_up_to_less_than_the_stated_one() -> None:
    assert sum(rate_of_layer(RATE, layer) for layer in range(60)) <= RATE
    for layers in (1, 4, 8, 12):
        full = estimated_rate(RATE, layers=layers, inserted=capacity(layers - 1))
        shares = sum(rate_of_layer(RATE, n) for n in range(layers))
        # Filters are whole buckets: those of the first layers are larger than they have to be.
        assert shares - 0.9 * (rate_of_layer(RATE, 0) + rate_of_layer(RATE, 1)) < full <= shares
    assert estimated_rate(RATE, layers=0, inserted=0) == 0
    assert estimated_rate(RATE, layers=1, inserted=0) == 0
    assert estimated_rate(RATE, layers=1, inserted=1) < 1e-20


def test_more_bits_make_rarer_errors() -> None:
    rng = random.Random(5)
    for _ in range(20):
        bits = rng.uniform(4, 100)
        assert false_positive_rate(bits) > false_positive_rate(bits * 1.05)
    for rate in (1e-2, 1e-4, 1e-6, 1e-9):
        assert 0.8 * rate < false_positive_rate(bits_for(rate)) <= rate


def test_all_keys_of_a_shard_share_one_hash_tag() -> None:
    names = [getattr(KEYS, name) for name in TaskKeys.__slots__ if not name.startswith("_")]
    names += layout_of("exact").buckets(fingerprint("http://a.example/", "exact"), 3)
    names += layout_of("bloom").buckets(fingerprint("http://a.example/", "bloom"), 3)
    names.append(KEYS.queue("http://[::1]:80{x}"))  # type: ignore[arg-type]
    assert {name[: name.index("}") + 1] for name in names} == {"crawlctl:c:{j:3}"}
    assert len(set(names)) == len(names)
