"""Prompts to answer: conversations or plain texts, from files of the user's and from built-in sources.

The built-in ones need no download: the standard library's own sources for code, a generator for sums and
word problems, templates for everyday requests. The best source is the target itself (`magpie`).
"""

import ast
import json
import random
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydflash.errors import ConfigError
from pydflash.train.everyday import everyday
from pydflash.train.sums import sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """`messages` of a conversation, or, where there are none, plain `text` to go on with."""

    domain: str
    messages: tuple[dict[str, str], ...] = ()
    text: str = ""


def ask(domain: str, text: str) -> Prompt:
    """One user turn."""
    return Prompt(domain=domain, messages=({"role": "user", "content": text},))


def built_in(count: int, seed: int) -> list[Prompt]:
    """About `count` prompts: half code, a quarter sums, a quarter everyday requests. Same seed, same list."""
    rng = random.Random(seed)
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    prompts = [*code_prompts(rng, count // 2, stdlib)]
    for text in sums(rng, count // 4):
        plain = rng.random() < 0.2
        prompts.append(
            Prompt(domain="math", text=f"Question: {text}\nAnswer:") if plain else ask("math", text)
        )
    prompts += [ask("chat", text) for text in everyday(rng, count - len(prompts))]
    rng.shuffle(prompts)
    return prompts


def from_file(path: Path) -> list[Prompt]:
    """A .jsonl file (`messages`, `prompt`, `text`, `question` or `instruction`; optional `domain`), else a
    text file whose paragraphs are prompts."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".jsonl":
        return [ask(path.stem, part.strip()) for part in text.split("\n\n") if part.strip()]
    prompts = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            prompts.append(_from_record(line, path, number))
    return prompts


def _from_record(line: str, path: Path, number: int) -> Prompt:
    try:
        record: Any = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{path}, line {number} is not JSON: {error}") from error
    if isinstance(record, dict):
        domain = str(record.get("domain", path.stem))
        if isinstance(record.get("messages"), list):
            return Prompt(domain=domain, messages=tuple(record["messages"]))
        if isinstance(record.get("text"), str):
            return Prompt(domain=domain, text=record["text"])
        for key in ("prompt", "question", "instruction"):
            if isinstance(record.get(key), str):
                return ask(domain, record[key])
    raise ConfigError(
        f"{path}, line {number} has no prompt; give messages, prompt, question, instruction or text"
    )


_ASKS = (
    "{code}",
    "Complete this Python function:\n\n{code}",
    "Complete the following code:\n```python\n{code}```",
    "Finish the function below. Answer with Python code only.\n\n{code}",
    'Write a Python function named `{name}`. Its description is:\n"{doc}"',
    "Implement `{name}` in Python. {doc}",
    "{doc}\nWrite Python code for it and explain it.",
)


def code_prompts(rng: random.Random, count: int, root: Path) -> Iterator[Prompt]:
    """Functions below `root` to write, from their signatures and docstrings; a quarter as plain text."""
    found = list(_functions(root))
    rng.shuffle(found)
    for i in range(count if found else 0):
        name, code, doc = found[i % len(found)]
        if rng.random() < 0.25:
            yield Prompt(domain="code", text=code)
        else:
            style = rng.choice(_ASKS)
            yield ask("code", style.format(name=name, code=code, doc=doc))


def _functions(root: Path) -> Iterator[tuple[str, str, str]]:
    """(name, signature with docstring, first paragraph of the docstring) of documented functions."""
    for path in sorted(root.rglob("*.py")):
        if {"site-packages", "test", "tests"} & set(path.relative_to(root).parts):
            continue
        try:
            source = path.read_text(encoding="utf-8")
            tree = ast.parse(source)
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            doc = ast.get_docstring(node)
            if not doc or not 20 <= len(doc) <= 700:
                continue
            yield node.name, _signature(node, doc), doc.split("\n\n")[0].replace("\n", " ")


def _signature(node: ast.FunctionDef, doc: str) -> str:
    arguments = ast.unparse(node.args).removeprefix("self").removeprefix(", ")
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    body = "\n".join(f"    {line}".rstrip() for line in doc.splitlines())
    return f'def {node.name}({arguments}){result}:\n    """\n{body}\n    """\n'


def texts(prompts: Sequence[Prompt]) -> list[str]:
    """What a person would read of each, for checks against other collections."""
    return [p.text or "\n".join(m["content"] for m in p.messages) for p in prompts]
