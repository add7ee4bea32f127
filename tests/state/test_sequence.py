"""SequenceState against a plain list: random verbs on several sequences, contents and page counts exact."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pydflash.errors import ConfigError
from pydflash.kernels.ops import PAGE_SIZE
from pydflash.kernels.ref.ops import build_ops
from pydflash.state.base import PagedKVSpec
from pydflash.state.kv import KvStore
from pydflash.state.pages import OutOfPages, PagePool
from pydflash.state.sequence import SequenceState

OPS = build_ops(torch.device("cpu"))


class Bench:
    """A pool, a one-layer store whose stored value is the token itself, and a list beside each state."""

    def __init__(self, num_pages: int, form: str = "f32") -> None:
        spec = PagedKVSpec(layer=0, kv_heads=1, head_dim=32)
        self.pool = PagePool(num_pages)
        self.kv = KvStore([spec], num_pages, form, form, OPS)
        self.pairs: list[tuple[SequenceState, list[int]]] = []
        self.next = 1

    def write(self, state: SequenceState, count: int) -> list[int]:
        """Store `count` fresh tokens after the state's length, without committing them."""
        tokens = list(range(self.next, self.next + count))
        self.next += count
        for i, token in enumerate(tokens):
            page, lane = divmod(state.place(state.length + i), PAGE_SIZE)
            self.kv.layers[0].k[page, :, :, lane] = token
            self.kv.layers[0].v[page, :, lane] = token
        return tokens

    def read(self, state: SequenceState) -> tuple[list[int], list[int]]:
        at = [divmod(state.place(i), PAGE_SIZE) for i in range(state.length)]
        layer = self.kv.layers[0]
        keys = [int(layer.k[page, 0, 0, lane]) for page, lane in at]
        return keys, [int(layer.v[page, 0, lane, 0]) for page, lane in at]

    def check(self) -> None:
        self.pool.check(state.pages for state, _ in self.pairs)
        for state, tokens in self.pairs:
            state.check()
            assert self.read(state) == (tokens, tokens)


VERBS = st.lists(
    st.tuples(
        st.sampled_from(["new", "extend", "commit", "rollback", "share", "export", "release"]),
        st.integers(0, 3),
        st.integers(1, 70),
        st.randoms(use_true_random=False),
    ),
    max_size=25,
)


@given(VERBS)
@settings(max_examples=60, deadline=None)
def test_sequence_state_is_a_list(verbs) -> None:
    bench = Bench(num_pages=9)
    for verb, which, size, random in verbs:
        if verb == "new" or not bench.pairs:
            bench.pairs.append((SequenceState(bench.pool, bench.kv), []))
            continue
        i = which % len(bench.pairs)
        state, tokens = bench.pairs[i]
        if verb in ("extend", "commit"):
            try:
                state.reserve(size)
            except OutOfPages:
                bench.check()
                continue
            written = bench.write(state, size)
            if verb == "extend":
                state.extend(size)
                tokens += written
            else:
                path = sorted(random.sample(range(size), random.randint(1, size)))
                state.commit(path)
                tokens += [written[node] for node in path]
        elif verb == "rollback":
            keep = random.randint(0, len(tokens))
            state.rollback(keep)
            del tokens[keep:]
        elif verb == "share":
            bench.pairs.append((state.share(), list(tokens)))
        elif verb == "export":
            snapshot = state.export()
            other = SequenceState(bench.pool, bench.kv)
            try:
                other.import_(snapshot)
            except OutOfPages:
                bench.check()
                continue
            bench.pairs.append((other, list(tokens)))
        else:
            state.release()
            tokens.clear()
        bench.check()


def test_reserve_says_what_it_will_take() -> None:
    bench = Bench(num_pages=4)
    state = SequenceState(bench.pool, bench.kv)
    bench.pairs.append((state, []))
    assert state.pages_wanted(PAGE_SIZE + 1) == 2
    state.reserve(PAGE_SIZE + 1)
    assert bench.pool.num_free == 2
    state.extend(PAGE_SIZE + 1)
    other = state.share()
    assert other.pages_wanted(1) == 1, "the shared last page is copied before it is written"
    other.reserve(1)
    assert other.pages[0] == state.pages[0]
    assert other.pages[1] != state.pages[1]
    with pytest.raises(OutOfPages, match="--kv-pages"):
        state.reserve(PAGE_SIZE * 3)
    assert bench.pool.num_free == 1, "a refused reservation takes nothing"


@pytest.mark.parametrize("form", ["f32", "f16", "bf16", "q8_0"])
def test_export_and_import_keep_every_bit(form: str) -> None:
    bench = Bench(num_pages=4, form=form)
    state = SequenceState(bench.pool, bench.kv)
    state.reserve(40)
    values = torch.randn(40, 1, 32)
    slots = torch.tensor([state.place(i) for i in range(40)])
    from pydflash.kernels.ref.attention import load, store

    store(bench.kv.layers[0], values, -values, slots)
    state.extend(40)
    before = load(bench.kv.layers[0], slots)
    other = SequenceState(bench.pool, bench.kv)
    other.import_(state.export())
    after = load(bench.kv.layers[0], torch.tensor([other.place(i) for i in range(40)]))
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_import_refuses_another_layout() -> None:
    snapshot = SequenceState(PagePool(1), Bench(1).kv).export()
    other = Bench(1, form="f16")
    with pytest.raises(ConfigError, match="cache types"):
        SequenceState(other.pool, other.kv).import_(snapshot)
