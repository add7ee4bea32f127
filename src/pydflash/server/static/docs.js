// The API's description as a page: every endpoint, and the fields of its body, out of openapi.json.

import { requestJson } from "./api.js";

const METHODS = ["get", "post", "delete"];
const byId = (id) => document.getElementById(id);

function element(name, text, ...children) {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  made.append(...children);
  return made;
}

const nameOf = (schema) => schema.$ref?.split("/").at(-1);

/** A schema in a few words: `string | null`, `list of Message`. */
function typeOf(schema) {
  if (nameOf(schema)) return nameOf(schema);
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return choices.map(typeOf).join(" | ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${schema.items ? typeOf(schema.items) : "anything"}`;
  return schema.type ?? "anything";
}

/** Names of the schemas that a schema mentions, itself left out. */
function mentioned(schema, found = []) {
  for (const part of [schema, schema.items, ...(schema.anyOf ?? [])]) {
    const name = part && nameOf(part);
    if (name && !found.includes(name)) found.push(name);
    else if (part && part !== schema) mentioned(part, found);
  }
  return found;
}

function fieldsOf(title, schema) {
  const head = element("tr", "", element("th", "Field"), element("th", "Type"));
  for (const cell of head.children) cell.scope = "col";
  const rows = Object.entries(schema.properties ?? {}).map(([name, field]) => {
    const must = (schema.required ?? []).includes(name) ? " (required)" : "";
    const first = element("td", "", element("code", name), must);
    return element("tr", "", first, element("td", typeOf(field)));
  });
  const table = element("table", "", element("thead", "", head), element("tbody", "", ...rows));
  const region = element("div", "", table);
  region.className = "wide";
  region.tabIndex = 0;
  region.setAttribute("role", "region");
  region.setAttribute("aria-label", `Fields of ${title}`);
  return region;
}

/** The body's table and, folded, those of the objects within it. */
function bodyOf(operation, schemas) {
  const content = operation.requestBody?.content?.["application/json"];
  const name = content && nameOf(content.schema);
  if (!name) return [];
  const seen = [name];
  for (let at = 0; at < seen.length; at += 1) {
    for (const field of Object.values(schemas[seen[at]].properties ?? {})) {
      for (const other of mentioned(field)) if (!seen.includes(other)) seen.push(other);
    }
  }
  return [
    fieldsOf(name, schemas[name]),
    ...seen.slice(1).map((other) => {
      const details = element("details", "", element("summary", other));
      details.append(fieldsOf(other, schemas[other]));
      return details;
    }),
  ];
}

function operationOf(path, method, operation, schemas) {
  const title = element("h2", "", element("code", `${method.toUpperCase()} ${path}`));
  const text = element("p", operation.description ?? operation.summary ?? "");
  const section = element("section", "", title, text, ...bodyOf(operation, schemas));
  section.setAttribute("aria-label", `${method.toUpperCase()} ${path}`);
  return section;
}

async function show() {
  try {
    const api = await requestJson("openapi.json");
    const schemas = api.components?.schemas ?? {};
    const sections = Object.entries(api.paths).flatMap(([path, operations]) =>
      METHODS.filter((method) => operations[method]).map((method) =>
        operationOf(path, method, operations[method], schemas),
      ),
    );
    byId("operations").replaceChildren(...sections);
  } catch (error) {
    byId("trouble").textContent = error.message;
    byId("trouble").hidden = false;
  }
}

await show();
