"""Real agents, unchanged, each doing a turn with a tool over real HTTP. The model is a script."""

from pathlib import Path

import pytest

from pydflash.config import EngineConfig, ServerConfig, StateConfig
from pydflash.service.build import load
from pydflash.service.service import ChatService
from tests.clients.agents import AGENTS, MODEL, PI, Agent
from tests.server.live import serving
from tests.server.scripted import Script, ScriptedChat

pytestmark = pytest.mark.clients

DONE = "The file has been made, all is well."


class Worker(ScriptedChat):
    """Calls the agent's shell tool, then says that all is done. Knows the agents' side questions."""

    def __init__(self, agent: Agent, command: str) -> None:
        text = f"I need a shell.\n</think>\n\nMaking it.\n{agent.call(command)}"
        super().__init__(
            Script(pieces=list(text), thinks=True),
            Script(pieces=[DONE[:9], DONE[9:]]),
            Script(pieces=["A ", "title"]),
            name=MODEL,
        )

    def _next(self) -> Script:
        call, done, title = self.scripts
        request = self.seen.requests[-1]
        if not len(request.tools):
            return title
        return done if any(turn.role == "tool" for turn in request.turns) else call


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_a_turn_with_a_tool(agent: Agent, tmp_path: Path) -> None:
    if not agent.path.exists():
        pytest.skip("run `make test-clients`, which installs the agents")
    service = Worker(agent, "echo $((40+2)) > made.txt; cat made.txt")
    with serving(service) as url:
        ended = agent.run(url, "Make a file.", tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert DONE in ended.stdout
    assert (tmp_path / "work" / "made.txt").read_text() == "42\n"
    assert set(service.seen.ends) == {"done"}
    asked = [request for request in service.seen.requests if len(request.tools)]
    assert len(asked) == 2
    *_, assistant, result = asked[1].turns
    assert (assistant.content, assistant.calls[0].name) == ("Making it.", agent.tool)
    assert assistant.reasoning == "I need a shell."
    assert result.role == "tool"
    assert "42" in str(result.content)
    assert asked[1].turns[: len(asked[0].turns)] == asked[0].turns


@pytest.mark.model
def test_pi_talks_to_smollm2(smollm2: Path, tmp_path: Path) -> None:
    if not PI.path.exists():
        pytest.skip("run `make test-clients`, which installs the agents")
    engine = EngineConfig(state=StateConfig(max_concurrency=1))
    service = ChatService(load(smollm2, engine), ServerConfig(default_max_tokens=64), engine)
    with serving(service) as url:
        ended = PI.run(url, "What is the capital of France? Answer in one word.", tmp_path)
    service.close()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Paris" in ended.stdout
    assert service.board.totals.finished
    assert service.board.totals.errors == {}
