"""Permissions: every TCP command and every HTTP route of all daemons, tried against real ones.

`python -m reliability.permissions` prints the table, with `--markdown` as docs/reference/permissions.md.
"""
