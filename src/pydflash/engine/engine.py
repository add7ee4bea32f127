"""Engine: the loop. Plan, propose, forward, verify, adopt, feed, update, prepare, move, conclude.

One thread drives it. Requests go in by `add`, tokens come out of `step`.
"""

import time
from collections.abc import Sequence as Many
from dataclasses import replace

from pydflash.device import Scarce
from pydflash.draft.base import Context, DraftRow
from pydflash.engine import batch as batches
from pydflash.engine.batch import RowWork
from pydflash.engine.graphs import GraphPool, Ran
from pydflash.engine.request import FinishReason, Phase, Request, Sequence, StepResult
from pydflash.engine.scheduler import Scheduler, StepPlan
from pydflash.engine.states import States
from pydflash.errors import ContextLengthError, EngineError, NonFiniteError, RequestError
from pydflash.kernels.upload import rows_of, trim
from pydflash.models.base import Model
from pydflash.sampling.ask import Ask
from pydflash.sampling.mask import TokenMask
from pydflash.sampling.penalties import has_penalties
from pydflash.sampling.sampler import Sampler
from pydflash.spec.grown import Grown, stand_in
from pydflash.spec.proposal import Proposal
from pydflash.spec.proposer import Outcome, PlainProposer, Proposer, Spent
from pydflash.spec.verify import Walk, verify
from pydflash.state.moves import Moves


class Engine:
    """Runs any number of requests over one model."""

    def __init__(
        self,
        model: Model,
        states: States,
        *,
        max_ctx: int,
        max_running: int,
        prefill_chunk: int,
        max_exact_rows: int,
        eog: frozenset[int],
        proposer: Proposer | None = None,
        graphs: GraphPool | None = None,
    ) -> None:
        """`graphs`: made for the proposer's taps."""
        self.model = model
        self.states = states
        self.max_ctx = max_ctx
        self.eog = eog
        self.proposer = proposer or PlainProposer()
        self.graphs = graphs or GraphPool(model, states, max_ctx=max_ctx, taps=self.proposer.taps)
        self.sampler = Sampler(self.graphs.vocab_size, states.kv.ops)
        self.scheduler = Scheduler(
            max_running=max_running,
            prefill_chunk=prefill_chunk,
            max_exact_rows=max_exact_rows,
            width=self.proposer.max_nodes,
            max_ctx=max_ctx,
            pages=states,
        )
        self._sequences: dict[int, Sequence] = {}
        self._early_s = 0.0  # seconds that the step before spent on starting this one's drafts

    @property
    def is_idle(self) -> bool:
        return self.scheduler.is_idle

    def check(self, request: Request) -> None:
        """Refuse what cannot be answered, before it takes anything. Safe from any thread.

        Raises ContextLengthError, or RequestError for an empty prompt, a token that does not exist,
        a length to capture that cannot be kept, or a least length beside a grammar.
        """
        prompt, vocab_size = request.prompt, self.sampler.vocab_size
        if not prompt:
            raise RequestError("the prompt is empty; give at least one token", param="prompt")
        if len(prompt) >= self.max_ctx:
            raise ContextLengthError(
                f"the prompt has {len(prompt)} tokens and the context holds {self.max_ctx}; "
                "shorten it or raise --max-ctx"
            )
        bad = next((t for t in prompt if not 0 <= t < vocab_size), None)
        if bad is not None:
            raise RequestError(
                f"token id {bad} is outside the vocabulary of {vocab_size}", param="prompt"
            )
        self._check_captures(request)
        self.sampler.check(request.params)
        if request.grammar is not None and request.params.min_tokens:
            raise RequestError(
                "min_tokens does not go with a constraint, which says itself when the answer may end",
                param="min_tokens",
            )

    def _check_captures(self, request: Request) -> None:
        at, most = request.capture_at, self.states.captures
        bad = next((n for n in at if not 0 < n <= len(request.prompt)), None)
        if bad is not None:
            raise RequestError(
                f"capture_at {bad} lies outside the prompt of {len(request.prompt)} tokens",
                param="capture_at",
            )
        if len(at) > most and self.states.recurrent is not None:
            raise RequestError(
                f"capture_at names {len(at)} lengths, {most} can be kept of a sequence; "
                "name fewer or raise --captures",
                param="capture_at",
            )

    def add(self, request: Request) -> Sequence:
        """Queue a request, once `check` has passed it."""
        self.check(request)
        room = self.max_ctx - len(request.prompt)
        sequence = Sequence(
            request=request,
            max_tokens=min(room, request.params.max_tokens or room),
            tokens=list(request.prompt),
            mask=request.grammar.start() if request.grammar is not None else None,
        )
        self._sequences[request.id] = sequence
        self.scheduler.add(sequence)
        return sequence

    def abort(self, request_id: int) -> Sequence | None:
        """End a request where it stands; its pages are free at once. None if it is already over."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            sequence.finish = "abort"
            self._end(sequence)
        return sequence

    def step(self) -> list[StepResult]:
        """One forward pass. Returns what it gave each sequence that got a token or ended."""
        plan = self.scheduler.plan(self._admit)
        begun = time.perf_counter()
        early_s, self._early_s = self._early_s, 0.0
        work, grown = self._work(plan)
        if not work:
            return []
        drafted, waited = time.perf_counter(), 0.0
        with Scarce() as memory:
            ran = self.graphs.forward(work, None if grown is None else grown.trees)
            if grown is not None:  # the device is at work on what is read here
                made = grown.read()
                work = [replace(w, proposal=p) for w, p in zip(work, made, strict=True)]
                waited = grown.waited
            walks = self._verify(work, ran)
        if memory.ran_out:
            return [self._give_way(work)]
        # The device stands still until the next drafts are queued: first what they need, then the rest.
        paths = [
            range(w.row.count) if w.proposal is None else walks[i].path for i, w in enumerate(work)
        ]
        moves = self._adopt(work, paths)
        contexts = self._fed(work, paths, ran)
        results = self._update(work, walks)
        known = time.perf_counter()
        self._prepare()
        prepared = time.perf_counter()
        self.states.move(moves)
        self._conclude(work)
        self._early_s = prepared - known
        spent = Spent(
            draft_s=early_s + drafted - begun + waited,
            step_s=time.perf_counter() - drafted - waited - self._early_s,
            rows=sum(w.tokens for w in work if w.row.phase is not Phase.PREFILL),
            prefill=sum(w.tokens for w in work if w.row.phase is Phase.PREFILL),
        )
        self.proposer.settle(contexts, self._outcomes(work, walks), spent)
        return results

    def _admit(self, sequence: Sequence) -> None:
        self.states.admit(sequence)
        if not sequence.clock.started:  # else it was preempted
            sequence.clock.started = time.perf_counter()
            sequence.cached = sequence.stored

    def _work(self, plan: StepPlan) -> tuple[list[RowWork], Grown | None]:
        """The step's rows; their trees, if they stand only for what the device knows."""
        # What does not need the proposals comes first: a draft may be under way.
        states = [self.states.reserve(row.sequence, row.count) for row in plan.rows]
        grown = self._grown(plan)
        if grown is not None:
            blank = stand_in(grown.nodes)
            work = [
                RowWork(r, s, blank, grown.nodes) for r, s in zip(plan.rows, states, strict=True)
            ]
            return work, grown
        decoding = [r for r in plan.rows if r.phase is Phase.DECODE]
        again = sum(r.count for r in plan.rows if r.phase is Phase.RECOMPUTE)
        proposals = self._propose([r.sequence for r in decoding], again)
        work = []
        for i, (row, state) in enumerate(zip(plan.rows, states, strict=True)):
            proposal = None
            if i < len(decoding):
                proposal = _pruned(proposals[i], row.sequence.mask).first(row.count)
            work.append(RowWork(row, state, proposal))
        return work, None

    def _grown(self, plan: StepPlan) -> Grown | None:
        """Trees that the device has of its own, for a step of nothing but unconstrained drafting rows."""
        sequences = [row.sequence for row in plan.rows if row.phase is Phase.DECODE]
        if not sequences or len(sequences) < len(plan.rows):
            return None
        if any(not s.request.speculate or s.mask is not None for s in sequences):
            return None
        rows = [self._row(s) for s in sequences]
        return self.proposer.grown(rows, min(row.count for row in plan.rows))

    def _propose(self, sequences: Many[Sequence], again: int) -> list[Proposal]:
        """A proposal for every decoding sequence: plain for those that asked for no drafts. `again`: rows
        that the step recomputes."""
        rows = [self._row(s) for s in sequences if s.request.speculate]
        beside = len(sequences) - len(rows) + again
        made = iter(self.proposer.propose(rows, beside) if rows else ())
        return [
            next(made) if s.request.speculate else Proposal.root(s.tokens[-1]) for s in sequences
        ]

    def _prepare(self) -> None:
        """Tell the proposer who will decode in the next step, if nobody comes or goes."""
        decoding = [
            s for s in self.scheduler.running if s.finish is None and s.settle() is Phase.DECODE
        ]
        rows = [self._row(s) for s in decoding if s.request.speculate]
        free = all(s.mask is None for s in decoding)  # else the host prunes
        self.proposer.prepare(rows, len(decoding) - len(rows), grow=free)

    def _row(self, sequence: Sequence) -> DraftRow:
        return DraftRow(
            tokens=sequence.tokens,
            context=self.states.of(sequence).draft,
            fresh=not sequence.draft.rounds,
        )

    def _verify(self, work: Many[RowWork], ran: Ran) -> dict[int, Walk]:
        """Walk every row that has logits. Keys are indices into `work`."""
        rows, proposals, starts = [], [], []
        at = 0
        for i, w in enumerate(work):
            if w.proposal is not None:
                proposals.append(w.proposal)
            elif batches.wants_logits(w.row):
                proposals.append(Proposal.root(w.row.sequence.tokens[-1]))
            else:
                continue
            rows.append(i)
            starts.append(at)
            at += 1 if w.proposal is None else w.tokens
        sequences = [work[i].row.sequence for i in rows]

        def ask(r: int, drawn: list[int]) -> Ask:
            return self._ask(sequences[r], drawn)

        def is_last(r: int, drawn: list[int]) -> bool:
            return self._finish(sequences[r], drawn) is not None

        walks = verify(self.sampler, ran.logits, proposals, starts, ask, is_last, best=ran.best)
        return dict(zip(rows, walks, strict=True))

    def _ask(self, sequence: Sequence, drawn: list[int]) -> Ask:
        params, steer = sequence.request.params, sequence.request.steer
        generated = sequence.num_generated + len(drawn)
        return Ask(
            params=params,
            seed=sequence.request.seed,
            position=len(sequence.tokens) + len(drawn),
            generated=[*sequence.generated, *drawn] if has_penalties(params) else (),
            prompt=sequence.request.prompt,
            mask=sequence.mask.allowed(drawn) if sequence.mask is not None else None,
            ban=self.eog if generated < params.min_tokens else frozenset(),
            settle=steer.step if steer is not None else None,
        )

    def _finish(self, sequence: Sequence, drawn: list[int]) -> FinishReason | None:
        """Why the row ends after `drawn`, if it does."""
        mask = sequence.mask
        if self._stops(sequence, drawn[-1]) or (mask is not None and mask.is_done(drawn)):
            return "stop"
        steer = sequence.request.steer
        if steer is not None and steer.degenerate:
            return "length"
        return "length" if sequence.num_generated + len(drawn) >= sequence.max_tokens else None

    def _stops(self, sequence: Sequence, token: int) -> bool:
        """Does this token end the answer by itself?"""
        params = sequence.request.params
        return token in params.stop_token_ids or (token in self.eog and not params.ignore_eos)

    def _adopt(self, work: Many[RowWork], paths: Many[Many[int]]) -> Moves:
        """Count the path of each row as stored; what the device has to do for that."""
        moves = self.states.adopt([w.state for w in work], paths)
        for w in work:
            w.row.sequence.stored = w.state.length
        return moves

    def _conclude(self, work: Many[RowWork]) -> None:
        """Let others start from what was stored, and go who has said all."""
        for w in work:
            if w.row.phase is Phase.PREFILL:
                self.states.offer(w.row.sequence)
            if w.row.sequence.finish is not None:
                self._end(w.row.sequence)

    def _fed(self, work: Many[RowWork], paths: Many[Many[int]], ran: Ran) -> list[Context]:
        """`_feed`; without memory for it the step's sequences go on without a drafter's context."""
        with Scarce():
            return self._feed(work, paths, ran)
        trim(self.states.kv.ops.device)
        for w in work:
            if w.state.draft is not None:
                w.state.draft.close()
                w.state.draft = None
        return []

    def _feed(self, work: Many[RowWork], paths: Many[Many[int]], ran: Ran) -> list[Context]:
        """Give each drafter context the features of the positions just committed."""
        features = ran.features
        if features is None:
            return []
        fed: list[Context] = []
        first = 0
        for w, path in zip(work, paths, strict=True):
            context = w.state.draft
            if context is not None and w.row.sequence.request.speculate:
                nodes = [first + node for node in path]
                # A view would keep the whole step's features alive for as long as it waits.
                whole = ran.lasts and len(nodes) == len(features)
                context.append(
                    w.state.length - len(path), features if whole else rows_of(features, nodes)
                )
                fed.append(context)
            first += w.tokens
        return fed

    def _outcomes(self, work: Many[RowWork], walks: dict[int, Walk]) -> list[Outcome]:
        """What became of each proposal of a sequence that takes drafts."""
        outcomes = []
        for i, w in enumerate(work):
            sequence = w.row.sequence
            if w.proposal is None or not sequence.request.speculate:
                continue
            drawn = [d.token for d in walks[i].draws]
            outcome = Outcome(
                proposal=w.proposal,
                rows=w.tokens,
                position=len(sequence.tokens) - len(drawn) - 1,
                path=walks[i].path[: len(drawn)],
                drawn=drawn,
                stats=sequence.draft,
            )
            outcomes.append(outcome)
        return outcomes

    def _update(self, work: Many[RowWork], walks: dict[int, Walk]) -> list[StepResult]:
        """Take in the tokens drawn and see who ends with them."""
        results = []
        now = time.perf_counter()
        for i, walk in walks.items():
            sequence = work[i].row.sequence
            drawn = [d.token for d in walk.draws]
            if drawn:
                sequence.clock.first_token = sequence.clock.first_token or now
                sequence.finish = self._finish(sequence, drawn)
                if self._stops(sequence, drawn[-1]):
                    sequence.stop_token = drawn[-1]
                sequence.tokens += drawn
                if sequence.mask is not None:
                    sequence.mask.commit(drawn)
            if walk.error is not None:
                sequence.finish = "error"
                sequence.is_sound = not isinstance(walk.error, NonFiniteError)
            results.append(StepResult.of(sequence, tuple(walk.draws), walk.error))
        return results

    def _give_way(self, work: Many[RowWork]) -> StepResult:
        """The step found no memory: its largest request fails, the prompt being read if there is one. What
        the others had stored may be half advanced: they begin again."""
        victim = max((w.row for w in work), key=lambda r: (r.phase is Phase.PREFILL, r.count))
        for w in work:
            if w.row is victim:
                self.states.release(w.row.sequence)
            else:
                self.scheduler.preempt(w.row.sequence)
        trim(self.states.kv.ops.device)
        sequence = victim.sequence
        sequence.finish = "error"
        self._end(sequence)
        error = EngineError(
            "the device ran out of memory; give it fewer sequences (--max-concurrency), a smaller "
            "--prefill-chunk or --max-ctx"
        )
        return StepResult.of(sequence, error=error)

    def _end(self, sequence: Sequence) -> None:
        sequence.phase = Phase.FINISHED
        sequence.clock.finished = time.perf_counter()
        self.scheduler.remove(sequence)
        self.states.finish(sequence)
        del self._sequences[sequence.request.id]


def _pruned(proposal: Proposal, mask: TokenMask | None) -> Proposal:
    """The proposal without nodes that the grammar forbids: they are never drawn, and cost time."""
    if mask is None or len(proposal.tokens) == 1:
        return proposal
    kept = {0}
    inner = set(proposal.parents)
    for leaf in range(1, len(proposal.tokens)):
        if leaf not in inner:
            path = proposal.path(leaf)[1:]
            kept.update(path[: mask.takes([proposal.tokens[node] for node in path])])
    return proposal.only(kept)
