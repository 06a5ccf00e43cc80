"""What a reader of a JavaScript file would find wrong: broken syntax, `var`, and names that do not fit together."""

from collections.abc import Iterator

import tree_sitter_javascript
from tree_sitter import Language, Node, Parser

PARSER = Parser(Language(tree_sitter_javascript.language()))
FUNCTIONS = {"function_declaration", "function_expression", "arrow_function"}
SCOPES = FUNCTIONS | {"program", "statement_block", "for_statement", "for_in_statement", "catch_clause"}
NAMES = {"identifier", "shorthand_property_identifier", "shorthand_property_identifier_pattern"}
TARGETS = {"pair_pattern": "value", "assignment_pattern": "left", "object_assignment_pattern": "left"}


def nodes(text: str) -> list[Node]:
    """Everything that the parser sees, in order."""
    return list(_nodes(PARSER.parse(text.encode()).root_node))


class Source:
    """A parsed file: `names` it declares at its top, `missing` ones that it takes from elsewhere, and `faults`."""

    def __init__(self, text: str):
        root = PARSER.parse(text.encode()).root_node
        self.missing: set[str] = set()
        self.faults = [f"line {n.start_point[0] + 1}: {n.type}" for n in _nodes(root)
                       if n.is_missing or n.type in ("ERROR", "variable_declaration")]  # fmt: skip
        self.names = {_text(node) for node in _declared(root)}
        self._visit(root, [])

    def _visit(self, node: Node, scopes: list[dict[str, bool]]) -> None:
        """Follow every name to the innermost scope that declares it; scopes map names to whether they are read."""
        if node.type in NAMES and not _is_declaration(node):
            self._read(_text(node), scopes)
        if node.type not in SCOPES:
            for child in node.children:
                self._visit(child, scopes)
            return
        scope: dict[str, bool] = {}
        for name in _declared(node):
            if any(_text(name) in outer for outer in [*scopes, scope]):
                self._fault(name, "is declared twice")
            scope[_text(name)] = False
        for child in node.children:
            self._visit(child, [*scopes, scope])
        for name in _declared(node) if scopes else []:  # what a file declares at its top, others may read
            if not scope[_text(name)] and not _text(name).startswith("_"):
                self._fault(name, "is never read")

    def _read(self, name: str, scopes: list[dict[str, bool]]) -> None:
        for scope in reversed(scopes):
            if name in scope:
                scope[name] = True
                return
        self.missing.add(name)

    def _fault(self, node: Node, what: str) -> None:
        self.faults.append(f"line {node.start_point[0] + 1}: {_text(node)} {what}")


def _text(node: Node) -> str:
    return (node.text or b"").decode()


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _nodes(child)


def _declared(scope: Node) -> Iterator[Node]:
    """The names that a scope declares itself."""
    for field in ("parameter", "parameters", *(["left"] if scope.child_by_field_name("kind") else [])):
        if pattern := scope.child_by_field_name(field):
            yield from _pattern(pattern)
    for statement in scope.children:
        if statement.type == "function_declaration":
            yield from _pattern(statement.child_by_field_name("name"))
        if statement.type in ("lexical_declaration", "variable_declaration"):
            for declarator in statement.named_children:
                yield from _pattern(declarator.child_by_field_name("name"))


def _pattern(node: Node | None) -> Iterator[Node]:
    """The names in a pattern, without those of its keys and defaults."""
    if node is None:
        return
    if node.type in NAMES:
        yield node
    elif node.type in TARGETS:
        yield from _pattern(node.child_by_field_name(TARGETS[node.type]))
    elif node.type in ("formal_parameters", "object_pattern", "array_pattern", "rest_pattern"):
        for child in node.named_children:
            yield from _pattern(child)


def _is_declaration(node: Node) -> bool:
    """Whether the name is declared here, or only written to."""
    if node.parent is not None and node.parent.type == "assignment_expression":
        return node.parent.child_by_field_name("left") == node and node.parent.parent.type == "expression_statement"
    above = node
    while above.parent is not None and above.type not in SCOPES:
        above = above.parent
    if above is not node and any(name == node for name in _declared(above)):
        return True
    return above.parent is not None and node.parent == above and above.child_by_field_name("name") == node
