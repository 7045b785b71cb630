"""Blocks of text, such as messages, are wrapped; drawings, which say no language, are not."""

from __future__ import annotations

from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Give blocks of text a class that the style sheet knows."""
    return markdown.replace("```text\n", "``` {.text .wrap}\n")
