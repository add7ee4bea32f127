"""ScriptedChat: the servers' other side with a script instead of a model.

Every piece of a script is one token; the events are made by the same `Narrator` that a live model's
are. Requests take the scripts in turn, the last one again and again.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from pydflash.errors import EngineError, RequestError
from pydflash.sampling.draw import Draw
from pydflash.service.chat import (
    ChatEvent,
    ChatFinished,
    ChatRequest,
    ChatStarted,
    ChatUsage,
    ModelFacts,
)
from pydflash.service.events import Timings
from pydflash.service.narrator import Narrator
from pydflash.service.status import Running, StatusBoard
from pydflash.text.cards import find_card
from pydflash.text.formats import QWEN, Format
from pydflash.text.history import system_text


@dataclass(frozen=True, kw_only=True)
class Script:
    """`pieces`: the answer, a token each. `error`: the engine fails after them. `pause`: seconds before
    each piece. `thinks`: the prompt left the model inside its reasoning."""

    pieces: Sequence[str] = ("Hello", ", ", "world", "!")
    thinks: bool = False
    error: str | None = None
    refusal: RequestError | None = None
    pause: float = 0.0
    prompt_tokens: int = 11
    cached_tokens: int = 0
    form: Format = QWEN


@dataclass
class Seen:
    """What the service was asked, and how each answer ended: "done", "aborted" or "failed"."""

    requests: list[ChatRequest] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)


class ScriptedChat:
    """A `pydflash.service.chat.Chat`. Text is tokenised to its UTF-8 bytes."""

    def __init__(self, *scripts: Script | Sequence[str], name: str = "scripted") -> None:
        """A plain list of pieces is a script of them."""
        self.scripts = [s if isinstance(s, Script) else Script(pieces=s) for s in scripts]
        self.scripts = self.scripts or [Script()]
        self.seen = Seen()
        card = find_card(["none"], "qwen3")
        self.facts = ModelFacts(
            name=name,
            arch="qwen3",
            path=f"{name}.gguf",
            max_ctx=4096,
            vocab_size=256,
            max_tokens=1024,
            card=card,
            created=1_700_000_000,
            plan=("a script",),
        )
        self.board = StatusBoard(name)

    def _next(self) -> Script:
        return self.scripts[min(len(self.seen.requests) - 1, len(self.scripts) - 1)]

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        self.seen.requests.append(request)
        script = self._next()
        if script.refusal is not None:
            raise script.refusal
        running = Running(
            face=request.face,
            streamed=request.streamed,
            prompt_excerpt=await self.render(request),
            prompt_tokens=script.prompt_tokens,
            max_output=request.params.max_tokens or self.facts.max_tokens,
            temperature=request.params.temperature,
            top_p=request.params.top_p,
            top_k=request.params.top_k,
            thinking=script.thinks,
            session=request.session,
            messages=len(request.turns),
        )
        self.board.begin(running)
        finished: ChatFinished | None = None
        end = "aborted"
        try:
            async for event in self._answer(request, script, running):
                if isinstance(event, ChatFinished):
                    finished, end = event, "done"
                yield event
        except EngineError:
            end = "failed"
            raise
        finally:
            self.seen.ends.append(end)
            self.board.finish(running, finished)

    async def _answer(
        self, request: ChatRequest, script: Script, running: Running
    ) -> AsyncGenerator[ChatEvent, None]:
        params = request.params
        seed = params.seed or 0
        yield ChatStarted(prompt_tokens=script.prompt_tokens, seed=seed)
        tools = request.tools if request.tool_choice.mode != "none" else None
        vocabulary = sorted({*script.pieces})
        narrator = Narrator(
            None if request.prompt is not None else script.form,
            tools=tools,
            starts_in_reasoning=script.thinks,
            stops=params.stop,
            raw=(lambda t: vocabulary[t].encode()) if params.logprobs is not None else None,
            single_call=not request.tool_choice.parallel,
        )
        count = thought = 0
        reason = "stop"
        for piece in script.pieces:
            await asyncio.sleep(script.pause)
            count += 1
            thought += narrator.in_reasoning
            self.board.progress(running, piece, 1)
            token = vocabulary.index(piece)
            top = ((token, -0.5),)[: params.logprobs]
            draw = Draw(token=token, logprob=-0.5, top=top)
            for event in narrator.push(piece, draw):
                yield event
            if narrator.is_over:
                break
            if count == (params.max_tokens or 0):
                reason = "length"
                break
        if script.error is not None:
            raise EngineError(script.error)
        for event in narrator.finish():
            yield event
        self.board.totals.dropped_calls += len(narrator.dropped)
        if narrator.num_calls and reason == "stop":
            reason = "tool_calls"
        yield ChatFinished(
            reason=reason,  # type: ignore[arg-type]
            usage=ChatUsage(
                prompt_tokens=script.prompt_tokens,
                completion_tokens=count,
                cached_tokens=script.cached_tokens,
                reasoning_tokens=thought,
            ),
            timings=Timings(
                prefill_s=0.5, decode_s=1.0, prefill_tps=20.0, decode_tps=4.0, first_token_s=0.5
            ),
            seed=seed,
            stop=narrator.stop,
            close_kind="natural" if script.thinks and not narrator.in_reasoning else None,
        )

    async def count_tokens(self, request: ChatRequest) -> int:
        return len(await self.tokenize(await self.render(request)))

    async def render(self, request: ChatRequest) -> str:
        if isinstance(request.prompt, str):
            return request.prompt
        if request.prompt is not None:
            return await self.detokenize(request.prompt)
        texts = [f"[system]{system_text(request.turns)}"] if system_text(request.turns) else []
        for turn in request.turns:
            if turn.role in ("user", "assistant", "tool"):
                content = turn.content
                if not isinstance(content, str):
                    content = "".join(str(part.get("text", "")) for part in content)
                texts.append(f"[{turn.role}]{content}")
        return "".join(texts)

    async def tokenize(
        self, text: str, *, add_special: bool = False, parse_special: bool = True
    ) -> list[int]:
        return list(text.encode("utf-8", "replace"))

    async def detokenize(self, tokens: Sequence[int]) -> str:
        bad = next((t for t in tokens if not 0 <= t < 256), None)
        if bad is not None:
            raise RequestError(f"token id {bad} is outside the vocabulary of 256", param="tokens")
        return bytes(tokens).decode("utf-8", "replace")
