"""Telling: one answer's results of steps to the events of the chat contract, and what it took in the end."""

import logging

from pydflash.engine.request import StepResult
from pydflash.service.answer import timings_of
from pydflash.service.chat import ChatEvent, ChatFinished, ChatReason, ChatRequest, ChatUsage
from pydflash.service.narrator import Narrator
from pydflash.service.prompts import Prompt, Prompts
from pydflash.service.status import Running, StatusBoard
from pydflash.text.budget import RunGuard, ThinkingBudget
from pydflash.text.detokenizer import Detokenizer
from pydflash.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

Watcher = ThinkingBudget | RunGuard


class Telling:
    """Takes the results of the steps of one answer in turn."""

    def __init__(
        self,
        request: ChatRequest,
        prompt: Prompt,
        watcher: Watcher | None,
        *,
        tokenizer: Tokenizer,
        prompts: Prompts,
        board: StatusBoard,
        running: Running,
    ) -> None:
        """`running` is the request's record on the board."""
        self._prompt = prompt
        self._watcher = watcher
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._board = board
        self._running = running
        self._is_silent = request.is_silent
        form = prompt.form
        self._decoder = Detokenizer(
            tokenizer, skip_special=True, continuing=True, shown=form.shows if form else None
        )
        tools = request.tools if request.tool_choice.mode != "none" else None
        self._narrator = Narrator(
            form,
            tools=tools,
            starts_in_reasoning=prompt.starts_in_reasoning,
            stops=request.params.stop,
            raw=tokenizer.token_bytes if request.params.logprobs is not None else None,
            single_call=not request.tool_choice.parallel,
        )
        self._written: list[str] | None = [] if tools else None
        self._count = 0
        self._thought = 0

    @property
    def is_over(self) -> bool:
        """Nothing more will be told."""
        return self._is_silent or self._narrator.is_over

    def take(self, result: StepResult) -> list[ChatEvent]:
        """The events of a step, and of the end of the text if it is the last."""
        narrator, events, count = self._narrator, list[ChatEvent](), self._count
        texts = []
        for draw in result.draws:
            if draw.token == result.stop_token or self.is_over:
                break
            self._count += 1
            self._thought += narrator.in_reasoning
            text = self._decoder.push(draw.token)
            texts.append(text)
            hidden = not text and self._tokenizer.is_special(draw.token)
            events += narrator.push(text, None if hidden else draw)
        if result.finished and not self.is_over:
            texts.append(self._decoder.flush())
            events += narrator.push(texts[-1])
            events += narrator.finish()
        if self._written is not None:
            self._written += texts
        self._board.progress(self._running, "".join(texts), self._count - count)
        return events

    def finished(self, result: StepResult, seed: int) -> ChatFinished:
        """The last event, once `result` says that the sequence has ended."""
        narrator, watcher, sequence = self._narrator, self._watcher, result.sequence
        budget = watcher if isinstance(watcher, ThinkingBudget) else None
        thought = budget.thought_within(self._count) if budget else self._thought
        assert result.finish is not None
        assert result.finish != "error"
        reason: ChatReason = "stop" if narrator.is_over else result.finish
        if self._is_silent:
            reason = "length"
        if narrator.num_calls and reason == "stop":
            reason = "tool_calls"
        for dropped in narrator.dropped:
            log.warning("a call was dropped (%s): %.200r", dropped.reason, dropped.text)
        self._board.totals.dropped_calls += len(narrator.dropped)
        if narrator.ids and self._written is not None:
            text, said = "".join(self._written), "".join(narrator.reasoning)
            self._prompts.remember(self._prompt, narrator.ids, text, said)
        return ChatFinished(
            reason=reason,
            usage=ChatUsage(
                prompt_tokens=sequence.num_prompt,
                completion_tokens=self._count,
                cached_tokens=sequence.cached,
                reasoning_tokens=thought,
                draft=sequence.draft if sequence.draft.rounds else None,
            ),
            timings=timings_of(sequence, self._count),
            seed=seed,
            stop=narrator.stop,
            close_kind=budget.close_kind if budget and thought else None,
            degenerate=watcher is not None and watcher.degenerate and not narrator.is_over,
        )
