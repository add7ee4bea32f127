"""PrefixIndex against a dictionary: what is known, what is found, what goes first."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydflash.state.pages import PageId, PagePool
from pydflash.state.prefix import Node, PrefixIndex

PAGE, GRID = 3, 6
Key = tuple[int, ...]


@dataclass
class Entry:
    """A prefix of the model: one page of it."""

    page: int
    exact: bool
    used: int = 0
    end: bool = False
    slot: int | None = None


class Model:
    """The same promises in the plainest form: every stored prefix is a key."""

    def __init__(self, *, needs_slot: bool) -> None:
        self.known: dict[Key, Entry] = {}
        self.held: set[int] = set()  # pages that a sequence holds, too
        self.needs_slot = needs_slot
        self.clock = 0

    def can_start(self, key: Key) -> bool:
        entry = self.known[key]
        on_point = entry.end or len(key) % GRID == 0
        return on_point and (entry.slot is not None or not self.needs_slot)

    def parts(self, key: Key) -> list[Key]:
        whole = [key[:n] for n in range(PAGE, len(key) + 1, PAGE)]
        return whole if len(key) % PAGE == 0 else [*whole, key]

    def is_leaf(self, key: Key) -> bool:
        return not any(other != key and key in self.parts(other) for other in self.known)

    def find(self, tokens: Key, *, exact: bool) -> Key | None:
        fits = [
            k
            for k in self.known
            if k == tokens[: len(k)] and self.can_start(k) and (self.known[k].exact or not exact)
        ]
        found = max(fits, key=len, default=None)
        if found is not None:
            self.use(found)
        return found

    def use(self, key: Key) -> None:
        for part in reversed(self.parts(key)):
            self.clock += 1
            self.known[part].used = self.clock

    def insert(
        self, key: Key, pages: list[int], *, exact: bool, end: bool, slot: int | None
    ) -> None:
        for part, page in zip(self.parts(key), pages, strict=True):
            entry = self.known.get(part)
            if entry is None:
                for tail in [k for k in self.known if len(k) % PAGE and k == part[: len(k)]]:
                    if (len(part) - 1) // PAGE == len(tail) // PAGE:
                        del self.known[tail]
                self.known[part] = Entry(page, exact)
            elif exact and not entry.exact:
                entry.page, entry.exact, entry.slot = page, True, None
        last = self.known[key]
        last.end |= end
        if last.slot is None and last.exact == exact:
            last.slot = slot
        self.use(key)

    def evict(self) -> None:
        leaves = [k for k in self.known if self.is_leaf(k)]
        idle = [k for k in leaves if self.known[k].page not in self.held]
        self.forget(min(idle or leaves, key=lambda k: self.known[k].used))

    def forget(self, key: Key) -> None:
        del self.known[key]
        self.prune(key[: (len(key) - 1) // PAGE * PAGE])

    def prune(self, key: Key) -> None:
        if key and self.is_leaf(key) and not self.can_start(key):
            self.forget(key)

    def take_slot(self) -> Key:
        keys = [k for k, e in self.known.items() if e.slot is not None]
        key = min(keys, key=lambda k: self.known[k].used)
        self.known[key].slot = None
        self.prune(key)
        return key


def spelled(node: Node) -> Key:
    return tuple(t for n in node.path() for t in n.tokens)


class Bench:
    """The index and the model side by side, over one pool."""

    def __init__(self, *, needs_slot: bool) -> None:
        self.pool = PagePool(4096)
        self.dropped: list[int] = []
        self.index = PrefixIndex(
            self.pool, page_size=PAGE, grid=GRID, needs_slot=needs_slot, dropped=self._drop
        )
        self.model = Model(needs_slot=needs_slot)
        self.running: list[list[PageId]] = []
        self.slots = 0
        self.needs_slot = needs_slot

    def _drop(self, node: Node) -> None:
        if node.slot is not None:
            self.dropped.append(node.slot)

    def insert(self, key: Key, *, exact: bool, end: bool, stays: bool) -> None:
        """As a sequence does that started from what is known, and stays or ends."""
        found = self.index.find(key, exact=exact)
        assert (None if found is None else spelled(found)) == self.model.find(key, exact=exact)
        shared = [] if found is None else [n.page for n in found.path() if len(n.tokens) == PAGE]
        self.pool.share(shared)
        pages = [*shared, *self.pool.allocate(-(-len(key) // PAGE) - len(shared))]
        slot = None
        if self.needs_slot:
            self.slots += 1
            slot = self.slots
        node = self.index.insert(key, pages, exact=exact, end=end, slot=slot)
        self.model.insert(key, list(pages), exact=exact, end=end, slot=slot)
        assert spelled(node) == key
        if stays:
            self.running.append(pages)
            self.model.held |= set(pages)
        else:
            self.pool.free(pages)

    def stop(self) -> None:
        self.pool.free(self.running.pop(0))
        self.model.held = {p for pages in self.running for p in pages}

    def check(self) -> None:
        self.index.check()
        self.pool.check([*self.running, [n.page for n in self.index]])
        mine = {
            spelled(n): Entry(n.page, n.exact, end=n.end, slot=n.slot, used=i)
            for i, n in enumerate(self.index)
        }
        order = sorted(self.model.known, key=lambda k: self.model.known[k].used)
        assert list(mine) == order
        for i, key in enumerate(order):
            self.model.known[key].used = i
            assert mine[key] == self.model.known[key]
        self.model.clock = len(order)


texts = st.lists(st.integers(0, 1), min_size=1, max_size=16).map(tuple)


@given(needs_slot=st.booleans(), data=st.data())
@settings(max_examples=120, deadline=None)
def test_it_knows_what_a_dictionary_would(needs_slot: bool, data: st.DataObject) -> None:
    bench = Bench(needs_slot=needs_slot)
    verbs = ["prefill", "prefill", "turn", "turn", "find", "evict", "take", "stop"]
    for verb in data.draw(st.lists(st.sampled_from(verbs), max_size=25)):
        if verb in ("prefill", "turn"):
            text = data.draw(texts)
            stays = data.draw(st.booleans())
            if verb == "turn":
                bench.insert(text, exact=False, end=True, stays=stays)
            elif len(text) >= GRID:
                exact = data.draw(st.booleans())
                text = text[: len(text) // GRID * GRID]
                bench.insert(text, exact=exact, end=False, stays=stays)
        elif verb == "find":
            text, exact = data.draw(texts), data.draw(st.booleans())
            found = bench.index.find(text, exact=exact)
            assert (None if found is None else spelled(found)) == bench.model.find(
                text, exact=exact
            )
        elif verb == "evict" and len(bench.index):
            assert bench.index.evict()
            bench.model.evict()
        elif verb == "take" and bench.index.oldest_slot() is not None:
            oldest = bench.index.oldest_slot()
            assert oldest is not None
            key = spelled(oldest)
            bench.index.take_slot(oldest)
            assert bench.model.take_slot() == key
        elif verb == "stop" and bench.running:
            bench.stop()
        bench.check()
    while bench.running:
        bench.stop()
    bench.index.clear()
    bench.model.known.clear()
    bench.check()
    assert not len(bench.index)
    assert bench.pool.num_free == bench.pool.num_pages


def turn(bench: Bench, *tokens: int) -> None:
    bench.insert(tokens, exact=False, end=True, stays=False)


def test_a_turn_that_went_on_gives_way_to_its_longer_self() -> None:
    bench = Bench(needs_slot=False)
    turn(bench, 1, 2, 3, 4)
    turn(bench, 1, 2, 3, 4, 5)
    assert [spelled(n) for n in bench.index] == [(1, 2, 3, 4, 5), (1, 2, 3)]
    turn(bench, 1, 2, 3, 4, 5, 6, 7)
    assert [len(spelled(n)) for n in bench.index] == [7, 6, 3]


def test_what_a_running_sequence_holds_goes_last() -> None:
    bench = Bench(needs_slot=False)
    bench.insert((1, 2, 3, 4, 5, 6), exact=True, end=False, stays=True)
    bench.insert((2, 3, 4, 5, 6, 7), exact=True, end=False, stays=False)
    assert bench.pool.num_idle == 2
    bench.index.evict()
    assert [spelled(n) for n in bench.index] == [(1, 2, 3, 4, 5, 6), (1, 2, 3)], "the other, whole"
    assert bench.pool.num_idle == 0


def test_exact_pages_replace_others_and_their_state() -> None:
    bench = Bench(needs_slot=True)
    text = (1, 2, 3, 4, 5, 6)
    turn(bench, *text)
    assert bench.index.find(text, exact=True) is None
    bench.insert(text, exact=True, end=False, stays=False)
    found = bench.index.find((*text, 7), exact=True)
    assert found is not None
    assert (found.slot, bench.dropped) == (2, [1])
    turn(bench, *text)
    assert found.slot == 2, "and are not replaced in turn"


def test_dropping_forgets_all_with_the_same_beginning() -> None:
    bench = Bench(needs_slot=False)
    turn(bench, 1, 2, 3, 4)
    turn(bench, 1, 2, 3, 9, 9, 9, 9)
    turn(bench, 2, 2, 3, 4)
    bench.index.drop((1, 2, 3, 0))
    assert [spelled(n) for n in bench.index] == [(2, 2, 3, 4), (2, 2, 3)]
    bench.index.drop((7, 7, 7))
    assert len(bench.index) == 2
    bench.index.check()


def test_the_check_notices() -> None:
    bench = Bench(needs_slot=True)
    turn(bench, 1, 2, 3, 4)
    leaf = next(iter(bench.index))
    leaf.slot = None
    with pytest.raises(AssertionError):
        bench.index.check()
