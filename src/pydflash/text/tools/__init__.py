"""One file per form in which models write tool calls: what opens it and a reader of it."""
