"""Where a URL lies in the seen-set: stable for ever, inside its layer, evenly spread."""

from __future__ import annotations

import random
import struct
from collections import Counter, defaultdict

import pytest

from common.frontier.keys import TaskKeys
from common.frontier.seen import (
    BUCKET_URLS,
    CHUNK_BYTES,
    PIECE_CHUNKS,
    Mode,
    Print,
    SeenLayout,
    bits_for,
    buckets_of,
    capacity,
    estimated_rate,
    false_positive_rate,
    fingerprint,
    holds,
    rate_of_layer,
)
from common.model.ids import JobId, Task

KEYS = TaskKeys("c", Task(JobId("j"), 3))
RATE = 1e-6


def layout_of(mode: Mode, rate: float = RATE) -> SeenLayout:
    return SeenLayout(KEYS, mode=mode, rate=rate)


def put(chunk: bytearray, seen: Print) -> None:
    """Set the bits of a URL in its chunk, as offer.lua does."""
    _, block, *pairs = struct.unpack("<IH" + 8 * "Bi", seen.bits)
    for word, mask in zip(pairs[::2], pairs[1::2], strict=True):
        first = 192 * block + 4 * (word - 1)
        (before,) = struct.unpack_from("<i", chunk, first)
        struct.pack_into("<i", chunk, first, before | mask)


def test_the_hash_of_a_url_never_changes() -> None:
    """Part of the layout version: another hash would make every known URL new again."""
    exact = fingerprint("http://a.example/", "exact")
    bloom = fingerprint("http://a.example/", "bloom")
    assert exact.fingerprint == bloom.fingerprint == -2637652931642200953
    assert exact.bits == b""
    begin = "47d88b0d0200060040004009100000400f01000008140804"
    assert bloom.bits.hex() == begin + "00001900000420234400000028200004002e00200008"


def test_the_place_of_a_url_never_changes() -> None:
    exact, bloom = layout_of("exact"), layout_of("bloom")
    tag = "crawlctl:c:{j:3}:"
    seen = fingerprint("http://a.example/", "exact")
    assert exact.buckets(seen, 2) == [tag + "f:1:54", tag + "f:0:13"]
    assert exact.pieces(6) == []
    seen = fingerprint("http://a.example/", "bloom")
    assert bloom.buckets(seen, 2) == []
    assert bloom.chunk(seen, 6) == (tag + "b:6:0", 6982656)


@pytest.mark.parametrize("number", range(8))
def test_a_place_lies_inside_its_layer_and_pieces_are_at_most_eight_megabytes(number: int) -> None:
    exact, layout = layout_of("exact"), layout_of("bloom")
    assert 8_380_000 < PIECE_CHUNKS * CHUNK_BYTES < 8 * 1024 * 1024
    assert buckets_of(number) * BUCKET_URLS == capacity(number)
    last = 0
    for at in range(500):
        seen = fingerprint(f"http://a.example/{at}", "bloom")
        key, first = layout.chunk(seen, number)
        piece = layout.pieces(number).index(key)
        assert first % CHUNK_BYTES == 0
        assert 0 <= first < PIECE_CHUNKS * CHUNK_BYTES
        chunk = piece * PIECE_CHUNKS + first // CHUNK_BYTES
        assert chunk < layout.chunks(number)
        last = max(last, chunk)
        whole = bytearray(CHUNK_BYTES)
        put(whole, seen)  # raises where a word lies outside
        assert holds(bytes(whole), seen)
        assert not holds(bytes(CHUNK_BYTES), seen)
        bucket = exact.buckets(fingerprint(f"http://a.example/{at}", "exact"), number + 1)[0]
        assert int(bucket.rpartition(":")[2]) < buckets_of(number)
    assert last > layout.chunks(number) * 0.9 - 1


def test_a_full_layer_fills_its_buckets_evenly_enough_to_stay_packed() -> None:
    layout = layout_of("exact")
    buckets = Counter(
        layout.buckets(fingerprint(f"http://h{at % 7}.example/{at}", "exact"), 1)[0]
        for at in range(capacity(0))
    )
    assert len(buckets) == buckets_of(0)
    assert max(buckets.values()) < 512


@pytest.mark.parametrize("rate", [8e-3, 8e-4])
def test_false_hits_of_a_full_filter_are_as_rare_as_stated(rate: float) -> None:
    """Counted on bits set as offer.lua does; one layer may use an eighth of the stated rate."""
    layout = layout_of("bloom", rate)
    chunks: dict[tuple[str, int], bytearray] = defaultdict(lambda: bytearray(CHUNK_BYTES))
    for at in range(capacity(0)):
        seen = fingerprint(f"http://a.example/{at}", "bloom")
        put(chunks[layout.chunk(seen, 0)], seen)
    probes = 60_000
    hits = 0
    for at in range(probes):
        seen = fingerprint(f"http://b.example/{at}", "bloom")
        hits += holds(chunks[layout.chunk(seen, 0)], seen)
    expected = probes * false_positive_rate(8 * CHUNK_BYTES * layout.chunks(0) / capacity(0))
    assert expected <= probes * rate_of_layer(rate, 0)
    assert abs(hits - expected) < 0.25 * expected + 3 * expected**0.5


def test_the_rates_of_all_layers_add_up_to_less_than_the_stated_one() -> None:
    assert sum(rate_of_layer(RATE, layer) for layer in range(60)) <= RATE
    for layers in (1, 4, 8, 12):
        full = estimated_rate(RATE, layers=layers, inserted=capacity(layers - 1))
        # Filters are whole chunks: the first ones are a little larger than they have to be.
        assert 0.7 * sum(rate_of_layer(RATE, n) for n in range(layers)) < full <= RATE
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
    names += [key for layer in range(3) for key in layout_of("bloom").pieces(layer)]
    names.append(KEYS.queue("http://[::1]:80{x}"))  # type: ignore[arg-type]
    assert {name[: name.index("}") + 1] for name in names} == {"crawlctl:c:{j:3}"}
    assert len(set(names)) == len(names)
