"""The Markdown renderer, in the browser it is for."""

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser.live import ANSWER, LiveServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

RENDER = """async (text) => {
    const { renderMarkdown } = await import("./static/markdown.js");
    return renderMarkdown(text);
}"""

# What is wrong with the nodes of each text's HTML; parsed in a template, where nothing runs or loads.
INSPECT = """async (texts) => {
    const { renderMarkdown } = await import("./static/markdown.js");
    const tags = new Set(("a blockquote br button code del div em h3 h4 h5 h6 hr li ol p pre span strong " +
        "table tbody td th thead tr ul").split(" "));
    const attributes = new Set(["aria-label", "class", "href", "rel", "role", "start", "tabindex",
        "target", "type"]);
    const classes = new Set(["", "code", "code-head", "copy", "table", "center", "right"]);
    const wrong = [];
    for (const text of texts) {
        const template = document.createElement("template");
        template.innerHTML = renderMarkdown(text);
        for (const node of template.content.querySelectorAll("*")) {
            const say = (what) => wrong.push(`${what} from ${JSON.stringify(text)}`);
            if (!tags.has(node.localName)) say(`<${node.localName}>`);
            if (!classes.has(node.className)) say(`class ${node.className}`);
            for (const { name } of node.attributes) if (!attributes.has(name)) say(`attribute ${name}`);
            if (node.localName !== "a") continue;
            if (!/^(https?:\\/\\/|mailto:)/i.test(node.getAttribute("href"))) say(node.outerHTML);
            if (node.rel !== "noopener noreferrer") say(node.outerHTML);
        }
        const comments = document.createNodeIterator(template.content, NodeFilter.SHOW_COMMENT);
        if (comments.nextNode()) wrong.push(`a comment from ${JSON.stringify(text)}`);
    }
    return wrong;
}"""

LINK = '<a href="{0}" target="_blank" rel="noopener noreferrer">{1}</a>'

INLINE = {
    "plain": "plain",
    "**bold** and __bold__": "<strong>bold</strong> and <strong>bold</strong>",
    "*it* and _it_": "<em>it</em> and <em>it</em>",
    "***both***": "<em><strong>both</strong></em>",
    "*a **b** c*": "<em>a <strong>b</strong> c</em>",
    "**a *b* c**": "<strong>a <em>b</em> c</strong>",
    "~~gone~~": "<del>gone</del>",
    "snake_case_name 2 * 3 * 4": "snake_case_name 2 * 3 * 4",
    "`a < b` ``x ` y``": "<code>a &lt; b</code> <code>x ` y</code>",
    "`**not bold**`": "<code>**not bold**</code>",
    r"\*not\* \<b>": "*not* &lt;b&gt;",
    "one\ntwo": "one<br>two",
    "**unfinished": "**unfinished",
    "`unfinished": "`unfinished",
    "[a](https://x.org/y)": LINK.format("https://x.org/y", "a"),
    '[a](https://x.org "title")': LINK.format("https://x.org", "a"),
    "[a](https://x.org/_(b)_)": LINK.format("https://x.org/_(b)_", "a"),
    "[**a** `c`](https://x.org)": LINK.format("https://x.org", "<strong>a</strong> <code>c</code>"),
    "[a](https://x.org/**b**)": LINK.format("https://x.org/**b**", "a"),
    "![picture](https://x.org/p.png)": LINK.format("https://x.org/p.png", "picture"),
    "see https://x.org/a_b_c.": "see "
    + LINK.format("https://x.org/a_b_c", "https://x.org/a_b_c")
    + ".",
    "(https://x.org)": "(" + LINK.format("https://x.org", "https://x.org") + ")",
    "[a](javascript:alert(1))": "a",
    "[a](relative)": "a",
    "<b>raw</b> & \"'": "&lt;b&gt;raw&lt;/b&gt; &amp; &quot;&#39;",
}

BLOCKS = {
    "# One\n###### Six ##": "<h3>One</h3>\n<h6>Six</h6>",
    "#hash": "<p>#hash</p>",
    "a\n\nb": "<p>a</p>\n<p>b</p>",
    "a\n***\nb": "<p>a</p>\n<hr>\n<p>b</p>",
    "> a\n> > b": "<blockquote><p>a</p>\n<blockquote><p>b</p></blockquote></blockquote>",
    "- a\n- b": "<ul><li>a</li><li>b</li></ul>",
    "* a\n\n* b": "<ul><li><p>a</p></li><li><p>b</p></li></ul>",
    "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
    "1. a\n   - b\n     - c\n2. d": (
        "<ol><li>a\n<ul><li>b\n<ul><li>c</li></ul></li></ul></li><li>d</li></ol>"
    ),
    "- a\n- b\n\ntext": "<ul><li>a</li><li>b</li></ul>\n<p>text</p>",
    "- a\n1. b": "<ul><li>a</li></ul>\n<ol><li>b</li></ol>",
    "- [ ] a\n- [x] b": "<ul><li>☐ a</li><li>☑ b</li></ul>",
    "text\n- a": "<p>text</p>\n<ul><li>a</li></ul>",
    "- a\n  lazy\nlazier": "<ul><li>a<br>lazy<br>lazier</li></ul>",
}


def code(text: str, language: str = "code") -> str:
    return (
        f'<div class="code"><div class="code-head"><span>{language}</span>'
        f'<button type="button" class="copy">Copy</button></div>'
        f'<pre tabindex="0" role="region" aria-label="{language}"><code>{text}</code></pre></div>'
    )


CODE = {
    "```py\nif a < b:\n    c\n```": code("if a &lt; b:\n    c", "py"),
    "~~~\n```\n~~~": code("```"),
    "````\n```\n````\nafter": code("```") + "\n<p>after</p>",
    "```js\nunfinished": code("unfinished", "js"),
    "- a\n  ```\n  x\n  ```\n- b": f"<ul><li>a\n{code('x')}</li><li>b</li></ul>",
}

ATTACKS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!-- comment --><svg/onload=alert(1)>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x]( javascript:alert(1))",
    "[x](java\nscript:alert(1))",
    "[x](&#106;avascript:alert(1))",
    "[x](\x01javascript:alert(1))",
    "[x](data:text/html,<script>alert(1)</script>)",
    "[x](vbscript:msgbox(1))",
    "![x](javascript:alert(1))",
    "![x](https://x.org/a.png)",
    '[x](https://x.org/"onmouseover="alert(1))',
    "[x](https://x.org/'onmouseover='alert(1))",
    '[x](https://x.org "a" onclick="alert(1)")',
    '[" onclick="alert(1)](https://x.org/`" onclick="alert(1)`)',
    'https://x.org/"onmouseover="alert(1)',
    "https://x.org/<script>",
    "<https://x.org/onclick=alert(1)>",
    '```"><img src=x onerror=alert(1)>\ncode\n```',
    '```js" onload="alert(1)\n</code></pre><script>alert(1)</script>\n```',
    "`</code><script>alert(1)</script>`",
    '| <script> | " onclick=x |\n|--|--|\n| <img src=x onerror=alert(1)> | [a](javascript:x) |',
    "# <img src=x onerror=alert(1)>",
    "> <iframe src=javascript:alert(1)>",
    '- <a href="javascript:alert(1)">x</a>',
    "**<b onclick=alert(1)>**",
    "*[a*](https://x.org/*b)*",
    "[[a](javascript:x)](https://x.org)",
    "[a](https://x.org/[b](https://y.org))",
    "\0<scr\0ipt>",
    "&lt;script&gt;",
]
PIECES = [
    *"<>\"'&`*_~[]()!|#-+>:/\\ \n\t",
    *(
        "**",
        "```",
        "~~~\n",
        "\n\n",
        "1. ",
        "- ",
        "|--|--|\n",
        "](",
        "<script>",
        "</pre>",
        "<img src=x ",
    ),
    *(
        "onerror=",
        "javascript:",
        "https://x.org/",
        "mailto:a@b",
        "data:",
        "a",
        "b c",
        "&#x6a;",
        "-->",
        "<!--",
    ),
]


TABLE = {
    "| a | b | c |\n|---|:-:|--:|\n| 1 | `x|y` | a\\|b |\n| **2** |\n": (
        '<div class="table" tabindex="0" role="region" aria-label="table"><table><thead><tr><th>a</th>'
        '<th class="center">b</th><th class="right">c</th></tr></thead><tbody><tr><td>1</td>'
        '<td class="center"><code>x|y</code></td><td class="right">a|b</td></tr>'
        '<tr><td><strong>2</strong></td><td class="center"></td><td class="right"></td></tr>'
        "</tbody></table></div>"
    ),
    "a | b\nc | d": "<p>a | b<br>c | d</p>",
}


@pytest.fixture(scope="module")
def page(browser: "Browser", running: LiveServer) -> Iterator["Page"]:
    page = browser.new_page()
    page.goto(running.url)
    yield page
    page.close()


@pytest.mark.parametrize("text", INLINE)
def test_inline(page: "Page", text: str) -> None:
    assert page.evaluate(RENDER, text) == f"<p>{INLINE[text]}</p>"


@pytest.mark.parametrize("text", [*BLOCKS, *CODE, *TABLE])
def test_blocks(page: "Page", text: str) -> None:
    assert page.evaluate(RENDER, text) == (BLOCKS | CODE | TABLE)[text]


def test_attacks_stay_text(page: "Page") -> None:
    assert page.evaluate(INSPECT, ATTACKS) == []


def test_random_texts_give_known_tags_only(page: "Page") -> None:
    texts = ["".join(random.choices(PIECES, k=random.randint(1, 40))) for _ in range(5000)]
    assert page.evaluate(INSPECT, texts) == []


def test_every_prefix_renders(page: "Page") -> None:
    assert page.evaluate(INSPECT, [ANSWER[:end] for end in range(len(ANSWER))]) == []


@pytest.mark.parametrize(
    "piece",
    [
        "*",
        "**a ",
        "_a",
        "`",
        "``a`",
        "[",
        "[a",
        "[a](",
        "> ",
        "- ",
        "  - a\n",
        "|",
        "a|\n",
        "~~~\n",
        "# ",
        "\\",
        "~~a ",
        " ",
    ],
)
def test_long_texts_do_not_hang(page: "Page", piece: str) -> None:
    took = "async (t) => { const m = await import('./static/markdown.js'); const s = performance.now();"
    took += " m.renderMarkdown(t); return performance.now() - s; }"
    assert page.evaluate(took, piece * (40_000 // len(piece)) + "x") < 5000
