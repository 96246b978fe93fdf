"""config.yaml by yaml: for files that are more than plain lines."""

from __future__ import annotations

import yaml


class NotSettingsError(Exception):
    """The file is not a mapping of settings; where (line 0: nowhere in particular) and why."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


def yaml_entries(text: bytes) -> list[tuple[str, str | None, int]]:
    """Return keys, the texts of their values as they are written, and their lines, from 1.

    An empty value is "", one that is a list or a mapping None.

    Raises:
        NotSettingsError: no YAML, or no mapping.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise NotSettingsError(line, f"is not YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise NotSettingsError(0, f"is not YAML: {str(error).splitlines()[0]}") from error
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        raise NotSettingsError(
            root.start_mark.line + 1, "holds no settings: lines such as 'machine: ci' are wanted"
        )
    return [(_key(key), _value(value), key.start_mark.line + 1) for key, value in root.value]


def _key(node: yaml.Node) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else "?"


def _value(node: yaml.Node) -> str | None:
    if not isinstance(node, yaml.ScalarNode):
        return None
    return "" if node.tag == "tag:yaml.org,2002:null" else str(node.value)
