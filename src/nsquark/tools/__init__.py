"""The programs on top of the client library: NSQ's utilities, and `nsquark` for people.

Each utility is a module or a room of its name; `command/` holds what they share.
"""
