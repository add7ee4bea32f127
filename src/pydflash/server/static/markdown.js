// Markdown to HTML for text nobody vouches for. Tags come from this file alone: every piece of the text is
// escaped where it is put out, and produced HTML is never scanned again. Raw HTML shows as what it is, text.
// Patterns are bounded, so that no answer makes the page hang.

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const MAX_DEPTH = 8;

export const escapeHtml = (text) => text.replace(/[&<>"']/g, (char) => ESCAPES[char]);

/** The HTML of a Markdown text; an unfinished one (a stream) gives the HTML of what is there. */
export function renderMarkdown(text) {
  const clean = text.replace(/\r\n?/g, "\n").replaceAll("\0", "\ufffd").replaceAll("\t", "    ");
  return blocks(clean.split("\n"), 0);
}

// ---- blocks

const FENCE = /^( {0,3})(`{3,}|~{3,}) *([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6}) +(.*)$/;
const RULE = /^ {0,3}(?:(?:\* *){3,}|(?:- *){3,}|(?:_ *){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)(.*)$/;
const TABLE_RULE = /^ {0,3}\|?(?: *:?-+:? *\|)* *:?-+:? *\|? *$/;

const startsBlock = (line) =>
  FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);

const startsTable = (lines, at) =>
  lines[at].includes("|") &&
  at + 1 < lines.length &&
  lines[at + 1].includes("-") &&
  lines[at + 1].length < 2000 &&
  TABLE_RULE.test(lines[at + 1]) &&
  cells(lines[at]).length === cells(lines[at + 1]).length;

function blocks(lines, depth, tight = false) {
  if (depth > MAX_DEPTH) return `<p>${escapeHtml(lines.join("\n"))}</p>`;
  const out = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    let match;
    if (!line.trim()) {
      at += 1;
    } else if ((match = FENCE.exec(line))) {
      at = fence(lines, at, match, out);
    } else if ((match = HEADING.exec(line))) {
      const level = Math.min(match[1].length + 2, 6); // below the page's own headings
      out.push(`<h${level}>${inline(match[2].trimEnd().replace(/(?:^| )#{1,99}$/, ""), 0)}</h${level}>`);
      at += 1;
    } else if (RULE.test(line)) {
      out.push("<hr>");
      at += 1;
    } else if (QUOTE.test(line)) {
      const inner = [];
      while (at < lines.length && QUOTE.test(lines[at])) inner.push(lines[at++].replace(QUOTE, ""));
      out.push(`<blockquote>${blocks(inner, depth + 1)}</blockquote>`);
    } else if (ITEM.test(line)) {
      at = list(lines, at, depth, out);
    } else if (startsTable(lines, at)) {
      at = table(lines, at, out);
    } else {
      const text = [line.trimStart()];
      at += 1;
      while (at < lines.length && lines[at].trim() && !startsBlock(lines[at])) {
        if (startsTable(lines, at)) break;
        text.push(lines[at++].trimStart());
      }
      const html = inline(text.join("\n").trimEnd(), 0);
      out.push(tight ? html : `<p>${html}</p>`);
    }
  }
  return out.join("\n");
}

function fence(lines, at, [, indent, mark, info], out) {
  const code = [];
  const close = new RegExp(`^ {0,3}\\${mark[0]}{${mark.length},} *$`);
  const margin = new RegExp(`^ {0,${indent.length}}`);
  for (at += 1; at < lines.length && !close.test(lines[at]); at += 1) {
    code.push(lines[at].replace(margin, ""));
  }
  const language = escapeHtml(info.trim().split(" ")[0].slice(0, 40));
  out.push(
    `<div class="code"><div class="code-head"><span>${language || "code"}</span>` +
      `<button type="button" class="copy">Copy</button></div>` +
      `<pre tabindex="0" role="region" aria-label="${language || "code"}"><code>` +
      `${escapeHtml(code.join("\n"))}</code></pre></div>`,
  );
  return at + 1;
}

function list(lines, at, depth, out) {
  const first = ITEM.exec(lines[at]);
  const kind = /\d/.test(first[2]) ? "ol" : "ul";
  const items = [];
  let loose = false;
  while (at < lines.length) {
    const match = ITEM.exec(lines[at]);
    if (!match || RULE.test(lines[at]) || match[1].length > first[1].length + 3) break;
    if (/\d/.test(match[2]) !== (kind === "ol")) break;
    if (match[1].length < first[1].length) break;
    const width = match[1].length + match[2].length + 1;
    const inner = [match[4]];
    let blank = false;
    for (at += 1; at < lines.length; at += 1) {
      const line = lines[at];
      if (!line.trim()) {
        blank = true;
        inner.push("");
        continue;
      }
      const indent = line.length - line.trimStart().length;
      const nested = indent >= Math.min(width, match[1].length + 2);
      if (!nested && (blank || startsBlock(line))) break;
      if (blank && nested) loose = true;
      blank = false;
      inner.push(line.slice(Math.min(indent, width)));
    }
    if (blank && at < lines.length && ITEM.test(lines[at])) loose = true;
    items.push(inner);
  }
  const start = kind === "ol" ? Number.parseInt(first[2], 10) : 1;
  const html = items.map((inner) => `<li>${item(inner, depth, !loose)}</li>`).join("");
  out.push(start === 1 ? `<${kind}>${html}</${kind}>` : `<ol start="${start}">${html}</ol>`);
  return at;
}

function item(lines, depth, tight) {
  const task = /^\[([ xX])\] +/.exec(lines[0]);
  const mark = task ? (task[1] === " " ? "☐ " : "☑ ") : "";
  return mark + blocks([lines[0].slice(task?.[0].length ?? 0), ...lines.slice(1)], depth + 1, tight);
}

function cells(line) {
  const row = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
  const out = [""];
  let code = false;
  for (let i = 0; i < row.length; i += 1) {
    if (row[i] === "\\" && row[i + 1] === "|") out[out.length - 1] += row[(i += 1)];
    else if (row[i] === "|" && !code) out.push("");
    else {
      if (row[i] === "`" && (code || row.includes("`", i + 1))) code = !code;
      out[out.length - 1] += row[i];
    }
  }
  return out.map((cell) => cell.trim());
}

function table(lines, at, out) {
  const align = cells(lines[at + 1]).map((rule) => {
    if (rule.endsWith(":")) return rule.startsWith(":") ? "center" : "right";
    return "";
  });
  const row = (line, tag) => {
    const given = cells(line);
    const cell = (side, i) =>
      `<${tag}${side ? ` class="${side}"` : ""}>${inline(given[i] ?? "", 0)}</${tag}>`;
    return `<tr>${align.map(cell).join("")}</tr>`;
  };
  const head = row(lines[at], "th");
  const body = [];
  for (at += 2; at < lines.length && lines[at].includes("|") && lines[at].trim(); at += 1) {
    body.push(row(lines[at], "td"));
  }
  out.push(
    `<div class="table" tabindex="0" role="region" aria-label="table"><table>` +
      `<thead>${head}</thead><tbody>${body.join("")}</tbody></table></div>`,
  );
  return at;
}

// ---- inline

const CODE = /(?<!`)(`{1,8})(?!`)([^]{0,4000}?[^`])\1(?!`)/y;
const ESCAPED = /\\([!-/:-@[-`{-~]|\n)/y;
const LINK =
  /!?\[((?:\\.|[^[\]\\]|\[[^[\]]{0,500}\]){0,1000})\]\( *<?((?:[^\s<>()]|\([^\s<>()]{0,500}\)){0,2000})>?(?: +(?:"[^"]{0,500}"|'[^']{0,500}'))? *\)/y;
const ADDRESS = /https?:\/\/[^\s<>"'`]{1,2000}/y;
const MARKS = [
  [/\*\*\*(?=[^\s*])([^]{0,1000}?[^\s*])\*\*\*(?!\*)/y, "em", "strong"],
  [/\*\*(?=[^\s*])([^]{0,1000}?[^\s])\*\*(?!\*)/y, "strong"],
  [/(?<!\w)__(?=[^\s_])([^]{0,1000}?[^\s])__(?!\w)/y, "strong"],
  [/~~(?=[^\s~])([^]{0,1000}?[^\s~])~~/y, "del"],
  [/\*(?=[^\s*])((?:\*\*[^*]{0,500}\*\*|[^*]){0,1000}?(?<=\S))\*(?!\*)/y, "em"],
  [/(?<!\w)_(?=[^\s_])([^]{0,1000}?[^\s_])_(?!\w)/y, "em"],
];
const PLAIN = /[^\\`!\[*_~\nh]+|\n/y;

function matchAt(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

function inline(text, depth, inLink = false) {
  if (depth > MAX_DEPTH) return escapeHtml(text);
  let out = "";
  let at = 0;
  let match;
  while (at < text.length) {
    if ((match = matchAt(PLAIN, text, at))) {
      out += match[0] === "\n" ? "<br>" : escapeHtml(match[0]);
    } else if ((match = matchAt(CODE, text, at))) {
      const code = match[2].replaceAll("\n", " ");
      out += `<code>${escapeHtml(/^ .*\S.* $/.test(code) ? code.slice(1, -1) : code)}</code>`;
    } else if ((match = matchAt(ESCAPED, text, at))) {
      out += match[1] === "\n" ? "<br>" : escapeHtml(match[1]);
    } else if (!inLink && (match = matchAt(LINK, text, at))) {
      out += link(match[2], inline(match[1], depth + 1, true) || escapeHtml(match[2]));
    } else if (!inLink && (match = matchAt(ADDRESS, text, at)) && !/\w/.test(text[at - 1] ?? "")) {
      match = [trimAddress(match[0])];
      out += link(match[0], escapeHtml(match[0]));
    } else if ((match = emphasis(text, at))) {
      const html = inline(match[1], depth + 1, inLink);
      out += match.tags.reduceRight((inner, tag) => `<${tag}>${inner}</${tag}>`, html);
    } else {
      match = [text[at]];
      out += escapeHtml(match[0]);
    }
    at += match[0].length;
  }
  return out;
}

function emphasis(text, at) {
  for (const [pattern, ...tags] of MARKS) {
    const match = matchAt(pattern, text, at);
    if (match) return Object.assign(match, { tags });
  }
  return null;
}

/** A link for addresses that only lead somewhere; any other scheme (javascript:, data:) stays text. */
function link(address, html) {
  if (!/^(?:https?:\/\/|mailto:)/i.test(address)) return html;
  return `<a href="${escapeHtml(address)}" target="_blank" rel="noopener noreferrer">${html}</a>`;
}

/** Without the punctuation of the sentence around it, and without a bracket it does not open. */
function trimAddress(address) {
  for (;;) {
    if (/[.,;:!?*_~]$/.test(address)) address = address.slice(0, -1);
    else if (address.endsWith(")") && !address.includes("(")) address = address.slice(0, -1);
    else return address;
  }
}
