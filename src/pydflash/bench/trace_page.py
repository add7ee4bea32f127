"""Trace page: the rounds of one answer as a single HTML file that asks for nothing from outside.

It is well-formed XML, too. Without scripts everything can still be read and unfolded; the script only adds
keys (j and k, or the arrows, step through rounds; o unfolds all).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from pydflash.bench.trace_tree import Text, percent, shown, tree
from pydflash.spec.trace import RoundTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One answer. `target_logp` are the target's own log-probabilities of `tokens`, where it told them.

    `tokens` stand at positions `start`, `start` + 1, ...; the first comes from the prompt's own pass.
    """

    model: str
    drafter: str
    prompt: str
    start: int
    tokens: tuple[int, ...]
    rounds: tuple[RoundTrace, ...]
    target_logp: tuple[float, ...] = ()

    @property
    def acceptance(self) -> float:
        """Tokens a round."""
        gained = sum(len(r.gained) for r in self.rounds)
        return gained / len(self.rounds) if self.rounds else 0.0


def to_json(trace: Trace, text: Text) -> dict[str, Any]:
    """The trace with the text of every token beside its id."""
    rounds = []
    for r in trace.rounds:
        texts = {"texts": [text([t]) for t in r.tokens], "drawn_text": text([r.drawn])}
        rounds.append(asdict(r) | texts)
    return {
        "schema": 1,
        "kind": "trace",
        "model": trace.model,
        "drafter": trace.drafter,
        "prompt": trace.prompt,
        "tokens": [{"token": t, "text": text([t])} for t in trace.tokens],
        "target_logp": list(trace.target_logp),
        "acceptance_length": trace.acceptance,
        "rounds": rounds,
    }


def page(trace: Trace, text: Text) -> str:
    """The whole file. `text` decodes tokens; nothing it gives is trusted."""
    longest = max((r.draft_s + r.step_s for r in trace.rounds), default=0.0)
    rounds = "\n".join(
        _round(i, r, trace, text, longest) for i, r in enumerate(trace.rounds, start=1)
    )
    return f"""<!DOCTYPE html>
<html lang="en" xmlns="http://www.w3.org/1999/xhtml">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<meta name="color-scheme" content="light dark"/>
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"/>
<title>Rounds of {escape(shown(trace.model))}</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
<h1>{len(trace.rounds)} rounds for {len(trace.tokens)} tokens</h1>
<p>{escape(shown(trace.model))}, drafts by {escape(shown(trace.drafter))}. {_summary(trace)}</p>
<details><summary>Prompt</summary><pre>{escape(shown(trace.prompt, lines=True))}</pre></details>
<p class="dim">Keys: <kbd>j</kbd> and <kbd>k</kbd>, or the arrows, step through the rounds,
<kbd>Enter</kbd> folds one, <kbd>o</kbd> all. A solid box with a check mark was accepted, a dashed one was
not; the one marked “drawn” is the target's own. A percentage is the drafter's probability of a token after
its parent.</p>
</header>
<h2 id="answer">Answer</h2>
<p class="answer">{_answer(trace, text)}</p>
<h2>Rounds</h2>
<p class="dim">A bar is a round's time: <span class="cost key"><i class="d"></i></span> drafting,
<span class="cost key"><i class="s"></i></span> the step that verifies.</p>
<main>
{rounds}
</main>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _summary(trace: Trace) -> str:
    if not trace.rounds:
        return "Nothing was drafted."
    count = len(trace.rounds)
    draft, step = (sum(getattr(r, name) for r in trace.rounds) for name in ("draft_s", "step_s"))
    share = draft / (draft + step) if draft + step else 0.0
    nodes = sum(len(r.tokens) for r in trace.rounds) / count
    return (
        f"{trace.acceptance:.2f} tokens a round, {nodes:.1f} nodes a tree, "
        f"{(draft + step) / count * 1e3:.2f} ms a round, {share * 100:.0f}% of it drafting."
    )


def _answer(trace: Trace, text: Text) -> str:
    """The answer's text, each round's tokens a link to the round."""
    parts: list[str] = []
    at = trace.start
    for i, r in enumerate(trace.rounds, start=1):
        if r.position >= at:  # what no round gave: the first token
            known = trace.tokens[at - trace.start : r.position + 1 - trace.start]
            parts.append(f"<span>{escape(_broken(known, text))}</span>")
        at = r.position + 1 + len(r.gained)
        title = f"round {i}: {_count(len(r.gained), 'token')}"
        parts.append(
            f'<a href="#round-{i}" title="{title}" class="from{i % 2}">'
            f"{escape(_broken(r.gained, text))}</a>"
        )
    rest = trace.tokens[max(at - trace.start, 0) :]
    if rest:
        parts.append(f"<span>{escape(_broken(rest, text))}</span>")
    return "".join(parts)


def _round(number: int, r: RoundTrace, trace: Trace, text: Text, longest: float) -> str:
    gained = _join(r.gained, text)
    drafts = len(r.tokens) - 1
    fared = f"{len(r.path) - 1} of {_count(drafts, 'draft')} accepted" if drafts else "no drafts"
    cost = r.draft_s + r.step_s
    widths = [part / longest * 100 if longest else 0.0 for part in (r.draft_s, r.step_s)]
    unfolded = ' open="open"' if number == 1 else ""
    return (
        f'<details class="round" id="round-{number}"{unfolded}>'
        f"<summary><b>{number}</b> <span>{fared}, "
        f"{_count(len(r.gained), 'token')}: <q>{escape(gained)}</q></span>"
        f'<span class="cost" aria-hidden="true"><i class="d" style="width:{widths[0]:.1f}%"></i>'
        f'<i class="s" style="width:{widths[1]:.1f}%"></i></span></summary>'
        f"<p>Position {r.position}. Drafting {r.draft_s * 1e3:.2f} ms, step {r.step_s * 1e3:.2f} ms "
        f"for {_count(r.rows, 'row')}: {cost / len(r.gained) * 1e3:.2f} ms a token."
        f"{_target(r, trace, text)}</p>"
        f'<div class="scroll" tabindex="0" role="group" aria-label={quoteattr(f"tree of round {number}")}>'
        f"{tree(r, text)}</div></details>"
    )


def _target(r: RoundTrace, trace: Trace, text: Text) -> str:
    """What the target itself gave the settled tokens, if it told."""
    first = r.position + 1 - trace.start
    told = trace.target_logp[first : first + len(r.gained)]
    if first < 0 or len(told) < len(r.gained):
        return ""
    both = zip(r.gained, told, strict=True)
    words = ", ".join(
        f"<q>{escape(shown(text([token])))}</q> {escape(percent(logp))}" for token, logp in both
    )
    return f" The target's probabilities: {words}."


def _join(tokens: Sequence[int], text: Text) -> str:
    return shown(text(tokens))


def _broken(tokens: Sequence[int], text: Text) -> str:
    """Text whose line ends are seen and break the line, too."""
    return _join(tokens, text).replace("↵", "↵\n")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


_STYLE = """
:root { --ink: #1f2328; --dim: #59636e; --paper: #ffffff; --soft: #f3f5f7; --line: #d1d9e0;
 --good: #1a7f37; --good-soft: #dafbe1; --drawn: #0969da; --draft: #bc4c00 }
@media (prefers-color-scheme: dark) {
:root { --ink: #e6edf3; --dim: #9198a1; --paper: #0d1117; --soft: #151b23; --line: #3d444d;
 --good: #3fb950; --good-soft: #12261e; --drawn: #58a6ff; --draft: #db6d28 }
}
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; color: var(--ink);
 background: var(--paper); max-width: 70rem; margin: 0 auto; padding: 1rem }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.1rem; margin: 1.5rem 0 .5rem }
.dim { color: var(--dim); font-size: .9rem }
pre, .answer { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--soft);
 padding: .6rem .8rem; border-radius: 6px }
.answer a { color: inherit; text-decoration: none; border-bottom: 2px solid var(--drawn) }
.answer a.from0 { border-bottom-color: var(--draft) }
.answer a:hover, .answer a:focus { background: var(--good-soft) }
:focus-visible { outline: 3px solid var(--drawn); outline-offset: 1px }
kbd { border: 1px solid var(--line); border-radius: 4px; padding: 0 .3em }
.round { border: 1px solid var(--line); border-radius: 6px; margin: .4rem 0; padding: .3rem .7rem }
summary { cursor: pointer; overflow-wrap: anywhere }
.cost { display: flex; height: 5px; margin-top: .2rem }
.cost .d { background: var(--draft) } .cost .s { background: var(--dim) }
.key { display: inline-flex; width: 1.5em } .key i { width: 100% }
.scroll { overflow-x: auto }
svg text { font: 12px ui-monospace, Menlo, Consolas, monospace; fill: var(--ink) }
svg .p { fill: var(--dim) }
svg rect { fill: var(--paper); stroke: var(--dim); stroke-dasharray: 4 3 }
svg .yes rect { fill: var(--good-soft); stroke: var(--good); stroke-width: 2; stroke-dasharray: none }
svg .end rect { fill: var(--soft); stroke: var(--drawn); stroke-width: 2; stroke-dasharray: none }
svg path { fill: none; stroke: var(--dim) } svg path.yes { stroke: var(--good); stroke-width: 2 }
"""

# No "<" and no "&" in here: the page is XML as well.
_SCRIPT = """
const rounds = Array.from(document.querySelectorAll("details.round"));
const unfold = () => { const at = document.getElementById(location.hash.slice(1)); if (at) at.open = true };
addEventListener("hashchange", unfold); unfold();
addEventListener("keydown", e => {
  if (e.ctrlKey || e.metaKey || e.altKey || rounds.length === 0) return;
  if (e.target.closest(".scroll")) { if (e.key.startsWith("Arrow")) return }
  if (e.key === "o") {
    const open = !rounds.every(r => r.open);
    rounds.forEach(r => { r.open = open });
    return;
  }
  const by = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1 }[e.key];
  if (!by) return;
  const here = rounds.findIndex(r => r.contains(document.activeElement));
  const next = here === -1 ? 0 : Math.min(Math.max(here + by, 0), rounds.length - 1);
  rounds[next].querySelector("summary").focus(); e.preventDefault();
});
"""
