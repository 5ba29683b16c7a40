"""The pages that are made from the code when the site is built, and how."""

from __future__ import annotations

from . import flags, metrics, routes

GENERATED = {
    "reference/flags.md": flags.page,
    "reference/http-routes.md": routes.page,
    "reference/metrics.md": metrics.page,
}
