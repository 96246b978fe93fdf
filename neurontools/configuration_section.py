"""Where a tool's own section of config.yaml ends, without yaml: neuron-ls needs none of it, but must know it is whole.

Only what is certainly YAML is passed over: `key: value` lines, deeper ones below `key:`, and lists and mappings of plain
words in one line. Everything else is left to yaml.
"""

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_FIRST = frozenset(_LETTERS + "0123456789")
_WORD = _FIRST | frozenset("._+%-/")
_LONGEST_LINE = 1000  # yaml takes no key that is longer than 1024


def section_end(lines: list[str], begin: int) -> int | None:
    """Return the index of the line after a section whose body begins at a line; None for one that needs yaml."""
    indents: list[int] = []
    opens = True
    for at in range(begin, len(lines)):
        line = lines[at].partition(" #")[0].rstrip(" ")
        bare = line.lstrip(" ")
        if not bare or bare[0] == "#":
            continue
        indent = len(line) - len(bare)
        if not indent:
            return at if indents else None
        key, colon, value = bare.partition(":")
        if len(line) > _LONGEST_LINE or not colon or not _is_word(key) or not _is_value(value):
            return None
        if opens and (not indents or indent > indents[-1]):
            indents.append(indent)
        while indents and indent < indents[-1]:
            indents.pop()
        if not indents or indent != indents[-1]:
            return None
        opens = not value
    return len(lines) if indents else None


def _is_word(text: str) -> bool:
    return text[:1] in _FIRST and _WORD.issuperset(text) if text else False


def _is_value(text: str) -> bool:
    if not text:
        return True
    if text[0] != " ":
        return False
    text = text.strip(" ")
    if text[:1] + text[-1:] == "[]":
        return text == "[]" or all(_is_word(item.strip(" ")) for item in text[1:-1].split(","))
    if text[:1] + text[-1:] == "{}":
        return text == "{}" or all(_is_pair(item.strip(" ")) for item in text[1:-1].split(","))
    return _is_word(text)


def _is_pair(text: str) -> bool:
    key, colon, value = text.partition(": ")
    return bool(colon) and _is_word(key) and _is_word(value.strip(" "))
