"""The strings tokenizers are compared on: 12,000 of them, the same on every machine and Python.

Only `Random.random()` is used (its stream is stable) and no Unicode database (its version is not).
"""

import random
from collections.abc import Callable

COUNT = 12_000
SEED = 20_250_711

_SPECIALS = """<|endoftext|> <|im_start|> <|im_end|> <repo_name> <reponame> <file_sep> <filename>
<gh_stars> <jupyter_code> <empty_output> <think> </think> <tool_call> </tool_call> <|fim_prefix|>
<|file_sep|> <|repo_name|> <|vision_start|> <s> </s> <unk> <pad> <bos> <eos> <start_of_turn>
<end_of_turn> <0x0A> <0xFF> [INST] [/INST] <|eot_id|> <|begin_of_text|>""".split()  # noqa: SIM905

_WORDS = """the quick brown fox Jumps OVER lazy dogs don't I'm we'll they've she'd it's CAN'T 'Tis
o'clock naïve café Größe ÜBER smörgåsbord Ελληνικά γλώσσα Русский язык привет עברית שלום العربية مرحبا
हिन्दी नमस्ते বাংলা தமிழ் ไทย ภาษาไทย 日本語 ひらがな カタカナ 中文字符 漢字 한국어 조선말 ქართული አማርኛ
Việt Tiếng İstanbul ﬁne ﬀ ﷺ ½ ²³ Ⅷ ① ٣٤٥ १२३ ３４ e.g. i.e. x86_64 foo_bar camelCase HTTPServer
2024-05-17 3.14159 1,000,000 0xDEADBEEF 1e-9 https://example.org/a?b=c&d=%20 user@host C++ #include""".split()  # noqa: SIM905

_CODE = [
    "def f(x: int) -> str:\n    return f'{x!r}'\n",
    "for (int i = 0; i < n; ++i) {\n\ta[i] += b[i] * c;\n}\n",
    "SELECT * FROM t WHERE a >= 10 AND b <> 'x';\r\n",
    '{"key": [1, 2.5, null, true], "s": "\\u00e9\\n"}',
    '<div class="a b"><!-- c --><p>&nbsp;&amp;</p></div>\n',
    "#!/bin/sh\nset -euo pipefail\necho \"${HOME:-/root}\" | sed 's/a/b/g' > /dev/null 2>&1\n",
    "fn main() -> Result<(), Box<dyn Error>> { let x = &mut v[..]; Ok(()) }",
    "\\begin{equation}\n  \\frac{\\partial f}{\\partial x} = \\sum_{i=0}^{\\infty} a_i\n\\end{equation}",
    "template<typename T> auto operator<=>(const T&) const = default; // 世界\n",
    "@@ -1,7 +1,9 @@\n-old line\n+new line\n \t unchanged\n",
]

_EMOJI = [
    "👩",
    "👨",
    "👧",
    "👦",
    "🏳",
    "🏴",
    "❤",
    "✈",
    "☺",
    "🤦",
    "🧑",
    "🚀",
    "🦀",
    "🎉",
    "👍",
    "🫠",
    "🇩",
    "🇪",
    "🇯",
    "🇵",
    "1",
    "#",
]
_JOINERS = [
    "\u200d",
    "\ufe0f",
    "\ufe0e",
    "\u20e3",
    "🏻",
    "🏽",
    "🏿",
    "\U000e0067",
    "\U000e007f",
    "♀",
    "♂",
]
_SPACES = [
    " ",
    " ",
    " ",
    "\n",
    "\n",
    "\t",
    "\r",
    "\r\n",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u2028",
    "\u0085",
    "\v",
    "\f",
    "\u200b",
    "\ufeff",
]
_DIGITS = ["0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３４５６７８９", "²³¹¼½¾ⅠⅣ①⑩", "𝟎𝟏𝟐𝟗"]
_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~«»“”‘’…—–¿¡§¶†‡•‰€£¥₹©®™°±×÷≠≤≥→←∞∑√"

# First and last code point of scripts whose letters every Unicode version in use agrees on.
_SCRIPTS = [
    (0x41, 0x5A), (0x61, 0x7A), (0xC0, 0xFF), (0x100, 0x17F), (0x391, 0x3C9), (0x410, 0x44F),
    (0x5D0, 0x5EA), (0x621, 0x64A), (0x905, 0x939), (0x985, 0x98C), (0xE01, 0xE30), (0x10D0, 0x10F0),
    (0x1100, 0x1159), (0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3),
    (0x20000, 0x2A6D6), (0x1D400, 0x1D454), (0x10400, 0x1044F), (0xF900, 0xFA2D), (0xFF21, 0xFF3A),
]  # fmt: skip
_MARKS = [
    (0x300, 0x36F), (0x591, 0x5BD), (0x64B, 0x652), (0x93E, 0x94D), (0x1AB0, 0x1ABE), (0x20D0, 0x20DC),
    (0x3099, 0x309A), (0xFE20, 0xFE26),
]  # fmt: skip


class _Dice(random.Random):
    def below(self, count: int) -> int:
        return int(self.random() * count)

    def pick(self, options: list[str] | str) -> str:
        return options[self.below(len(options))]

    def between(self, ranges: list[tuple[int, int]]) -> str:
        first, last = ranges[self.below(len(ranges))]
        return chr(first + self.below(last - first + 1))


def _any_unicode(dice: _Dice) -> str:
    point = dice.below(0x110000 - 0x800)
    return chr(point if point < 0xD800 else point + 0x800)


def _letter(dice: _Dice) -> str:
    return dice.between(_SCRIPTS)


def _several(low: int, high: int, part: Callable[[_Dice], str]) -> Callable[[_Dice], str]:
    return lambda dice: "".join(part(dice) for _ in range(low + dice.below(high - low)))


def _prose(dice: _Dice) -> str:
    return dice.pick(_WORDS) + dice.pick([" ", " ", " ", ", ", ". ", "\n", "", "-", "  ", "'"])


def _marked(dice: _Dice) -> str:
    return _letter(dice) + "".join(dice.between(_MARKS) for _ in range(dice.below(4)))


def _code(dice: _Dice) -> str:
    text = dice.pick(_CODE)
    cut = dice.below(len(text))
    return text[cut:] + dice.pick(["", " ", "\n\n", "\t\t", "    "]) + text[:cut]


def _digits(dice: _Dice) -> str:
    return dice.pick(dice.pick(_DIGITS)) if dice.below(9) else dice.pick([" ", ".", ",", "a", "\n"])


def _lookalike(dice: _Dice) -> str:
    token = dice.pick(_SPECIALS)
    kind = dice.below(8)
    if kind == 0:
        return token[: 1 + dice.below(len(token))]
    if kind == 1:
        return token[dice.below(len(token)) :]
    if kind == 2:
        cut = 1 + dice.below(len(token) - 1)
        return token[:cut] + dice.pick(_SPECIALS) + token[cut:]
    if kind == 3:
        return token[:-1] + dice.pick([" ", "\u200d", token[-1] * 2])
    if kind == 4:
        return token.upper()
    if kind == 5:
        return dice.pick(_WORDS) + dice.pick(["", " ", "\n"])
    return token + dice.pick(["", "", " ", "\n", "a"])


def _mixed(dice: _Dice) -> str:
    kinds = (_any_unicode, _letter, _marked, _prose, _digits, _lookalike)
    kind = dice.below(len(kinds) + 3)
    if kind < len(kinds):
        return kinds[kind](dice)
    return dice.pick((_SPACES, list(_PUNCTUATION), _EMOJI)[kind - len(kinds)])


_KINDS: list[Callable[[_Dice], str]] = [
    _several(1, 24, _any_unicode),
    _several(1, 24, lambda dice: chr(dice.below(0xD800))),
    _several(1, 40, _letter),
    _several(1, 20, _marked),
    _several(1, 20, _prose),
    _several(1, 4, _code),
    _several(1, 24, lambda dice: dice.pick(_EMOJI if dice.below(2) else _JOINERS)),
    _several(1, 30, lambda dice: chr(dice.below(33) if dice.below(3) else 0x7F + dice.below(34))),
    _several(1, 30, lambda dice: dice.pick(_SPACES) if dice.below(4) else dice.pick("ab1.é文")),
    _several(1, 30, _digits),
    _several(1, 30, lambda dice: dice.pick(_PUNCTUATION) if dice.below(4) else dice.pick(" \na'")),
    _several(1, 10, _lookalike),
    _several(1, 30, _mixed),
]


def strings() -> list[str]:
    """The strings, in order; the first one is empty."""
    dice = _Dice(SEED)
    return ["", *(_KINDS[index % len(_KINDS)](dice) for index in range(1, COUNT))]
