"""Language: conversations to token ids and back, by the target's own template and tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydflash.checkpoint.files import Checkpoint
from pydflash.errors import TemplateError
from pydflash.service.build import build_language
from pydflash.text.template import ChatTemplate
from pydflash.text.tokenizer import Tokenizer
from pydflash.train.prompts import Prompt

_PROBE = "PROBE-5C1D"
Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Language:
    """What a prompt looks like to the target."""

    tokenizer: Tokenizer
    template: ChatTemplate

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Language":
        return cls(*build_language(checkpoint))

    def encode(self, prompt: Prompt) -> list[int]:
        """The ids after which the target answers, as the serving side makes them."""
        if not prompt.messages:
            return self.tokenizer.encode(prompt.text, add_special=True)
        return self._tokens(self.template.render(prompt.messages))

    def user_turn(self, earlier: Sequence[Message]) -> list[int]:
        """The ids after which the target would write the next user turn itself."""
        messages = [*earlier, {"role": "user", "content": _PROBE}]
        text = self.template.render(messages, add_generation_prompt=False)
        before, found, _ = text.partition(_PROBE)
        if not found:
            raise TemplateError("the model's chat template does not print what the user says")
        return self._tokens(before)

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special=True, continuing=True)

    def _tokens(self, text: str) -> list[int]:
        tokens = self.tokenizer.encode(text, add_special=True)
        bos = self.tokenizer.bos
        return tokens[1:] if tokens[:2] == [bos, bos] else tokens
