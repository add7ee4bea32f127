"""Coding agents from npm as people run them: how each is pointed at a server of one's own."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(os.environ.get("PYDFLASH_CLIENTS", ".clients")).resolve() / "node_modules" / ".bin"
MODEL = "pydflash"


@dataclass(frozen=True, kw_only=True)
class Agent:
    """`{url}` stands for the server's address in `args`, `env` and `files` (of the home folder).

    `tool` is its tool for shell commands and `command` the parameter that takes one.
    """

    name: str
    args: tuple[str, ...]
    tool: str
    command: str
    more: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return FOLDER / self.name

    def call(self, command: str) -> str:
        """The call of its shell tool, as a Qwen model writes it."""
        values = {self.command: command, **self.more}
        parameters = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
        return f"<tool_call>\n<function={self.tool}>\n{parameters}</function>\n</tool_call>"

    def run(self, url: str, prompt: str, folder: Path) -> "subprocess.CompletedProcess[str]":
        """Ask it once, in a new home under `folder`, working in `folder/work`."""
        home, work = folder / "home", folder / "work"
        work.mkdir()
        for name, text in self.files.items():
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("{url}", url))
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "NO_PROXY": "127.0.0.1"}
        env |= {key: value.replace("{url}", url) for key, value in self.env.items()}
        args = [arg.replace("{url}", url) for arg in self.args]
        return subprocess.run(
            [str(self.path), *args, prompt],
            env=env,
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
        )


CLAUDE = Agent(
    name="claude",
    args=("--model", MODEL, "--allowedTools=Bash", "-p"),
    tool="Bash",
    command="command",
    more={"description": "Make a file"},
    env={
        "ANTHROPIC_BASE_URL": "{url}",
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    },
)
_CODEX_PROVIDER = (
    'model_providers.here={name="here",base_url="{url}/v1",wire_api="responses",'
    "request_max_retries=0,stream_max_retries=0}"
)
CODEX = Agent(
    name="codex",
    args=(
        "exec",
        "--skip-git-repo-check",
        "--dangerously-bypass-approvals-and-sandbox",
        *("-c", f'model="{MODEL}"', "-c", 'model_provider="here"', "-c", _CODEX_PROVIDER),
    ),
    tool="exec_command",
    command="cmd",
)
OPENCODE = Agent(
    name="opencode",
    args=("run", "--model", f"here/{MODEL}"),
    tool="bash",
    command="command",
    more={"description": "Make a file"},
    env={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
    files={
        ".config/opencode/opencode.json": json.dumps(
            {
                "permission": "allow",
                "provider": {
                    "here": {
                        "npm": "@ai-sdk/openai-compatible",
                        "name": "here",
                        "options": {"baseURL": "{url}/v1", "apiKey": "none"},
                        "models": {MODEL: {"name": MODEL, "tool_call": True}},
                    }
                },
            }
        )
    },
)
PI = Agent(
    name="pi",
    args=("--provider", "here", "--model", MODEL, "--no-session", "-p"),
    tool="bash",
    command="command",
    env={"PI_OFFLINE": "1"},
    files={
        ".pi/agent/models.json": json.dumps(
            {
                "providers": {
                    "here": {
                        "baseUrl": "{url}/v1",
                        "api": "openai-completions",
                        "apiKey": "none",
                        "models": [{"id": MODEL}],
                    }
                }
            }
        )
    },
)
AGENTS = (CLAUDE, CODEX, OPENCODE, PI)
