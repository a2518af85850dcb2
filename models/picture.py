"""A loss curve as an SVG file that needs nothing else to be looked at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 40, 48


def loss_picture(losses: Sequence[float], title: str) -> str:
    """The losses of steps 1, 2, ... on a logarithmic axis: each step thin, their running mean over a fortieth of them thick."""
    low, high = math.log10(min(losses)), math.log10(max(losses))
    low, high = low - 0.05 * (high - low or 1), high + 0.05 * (high - low or 1)

    def x(step: float) -> float:
        return LEFT + (step - 1) / max(1, len(losses) - 1) * (WIDTH - LEFT - RIGHT)

    def y(loss: float) -> float:
        return TOP + (high - math.log10(loss)) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def line(values: Sequence[float], style: str) -> str:
        points = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in enumerate(values, start=1))
        return f'<polyline fill="none" {style} points="{points}"/>'

    def text(at: float, down: float, words: str, anchor: str = "middle", style: str = "") -> str:
        return f'<text x="{at:.1f}" y="{down:.1f}" text-anchor="{anchor}" {style}>{escape(words)}</text>'

    grid, labels = [], []
    for value in _ticks(10**low, 10**high):
        grid.append(f'<path stroke="#ddd" d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}"/>')
        labels.append(text(LEFT - 8, y(value) + 4, f"{value:g}", "end"))
    for part in range(5):
        step = max(1, round(part * len(losses) / 4))
        labels.append(text(x(step), HEIGHT - BOTTOM + 20, str(step)))
    half = max(1, len(losses) // 80)
    mean = [
        sum(losses[max(0, at - half) : at + half + 1]) / len(losses[max(0, at - half) : at + half + 1])
        for at in range(len(losses))
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
            f'font-family="sans-serif" font-size="12" role="img" aria-label="{escape(title)}">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
            text(LEFT, 22, title, "start", 'font-size="14" font-weight="bold"'),
            *grid,
            line(losses, 'stroke="#56b4e9" stroke-width="1"'),
            line(mean, 'stroke="#0072b2" stroke-width="2.5"'),
            *labels,
            text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "step"),
            text(16, (TOP + HEIGHT - BOTTOM) / 2, "loss", style=f'transform="rotate(-90 16 {(TOP + HEIGHT - BOTTOM) / 2:.0f})"'),
            "</svg>\n",
        ]
    )


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between the ends; powers alone where those would be many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) <= 4 else (1,)
    return [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]
