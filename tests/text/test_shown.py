"""Detokenizer and Format together: markers that are special tokens reach the splitter, others do not."""

from pydflash.text.bytelevel import ALPHABET
from pydflash.text.channels import ChannelSplitter
from pydflash.text.detokenizer import Detokenizer
from pydflash.text.formats import QWEN
from pydflash.text.stream import Content, Reasoning, ReasoningClosed, merge
from pydflash.text.tokenizer import Tokenizer
from pydflash.text.vocabulary import Vocabulary


def test_special_markers_are_text_and_others_nothing() -> None:
    specials = ["<|im_end|>", "<think>", "</think>"]
    letters = list(ALPHABET)
    vocabulary = Vocabulary(
        model="gpt2",
        tokens=[*letters, *specials],
        merges=[],
        token_types=[1] * len(letters) + [3] * len(specials),
        pre="qwen2",
        scores=None,
        eog=(256,),
        **dict.fromkeys(
            ("bos", "eos", "eot", "pad", "unk", "add_bos", "add_eos", "add_space_prefix")
        ),
    )
    tokenizer = Tokenizer(vocabulary)
    tokens = tokenizer.encode("<think>é</think>b<|im_end|>", parse_special=True)
    decoder = Detokenizer(tokenizer, skip_special=True, shown=QWEN.shows)
    splitter = ChannelSplitter(QWEN)
    events = [event for token in tokens for event in splitter.push(decoder.push(token))]
    events += splitter.push(decoder.flush()) + splitter.finish()
    assert merge(events) == [Reasoning("é"), ReasoningClosed(), Content("b")]
    assert Detokenizer(tokenizer, skip_special=True).push(tokens[0]) == ""
    assert Detokenizer(tokenizer).push(tokens[-1]) == "<|im_end|>"
