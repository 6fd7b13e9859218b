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


def put(chunk: bytearray, seen: Print, layout: SeenLayout) -> None:
    """Set the bits of a URL in its chunk, as offer.lua does."""
    values = layout.form.packed.unpack(seen.packed)
    step = 1 + 2 * layout.form.words
    for at in range(1, len(values), step):
        for pair in range(at + 1, at + step, 2):
            first = 4 * (values[at] * layout.form.block_words + values[pair] - 1)
            (word,) = struct.unpack_from("<i", chunk, first)
            struct.pack_into("<i", chunk, first, word | values[pair + 1])


def test_the_hash_of_a_url_never_changes() -> None:
    """Part of the layout version: another hash would make every known URL new again."""
    exact = fingerprint("http://a.example/", "exact")
    bloom = fingerprint("http://a.example/", "bloom")
    assert exact.fingerprint == bloom.fingerprint == -2637652931642200953
    assert exact.packed.hex() == "16d8cb50b7000188008000"
    assert (
        bloom.packed.hex()
        == "47d88b0d07000c88008000101100400007008001020700090010800002640000000c00101008"
    )


def test_the_place_of_a_url_never_changes() -> None:
    exact, bloom = layout_of("exact"), layout_of("bloom")
    tag = "crawlctl:c:{j:3}:"
    seen = fingerprint("http://a.example/", "exact")
    assert exact.buckets(seen, 2) == [tag + "f:1:54", tag + "f:0:13"]
    assert exact.chunk(seen, 2) == (tag + "b:2:0", 22528)
    seen = fingerprint("http://a.example/", "bloom")
    assert bloom.buckets(seen, 2) == []
    assert bloom.chunk(seen, 6) == (tag + "b:6:0", 6992896)


@pytest.mark.parametrize("mode", ["exact", "bloom"])
@pytest.mark.parametrize("number", range(8))
def test_a_place_lies_inside_its_layer_and_pieces_are_at_most_eight_megabytes(
    mode: Mode, number: int
) -> None:
    layout = layout_of(mode)
    assert PIECE_CHUNKS * CHUNK_BYTES == 8 * 1024 * 1024
    assert buckets_of(number) * BUCKET_URLS == capacity(number)
    last = 0
    for at in range(500):
        seen = fingerprint(f"http://a.example/{at}", mode)
        key, first = layout.chunk(seen, number)
        piece = layout.pieces(number).index(key)
        assert first % CHUNK_BYTES == 0
        assert 0 <= first < PIECE_CHUNKS * CHUNK_BYTES
        chunk = piece * PIECE_CHUNKS + first // CHUNK_BYTES
        assert chunk < layout.chunks(number)
        last = max(last, chunk)
        whole = bytearray(CHUNK_BYTES)
        put(whole, seen, layout)  # raises where a word lies outside
        assert holds(bytes(whole), seen, layout.form)
        assert not holds(bytes(CHUNK_BYTES), seen, layout.form)
        for bucket in layout.buckets(seen, number + 1)[:1]:
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


@pytest.mark.parametrize(("mode", "rate"), [("exact", 0.085), ("bloom", 8e-3), ("bloom", 8e-4)])
def test_false_hits_of_a_full_filter_are_as_rare_as_stated(mode: Mode, rate: float) -> None:
    """Counted on bits set as offer.lua does; one layer may use an eighth of the stated rate."""
    layout = layout_of(mode, rate if mode == "bloom" else RATE)
    chunks: dict[tuple[str, int], bytearray] = defaultdict(lambda: bytearray(CHUNK_BYTES))
    for at in range(capacity(0)):
        seen = fingerprint(f"http://a.example/{at}", mode)
        put(chunks[layout.chunk(seen, 0)], seen, layout)
    probes = 60_000
    hits = 0
    for at in range(probes):
        seen = fingerprint(f"http://b.example/{at}", mode)
        hits += holds(chunks[layout.chunk(seen, 0)], seen, layout.form)
    expected = probes * (rate if mode == "exact" else rate_of_layer(rate, 0))
    assert abs(hits - expected) < 0.25 * expected + 3 * expected**0.5


def test_the_rates_of_all_layers_add_up_to_less_than_the_stated_one() -> None:
    assert sum(rate_of_layer(RATE, layer) for layer in range(60)) <= RATE
    for layers in (1, 4, 8, 12):
        full = estimated_rate(RATE, layers=layers, inserted=capacity(layers - 1))
        assert 0.8 * sum(rate_of_layer(RATE, n) for n in range(layers)) < full <= RATE
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
    layout = layout_of("exact")
    names += layout.buckets(fingerprint("http://a.example/", "exact"), 3)
    names += [key for layer in range(3) for key in layout.pieces(layer)]
    names.append(KEYS.queue("http://[::1]:80{x}"))  # type: ignore[arg-type]
    assert {name[: name.index("}") + 1] for name in names} == {"crawlctl:c:{j:3}"}
    assert len(set(names)) == len(names)
