"""Numbers, times and bodies as people read them: the filters of the templates."""

from __future__ import annotations

import base64
import binascii
import json
import time
from datetime import UTC, datetime

NOT_KNOWN = "–"
MAX_SHOWN = 64 << 10  # of a body, in characters


def count(value: int | None) -> str:
    """1234567 → 1,234,567"""
    return NOT_KNOWN if value is None else f"{value:,}"


def short(value: float | None) -> str:
    """1234567 → 1.23M: for figures that must stay narrow."""
    if value is None:
        return NOT_KNOWN
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if abs(value) >= size:
            return f"{_digits(value / (1e3 if unit == 'k' else size))}{unit}"
    return f"{value:,.0f}" if value == int(value) else _digits(value)


def _digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def rate(value: float | None) -> str:
    """Messages a second, without the unit."""
    if value is None:
        return NOT_KNOWN
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def duration(seconds: float) -> str:
    """3723 → 1h 2m; 0.0015 → 1.5 ms"""
    if seconds < 0:
        return "0 s"
    if seconds < 60:
        for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
            if seconds >= size:
                return f"{_digits(seconds / size)} {unit}"
        return "0 s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if days:
        return f"{days}d {hours % 24}h"
    return f"{hours}h {minutes % 60}m" if hours else f"{minutes}m {int(seconds) % 60}s"


def duration_ns(value: float) -> str:
    return duration(value / 1e9)


def size(value: int) -> str:
    """Bytes: 1536 → 1.5 KiB"""
    if value < 1024:
        return f"{value:,} B"
    scaled = float(value)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        scaled /= 1024
        if scaled < 1024 or unit == "TiB":
            break
    return f"{_digits(scaled)} {unit}"


def kept(bytes_kept: int, time_ns: int) -> str:
    """What of the finished messages is kept. 0 is a limit that was not set, below 0 is without limit."""
    if not bytes_kept and not time_ns:
        return "nothing"
    limits = [duration(time_ns / 1e9).removesuffix(" 0h")] if time_ns > 0 else []
    limits += [f"at most {size(bytes_kept)}"] if bytes_kept > 0 else []
    return ", ".join(limits) or "everything"


def moment(timestamp_ns: int) -> str:
    """A time in ns since the epoch, in UTC."""
    try:
        return datetime.fromtimestamp(timestamp_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ns} ns"


def ago(timestamp_ns: int) -> str:
    elapsed = time.time() - timestamp_ns / 1e9
    return f"{duration(elapsed)} ago" if elapsed >= 0 else f"in {duration(-elapsed)}"


def percentile(quantile: float) -> str:
    """0.999 → p99.9"""
    return f"p{quantile * 100:.6g}"


def body_text(message: dict[str, object]) -> tuple[str, str]:
    """A peeked message's body for a reader, and its kind: json, text or hex."""
    body = message.get("body")
    if isinstance(body, str):
        return text_body(body)
    try:
        data = base64.b64decode(str(message.get("body_base64", "")), validate=True)
    except (binascii.Error, ValueError):
        data = b""
    return hex_dump(data), "hex"


def text_body(body: str) -> tuple[str, str]:
    if body[:1] in '{["' or body[-1:] in "}]":
        try:
            parsed = json.loads(body)
        except (ValueError, RecursionError):
            pass
        else:
            return _cut(json.dumps(parsed, indent=2, ensure_ascii=False)), "json"
    if any(ord(letter) < 32 and letter not in "\t\r\n" for letter in body[:1024]):
        return hex_dump(body.encode("utf-8", "surrogatepass")), "hex"
    return _cut(body), "text"


def hex_dump(data: bytes) -> str:
    """Offset, sixteen bytes, and what of them is ASCII; of a large body the beginning."""
    lines = []
    for offset in range(0, min(len(data), 4096), 16):
        row = data[offset : offset + 16]
        ascii_part = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{offset:08x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {ascii_part}")
    if len(data) > 4096:
        lines.append(f"… {len(data) - 4096:,} more bytes")
    return "\n".join(lines)


def _cut(text: str) -> str:
    return (
        text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}\n… {len(text) - MAX_SHOWN:,} more characters"
    )
