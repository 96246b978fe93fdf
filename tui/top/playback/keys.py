"""The keys of time travel in neuron-top."""

from __future__ import annotations

from textual.binding import Binding

TIME_KEYS = [
    Binding("space", "pause", "pause, or go on", id="pause"),
    Binding("left_square_bracket", "step(-1)", "one moment back", id="step-back"),
    Binding("right_square_bracket", "step(1)", "one moment on", id="step-on"),
    Binding("left_curly_bracket", "seek(-60)", "a minute back", id="minute-back"),
    Binding("right_curly_bracket", "seek(60)", "a minute on", id="minute-on"),
    Binding("left_parenthesis", "tape_start", "to the oldest moment", id="tape-start"),
    Binding("right_parenthesis", "tape_end", "to the newest moment, and follow it", id="tape-end"),
    Binding("minus", "speed(-1)", "play a replay slower", id="slower"),
    Binding("plus,equals_sign", "speed(1)", "play a replay faster", id="faster"),
]
"""Keys that work on every page."""
