"""RingContext against a plain list: what it says it holds is there, and nothing else is claimed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pydflash.errors import CapacityError
from pydflash.kernels import select
from pydflash.kernels.ops import PAGE_SIZE
from pydflash.state.base import PagedKVSpec
from pydflash.state.ring import RingContext, RingStore

OPS = select.build(torch.device("cpu"), ops="ref", threads=1)


def make_store(window: int = 40, tail: int = 8, contexts: int = 3) -> RingStore:
    specs = [PagedKVSpec(layer=i, kv_heads=1, head_dim=4) for i in range(2)]
    return RingStore(
        specs,
        contexts=contexts,
        window=window,
        tail=tail,
        feature_size=3,
        kv_format="f32",
        ops=OPS,
    )


def opened(store: RingStore) -> RingContext:
    context = store.open()
    assert context is not None
    return context


def write(store: RingStore, context: RingContext, position: int, value: float) -> None:
    place = context.place(position)
    for layer in store.kv.layers:
        layer.k[place // PAGE_SIZE, 0, :, place % PAGE_SIZE] = value


def read(store: RingStore, context: RingContext, position: int) -> float:
    place = context.place(position)
    return float(store.kv.layers[1].k[place // PAGE_SIZE, 0, 2, place % PAGE_SIZE])


def take_in(store: RingStore, context: RingContext) -> None:
    """What a drafter does: store a key for every pending feature."""
    features = context.take()
    if features is None:
        return
    start = context.length
    for i, feature in enumerate(features):
        write(store, context, start + i, float(feature[0]))
    context.stored(len(features))


def features(values: list[float]) -> torch.Tensor:
    return torch.tensor([[v, 0.0, 0.0] for v in values])


class Model:
    """The value at each position, and the length; written beside the ring."""

    def __init__(self, store: RingStore, context: RingContext) -> None:
        self.store, self.context = store, context
        self.values: list[float] = []

    def check(self) -> None:
        c = self.context
        assert c.first <= c.length <= c.end <= len(self.values)
        for position in range(c.first, c.length):
            assert read(self.store, c, position) == self.values[position]
        pending = c.take()
        for i in range(c.num_pending):
            assert pending is not None
            assert float(pending[i, 0]) == self.values[c.length + i]


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["append", "gap", "take", "draft", "rollback", "share", "copy", "close"]),
        st.integers(0, 70),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(MOVES)
def test_a_context_holds_what_it_claims(moves: list[tuple[str, int]]) -> None:
    store = make_store()
    models = [Model(store, opened(store))]
    clock = 0.0
    for verb, n in moves:
        model = models[n % len(models)]
        context = model.context
        if verb == "append" and n:
            values = [clock + i for i in range(n)]
            clock += n
            if context.end == len(model.values):
                context.append(len(model.values), features(values))
            model.values += values
        elif verb == "gap":
            model.values += [clock + i for i in range(n)]
            clock += n
        elif verb == "take":
            take_in(store, context)
        elif verb == "draft":  # a block's own keys are written beyond the end
            take_in(store, context)
            end = context.length + n % (store.tail + 1)
            context.writes(end)
            for position in range(context.length, end):
                write(store, context, position, -1.0)
        elif verb == "rollback":
            length = min(n, len(model.values))
            context.rollback(length)
            del model.values[length:]
        elif verb == "share":
            other = context.share()
            if other is None:
                assert len(models) == 3
            else:
                models.append(Model(store, other))
                models[-1].values = list(model.values)
        elif verb == "copy" and len(models) > 1:
            target = models[(n + 1) % len(models)]
            target.context.import_(context.export())
            target.values = list(model.values)
        elif verb == "close" and len(models) > 1:
            context.close()
            models.remove(model)
        for each in models:
            each.check()


def test_a_window_is_kept_whole() -> None:
    store = make_store(window=40, tail=8)
    context = opened(store)
    for start in range(0, 400, 10):
        context.append(start, features([float(start + i) for i in range(10)]))
        take_in(store, context)
        context.writes(context.length + 8)
    assert context.length - context.first >= 40
    assert read(store, context, 399) == 399.0


def test_a_gap_starts_afresh() -> None:
    store = make_store()
    context = opened(store)
    context.append(0, features([1.0, 2.0]))
    context.append(7, features([3.0]))
    assert (context.first, context.length, context.end) == (7, 7, 8)


def test_more_features_than_the_window_keep_the_last() -> None:
    store = make_store(window=40)
    context = opened(store)
    context.append(0, features([float(i) for i in range(100)]))
    assert (context.first, context.num_pending) == (60, 40)
    take_in(store, context)
    assert read(store, context, 60) == 60.0


def test_rings_run_out_and_come_back() -> None:
    store = make_store(contexts=2)
    one, two = opened(store), opened(store)
    assert store.open() is None
    assert one.share() is None
    two.close()
    assert store.open() is not None


def test_a_snapshot_of_another_ring_is_refused() -> None:
    snapshot = opened(make_store(window=40)).export()
    with pytest.raises(CapacityError, match="--draft-ctx-max"):
        opened(make_store(window=400)).import_(snapshot)
