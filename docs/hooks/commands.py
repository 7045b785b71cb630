"""The command line's own help as a page, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

import typer.main

from tabfeed.cli import app

PAGE, MARK = "reference/cli.md", "<!-- commands -->"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the commands in place of the mark."""
    return markdown.replace(MARK, commands()) if page.file.src_uri == PAGE else markdown


def commands() -> str:
    """All commands, one after the other."""
    return "\n\n".join(
        _section(name, c) for name, c in walk("tabfeed", typer.main.get_command(app))
    )


def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """A command's parts that do something, with the words they are called by."""
    parts = getattr(command, "commands", None)
    if parts is None:
        yield name, command
        return
    for word, part in parts.items():
        yield from walk(f"{name} {word}", part)


def _section(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    usage = " ".join([name, *(p.metavar or p.human_readable_name for p in arguments), "[OPTIONS]"])
    rows = [f"| `{p.metavar or p.human_readable_name}` | {_text(p)} |" for p in arguments]
    rows += [f"| `{_words(p)}` | {_text(p)}{_default(p)} |" for p in options]
    table = "| argument, option | what it is |\n| --- | --- |\n" + "\n".join(rows)
    lines = (command.epilog or "").splitlines()[1:]  # the first says "Examples:"
    examples = "\n".join(line.strip() for line in lines)
    shown = f"\n\n```sh\n{examples}\n```" if examples else ""
    told = escape(command.help or "", quote=False)
    return f"## {name}\n\n{told}\n\n```text\n{usage}\n```\n\n{table}{shown}"


def _words(option: Any) -> str:
    """An option as it is typed: its names, and what it takes."""
    names = ", ".join([*option.opts, *option.secondary_opts])
    return f"{names} {option.metavar or ''}".rstrip()


def _text(parameter: Any) -> str:
    return escape(getattr(parameter, "help", None) or "", quote=False).replace("|", "\\|")


def _default(option: Any) -> str:
    value = option.default
    return "" if option.is_flag or value in (None, (), []) else f" Default: `{value}`."
