"""Real agents, unchanged, each doing a turn with a tool over real HTTP. The model is a script."""

from pathlib import Path

import pytest

from tests.clients.agents import AGENTS, MODEL, Agent
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
