"""What a C++ file defines outside functions and types: functions, types, constants and aliases.

A reader of this project's sources, not of all C++: it knows namespaces, templates, default arguments, attributes and braces, and leaves
macros and `#if` as they are.
"""

import re

# Comments, strings and preprocessor lines, whose braces do not count. An apostrophe after a digit separates digits.
NOISE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"([^()\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:\\\n|[^\n])*', re.S | re.M)
MARK = re.compile(r"[(){};\[\]]")
NAMESPACE = re.compile(r"(?:inline\s+)?namespace\s*([\w:]*)|extern\s*")
TYPE = re.compile(r"(?:enum\s+(?:class|struct)|enum|struct|class|union)\s+(?:alignas\s*\([^)]*\)\s*)?(\w+)\s*(<.*>)?\s*(?:final\s*)?(?::.*)?", re.S)
OPEN, CLOSE = "(<[{", ")>]}"


def blank(text: str) -> str:
    """The text with spaces in place of NOISE; lines keep their numbers."""
    return NOISE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def end_of_braces(text: str, begin: int) -> int:
    """The place after the brace that closes the one before `begin`."""
    depth = 1
    for match in re.compile(r"[{}]").finditer(text, begin):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.end()
    return len(text)


def split(text: str, mark: str) -> list[str]:
    """The parts between marks that are in no brackets."""
    parts, depth, begin = [], 0, 0
    for i, c in enumerate(text):
        if c == ">" and i > 0 and text[i - 1] == "-":
            continue
        depth += (c in OPEN) - (c in CLOSE)
        if c == mark and depth == 0:
            parts.append(text[begin:i])
            begin = i + 1
    return [*parts, text[begin:]]


def bracket(text: str, begin: int) -> int:
    """The place after the bracket that closes the one at `begin`."""
    depth = 0
    for i in range(begin, len(text)):
        if text[i] == ">" and text[i - 1] == "-":
            continue
        depth += (text[i] in OPEN) - (text[i] in CLOSE)
        if depth == 0:
            return i + 1
    return len(text)


def type_of(argument: str) -> str:
    """An argument's type without its name, default and outermost const."""
    words = " ".join(split(argument, "=")[0].split())
    words = re.sub(r"^const (?!.*[*&])|\[\[\w+\]\] ?", "", words)
    array = "[]" if words.endswith("]") else ""
    words = re.sub(r"\[[^\]]*\]$", "", words)
    if not re.fullmatch(r"(?:const |unsigned |signed |long |typename )*[\w:]+", words):
        words = re.sub(r"(?<=[\w>&* ])\b\w+$", "", words) if re.search(r"[>&* ]\w+$", words) else words
    elif re.search(r"[\w>] \w+$", words) and not re.search(r"\b(?:const|unsigned|signed|long|typename) \w+$", words):
        words = words.rsplit(" ", 1)[0]
    return re.sub(r"\s*([<>,&*:])\s*", r"\1", words.strip()) + array


def without_template(head: str) -> tuple[str, list[str]]:
    """A head without template<...>, and the names of the parameters."""
    names = []
    while match := re.match(r"template\s*(?=<)", head):
        end = bracket(head, match.end())
        names += [re.sub(r"[\s.]*=.*", "", p.strip(), flags=re.S).split()[-1].lstrip(".") for p in split(head[match.end() + 1:end - 1], ",") if p.strip()]
        head = head[end:].strip()
    return head, names


def function_of(head: str, parameters: list[str]):
    """(name, the lists of types that calls may have), or nothing if the head is not a function's."""
    at = next((i for i, c in enumerate(head) if c == "(" and head.count("<", 0, i) - head.count(">", 0, i) + head.count("->", 0, i) <= 0), -1)
    if at < 0 or "=" in re.sub(r"operator\S+", "", head[:at]):
        return None
    name = re.search(r"((?:\w+::)*(?:operator\s*[^\s\w]+|~?\w+))\s*$", head[:at])
    if not name:
        return None
    arguments = [a for a in split(head[at + 1:bracket(head, at) - 1], ",") if a.strip() and a.strip() != "void"]
    types = []
    for argument in arguments:
        kind = type_of(argument)
        for number, parameter in enumerate(parameters):
            kind = re.sub(rf"\b{parameter}\b", f"${number}", kind)
        types.append(kind)
    required = next((i for i, a in enumerate(arguments) if len(split(a, "=")) > 1), len(arguments))
    return name[1], [tuple(types[:n]) for n in range(required, len(types) + 1)]


def definition_of(head: str, body: bool):
    """The keys of a definition: its kind of name, the name and a function's types; nothing for what defines nothing."""
    head = re.sub(r"\[\[[^\]]*\]\]", "", head).strip()
    head, parameters = without_template(head)
    if head.startswith("namespace "):
        return []  # another name of a namespace, which may be given again
    if match := TYPE.fullmatch(head):
        return [("type", match[1] + re.sub(r"\s", "", match[2] or ""))] if body else []
    if match := re.match(r"using\s+(\w+)\s*=", head):
        return [("alias", match[1], "".join(head.split()))]
    if body and (function := function_of(head, parameters)):
        name, calls = function
        return [("function", name, len(parameters) > 0, types) for types in calls]
    value = split(head, "=")[0] if "=" in head else head
    if ("=" in head or body) and (match := re.search(r"[\w>&*]\s+[&*]*(\w+)\s*(?:\[[^\]]*\])*\s*$", value)) and "(" not in value:
        return [("constant", match[1])]
    return []


def definitions(text: str):
    """(namespace, key, line) of each definition. Unnamed namespaces count as the one around them: a batch joins them."""
    text = blank(text)
    spaces: list[str] = []
    at = begin = depth = 0
    body = None  # where the braces of the declaration begin

    def found(end):
        head = text[begin:end]
        line = text.count("\n", 0, begin + len(head) - len(head.lstrip())) + 1
        for key in definition_of(head.strip(), body is not None):
            yield "::".join(s for s in spaces if s), key, line

    while match := MARK.search(text, at):
        at = match.end()
        if match[0] in "([":
            depth += 1
        elif match[0] in ")]":
            depth -= 1
        elif depth > 0:
            continue
        elif match[0] == ";":
            yield from found(match.start() if body is None else body)
            begin, body = at, None
        elif match[0] == "}":
            if spaces:
                spaces.pop()
            begin, body = at, None
        else:
            head = text[begin:match.start()].strip()
            if space := NAMESPACE.fullmatch(head):
                spaces.append(space[1] or "")
                begin = at
                continue
            at = end_of_braces(text, at)
            body = match.start() if body is None else body
            if "(" in head and function_of(without_template(re.sub(r"\[\[[^\]]*\]\]", "", head).strip())[0], []):
                yield from found(body)
                begin, body = at, None
